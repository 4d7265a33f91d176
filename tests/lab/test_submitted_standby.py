"""A submitted run with a node that stands by: it takes rank 0's place, and nobody waits for a launch."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from spotproof.contract.states import NodePhase
from spotproof.store.local import LocalTable
from tests.fakes.toy import Plan
from tests.lab.region import Region
from tests.lab.test_submitted import curve, newest, uninterrupted

pytestmark = [pytest.mark.torch, pytest.mark.slow, pytest.mark.full]


@pytest.fixture
def region(tmp_path: Path) -> Iterator[Region]:
    with LocalTable(tmp_path / "table.sqlite") as table, Region(root=tmp_path, table=table) as region:
        yield region


def test_MN_a_node_that_stands_by_takes_rank_0s_place_and_the_other_is_killed_during_that_recovery(
    region: Region, tmp_path: Path
) -> None:
    log = tmp_path / "log.jsonl"
    region.submit(Plan(log=str(log), steps=50, delay_s=0.05), slots=2, standby=1, every_steps=5)
    region.until(lambda: (pointer := region.pointer()) and pointer.step >= 10, "a commit")
    first, second = region.member(0), region.member(1)
    [beside] = [one for one in region.launched if one not in (first, second)]
    region.until(lambda: (node := region.node(beside)) and node.phase is NodePhase.PARKED, "the third stands by")
    region.promote()
    first.signal(signal.SIGKILL)
    region.until(lambda: region.generation() == 2, "the next membership, with nobody launched")
    assert region.member(0) is beside
    second.signal(signal.SIGKILL)  # nobody has made a step yet
    region.promote()
    fresh = [region.launch(one.slot, lost=one.instance, deadline_at=0) for one in (first, second)]
    region.until(lambda: region.generation() == 3, "a membership with one of those that were launched")
    assert region.member(0) is beside
    [idle] = [one for one in fresh if one is not region.member(1)]
    region.until(lambda: (node := region.node(idle)) and node.phase is NodePhase.PARKED, "the other one stands by")
    region.until(lambda: newest(log) == 50, "the end of training")
    for machine in (beside, region.member(1)):
        assert machine.trainer.wait(60) == 0
    assert region.generation() == 3  # who came last changed nothing
    assert idle.trainer.poll() is None
    reference = tmp_path / "reference.jsonl"
    uninterrupted(Plan(log=str(reference), steps=50, tracked=False), 2)
    assert curve(log) == curve(reference)

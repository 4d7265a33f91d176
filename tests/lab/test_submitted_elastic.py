"""An elastic run: 3 nodes, then 2, then 4; the same samples in the same order, and the state that was saved."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from spotproof.data.worldwide import GlobalBatches
from spotproof.store.head import Heads
from spotproof.store.local import LocalTable
from tests.fakes.toy import Plan
from tests.fakes.toy_elastic import BATCH, MICRO, SEED
from tests.lab.region import RUN, Region
from tests.lab.test_submitted import lines, newest

pytestmark = [pytest.mark.torch, pytest.mark.slow, pytest.mark.full]

SAMPLES = 50


@pytest.fixture
def region(tmp_path: Path) -> Iterator[Region]:
    with LocalTable(tmp_path / "table.sqlite") as table, Region(root=tmp_path, table=table) as region:
        yield region


def members(region: Region) -> int:
    sealed = region.sealed()
    return 0 if sealed is None else len(sealed.members)


def part_of(step: int, rank: int, world: int) -> list[int]:
    sampler = GlobalBatches(
        SAMPLES, batch=BATCH, micro=MICRO, seed=SEED, environ={"RANK": str(rank), "WORLD_SIZE": str(world)}
    )
    sampler.begin(epoch=(step - 1) // sampler.steps, step=(step - 1) % sampler.steps)
    pieces = iter(sampler)
    return [number for _ in range(sampler.pieces) for number in next(pieces)]


def test_MN_an_elastic_run_shrinks_at_the_control_planes_word_and_grows_at_a_commit(
    region: Region, tmp_path: Path
) -> None:
    log = tmp_path / "log.jsonl"
    plan = Plan(log=str(log), steps=100, samples=SAMPLES, delay_s=0.05)
    region.submit(
        plan, slots=4, lacking=1, every_steps=5, script="tests.fakes.toy_elastic", elastic="2..4", regrow_after_s=1
    )
    region.until(lambda: (pointer := region.pointer()) and pointer.step >= 10, "a commit of three")
    assert members(region) == 3
    region.promote()
    lost = region.member(0)
    lost.signal(signal.SIGKILL)
    region.until(lambda: region.node(lost) is not None, "its last beat")
    Heads(region.table).within_reach(RUN, 2)  # EC2 has nothing
    region.until(lambda: members(region) == 2, "two of them go on")
    stood = newest(log)
    region.until(lambda: newest(log) > stood, "training goes on")
    Heads(region.table).within_reach(RUN, 0)
    region.launch(lost.slot, lost=lost.instance, deadline_at=0)
    region.launch(3)
    region.until(lambda: members(region) == 4, "it grows")
    region.until(lambda: newest(log) == 100, "the end of training")
    for machine in region.machines.values():
        assert machine.trainer.wait(60) == 0
    assert region.generation() == 3
    made = lines(log)
    assert {line["world"] for line in made} == {2, 3, 4}
    for line in made:  # each of the global batch, in its order, in whatever world
        assert line["ids"] == part_of(line["step"], line["rank"], line["world"]), line
    after = {(line["step"], line["after"]) for line in made}
    for line in made:  # the state that a world went on from is one that another had saved, to the last bit
        assert line["step"] == 1 or (line["step"] - 1, line["before"]) in after, line

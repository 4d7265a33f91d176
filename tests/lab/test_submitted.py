"""A submitted run of three nodes: one leaves with notice, one dies hard, and the curve is the uninterrupted one."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from spotproof.contract.states import FlushOutcome, NodePhase
from spotproof.store.head import Heads
from spotproof.store.local import LocalTable
from tests.fakes.toy import Plan, as_argument
from tests.lab.region import ROOT, RUN, Region

pytestmark = [pytest.mark.torch, pytest.mark.slow]


@pytest.fixture
def region(tmp_path: Path) -> Iterator[Region]:
    with LocalTable(tmp_path / "table.sqlite") as table, Region(root=tmp_path, table=table) as region:
        yield region


def lines(log: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []


def newest(log: Path) -> int:
    return max((line["step"] for line in lines(log)), default=0)


def curve(log: Path) -> dict[tuple[int, int], tuple[str, list[int]]]:
    """Loss and samples of each step and rank; a step that was made twice must be the same both times."""
    found: dict[tuple[int, int], tuple[str, list[int]]] = {}
    for line in lines(log):
        value = line["loss"], line["ids"]
        assert found.setdefault((line["step"], line["rank"]), value) == value, line
    return found


def states(log: Path) -> list[str]:
    """What each rank held at the end."""
    return [path.read_text() for path in sorted(log.parent.glob(f"{log.name}.state-*"))]


def uninterrupted(plan: Plan, ranks: int) -> None:
    argv = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
    environ = {**os.environ, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    subprocess.run([*argv, "-m", "tests.fakes.toy_ddp", as_argument(plan)], check=True, env=environ, timeout=180)


@pytest.mark.parametrize(
    "is_sharded", [pytest.param(False, id="ddp"), pytest.param(True, id="fsdp2", marks=pytest.mark.full)]
)
def test_MN_a_notice_then_a_hard_death_and_the_curve_is_the_uninterrupted_one(
    region: Region, tmp_path: Path, is_sharded: bool
) -> None:
    log = tmp_path / "log.jsonl"
    region.submit(Plan(log=str(log), steps=60, delay_s=0.08, is_sharded=is_sharded), slots=3, every_steps=10)
    region.until(lambda: newest(log) >= 12, "training")
    first = region.machines[0]  # rank 0: nobody is special
    region.interrupt(0)
    region.until(lambda: (node := region.node(first)) and node.flush is FlushOutcome.COMMITTED, "the flush")
    pointer, left = region.pointer(), region.node(first)
    assert pointer is not None
    assert left is not None
    assert left.flush_step == pointer.step == newest(log)  # all ranks stopped at one step: not one is lost
    region.until(lambda: first.trainer.poll() is not None, "the leaver's launcher ends")
    assert first.trainer.returncode == 75
    region.until(lambda: newest(log) > pointer.step, "the run goes on with the replacement")
    assert region.generation() == 2
    assert (node := region.node(first)) is not None
    assert node.phase is NodePhase.DRAINING
    first.signal(signal.SIGKILL)
    second = region.machines[1]
    region.promote()
    region.until(lambda: (p := region.pointer()) and p.generation == 2, "a commit of the second membership")
    second.signal(signal.SIGKILL)
    region.launch(1, lost=second.instance, deadline_at=0)
    if is_sharded:  # a part of the state is on nobody else's disk: and one more is lost while the others recover
        region.until(lambda: region.generation() == 3, "the seal with the second replacement")
        third = region.machines[2]
        third.signal(signal.SIGKILL)
        region.launch(2, lost=third.instance, deadline_at=0)
    region.until(lambda: newest(log) == 60, "the end of training")
    for machine in region.machines.values():
        assert machine.trainer.wait(60) == 0
    assert region.generation() == (4 if is_sharded else 3)
    reference = tmp_path / "reference.jsonl"
    uninterrupted(Plan(log=str(reference), steps=60, tracked=False, is_sharded=is_sharded), 3)
    assert curve(log) == curve(reference)
    assert states(log) == states(reference)
    assert len(states(log)) == 3


@pytest.mark.full
def test_a_training_that_always_fails_ends_by_its_budget_on_every_node(region: Region, tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    region.submit(Plan(log=str(log), steps=60, raise_at=6), slots=2, every_steps=4, failures=2)
    for machine in region.machines.values():
        region.until(lambda: machine.trainer.poll() is not None, "the launcher ends")  # noqa: B023 - at once
        assert machine.trainer.returncode == 1
        node = region.node(machine)
        assert node is not None
        assert (node.phase, node.exit_code) == (NodePhase.FAILED, 1)
    begun = [line["step"] for line in lines(log) if line["step"] == 6 and line["rank"] == 0]
    assert len(begun) == 3  # the first one had made progress; torchrun alone would never stop


@pytest.mark.full
def test_MN_all_nodes_get_their_notice_at_once_and_not_one_step_is_lost(region: Region, tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    region.submit(Plan(log=str(log), steps=40, delay_s=0.05), slots=2, every_steps=1000)
    region.until(lambda: newest(log) >= 8, "training")
    before = list(region.machines.values())
    region.interrupt(0, 1)
    for machine in before:
        region.until(lambda: machine.trainer.poll() is not None, "a leaver's launcher ends")  # noqa: B023 - at once
        assert machine.trainer.returncode == 75
    pointer = region.pointer()
    assert pointer is not None
    assert pointer.step == newest(log)
    for machine in before:
        machine.signal(signal.SIGKILL)
    region.until(lambda: newest(log) == 40, "the end of training")
    assert region.generation() == 2
    for machine in region.machines.values():
        assert machine.trainer.wait(60) == 0
    assert len(lines(log)) == 80  # each step was made once, by each rank
    reference = tmp_path / "reference.jsonl"
    uninterrupted(Plan(log=str(reference), steps=40, tracked=False), 2)
    assert curve(log) == curve(reference)


@pytest.mark.full
def test_MN_a_frozen_node_is_replaced_by_the_control_planes_word_and_ends_itself_when_it_wakes(
    region: Region, tmp_path: Path
) -> None:
    """Nothing tells of it: its sockets stay open. Two ranks on each node: parts are of ranks, not of nodes."""
    log = tmp_path / "log.jsonl"
    region.submit(Plan(log=str(log), steps=60, delay_s=0.05), slots=2, ranks=2, every_steps=5)
    region.until(lambda: (pointer := region.pointer()) and pointer.step >= 10, "a commit")
    region.promote()
    frozen = region.machines[1]
    frozen.signal(signal.SIGSTOP)
    region.launch(1, lost=frozen.instance, deadline_at=0)
    Heads(region.table).mark_bad(RUN, region.generation())
    region.until(lambda: region.generation() == 2, "the next membership")
    stood = newest(log)
    region.until(lambda: newest(log) > stood, "training goes on")
    frozen.signal(signal.SIGCONT)
    assert frozen.trainer.wait(60) == 76
    assert frozen.agent.wait(60) == 76
    region.until(lambda: newest(log) == 60, "the end of training")
    for machine in region.machines.values():
        assert machine.trainer.wait(60) == 0
    pointer = region.pointer()
    assert pointer is not None
    assert (pointer.generation, pointer.step) == (2, 60)
    reference = tmp_path / "reference.jsonl"
    uninterrupted(Plan(log=str(reference), steps=60, tracked=False), 4)
    assert curve(log) == curve(reference)

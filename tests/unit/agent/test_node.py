"""Two nodes of one run, each with host service and `spotproof run`, as on EC2. The test is the control plane."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

import pytest

from spotproof.contract.items import NO_INSTANCE, Member, Node
from spotproof.contract.parse import unix_seconds
from spotproof.contract.runspec import CheckpointPolicy, Liveness, Pools, RunSpec
from spotproof.contract.states import Cause, FlushOutcome, NodePhase
from spotproof.store.local import LocalTable
from spotproof.store.members import Members, Memberships
from spotproof.store.nodes import Nodes
from spotproof.store.pointer import Pointers
from spotproof.store.slots import Slots
from spotproof.store.spec import Specs
from tests.fakes.imds import ACTION, FakeImds, serving
from tests.fakes.toy import Plan, as_argument, read_log, train

pytestmark = [pytest.mark.torch, pytest.mark.slow]
LIMIT_S = 180.0
ONE, TWO = "i-00000000000000001", "i-00000000000000002"


@dataclass
class Machine:
    """One instance: its metadata, its folder, its two processes."""

    instance: str
    folder: Path
    imds: FakeImds
    agent: subprocess.Popen[bytes]
    trainer: subprocess.Popen[bytes]
    incarnation: int

    def signal(self, number: signal.Signals) -> None:
        """To everything on the machine: the training command has a group of its own."""
        for pid in self.pids():
            os.kill(pid, number)

    def pids(self) -> list[int]:
        found = []
        for folder in Path("/proc").iterdir():
            try:
                environ = (folder / "environ").read_bytes()
            except (OSError, NotADirectoryError):
                continue
            if f"TEST_MACHINE={self.folder}".encode() in environ:
                found.append(int(folder.name))
        return found


@dataclass
class Region:
    """The control plane's side of a run, by hand."""

    root: Path
    stack: ExitStack
    table: LocalTable
    machines: list[Machine] = field(default_factory=list)

    def submit(self, plan: Plan) -> None:
        spec = RunSpec(
            run="r",
            image="x@sha256:" + "0" * 64,
            command=(sys.executable, "-m", "tests.fakes.toy", as_argument(plan)),
            pools=Pools(types=("g5.xlarge",)),
            checkpoint=CheckpointPolicy(every_s=3600, every_steps=5),
            liveness=Liveness(heartbeat_s=1, silence_s=5),
            environment=("TOY=1",),
        )
        Specs(self.table).create(spec)
        Slots(self.table).create("r", 1)

    def launch(self, instance: str, *, lost: str = NO_INSTANCE, deadline_at: float | None = None) -> Machine:
        """Claim the slot, boot the machine, bind it."""
        slots = Slots(self.table)
        seen = slots.read("r", 0)
        assert seen is not None
        deadline = None if deadline_at is None else int(deadline_at)
        claimed = slots.claim(seen, lost, cause=Cause.SUBMIT, now=int(time.time()), deadline_at=deadline)
        folder = self.root / instance
        (folder / "run").mkdir(parents=True)
        imds = FakeImds()
        url = self.stack.enter_context(serving(imds))
        base = {**os.environ, "TEST_MACHINE": str(folder)}
        agent = subprocess.Popen(
            [sys.executable, "-m", "tests.fakes.node_agent", str(self.root), str(folder), instance, "r"],
            env={**base, "AWS_EC2_METADATA_SERVICE_ENDPOINT": url},
        )
        trainer = subprocess.Popen(
            [sys.executable, "-m", "spotproof.cli.main", "run", "--"],
            env={**base, "SPOTPROOF_RUNTIME_DIR": str(folder / "run"), "SPOTPROOF_RUN": "r"},
        )
        slots.bind("r", 0, claimed.incarnation, instance=instance, launch=1, now=int(time.time()))
        Members(self.table).put(Member(instance=instance, run="r", slot=0, incarnation=claimed.incarnation, launch=1))
        machine = Machine(
            instance=instance, folder=folder, imds=imds, agent=agent, trainer=trainer, incarnation=claimed.incarnation
        )
        self.machines.append(machine)
        return machine

    def promote(self, machine: Machine) -> None:
        Slots(self.table).promote("r", 0, machine.incarnation, instance=machine.instance)

    def node(self, machine: Machine) -> Node | None:
        return Nodes(self.table).read("r", 0, machine.incarnation)

    def wait_for_phase(self, machine: Machine, *phases: NodePhase) -> Node:
        def there() -> bool:
            node = self.node(machine)
            return node is not None and node.phase in phases

        wait_for(there, f"{machine.instance} in {phases}")
        node = self.node(machine)
        assert node is not None
        return node

    def generation(self) -> int:
        newest = Memberships(self.table).newest("r")
        return 0 if newest is None else newest.generation


def wait_for(holds: Callable[[], object], what: str) -> None:
    until = time.monotonic() + LIMIT_S
    while not holds():
        assert time.monotonic() < until, f"it does not happen: {what}"
        time.sleep(0.05)


@pytest.fixture
def region(tmp_path: Path) -> Iterator[Region]:
    with ExitStack() as stack, LocalTable(tmp_path / "table.sqlite") as table:
        region = Region(root=tmp_path, stack=stack, table=table)
        yield region
        for machine in region.machines:
            machine.signal(signal.SIGKILL)
            machine.agent.wait()
            machine.trainer.wait()


def steps(log: Path) -> int:
    return len(read_log(log)) if log.exists() else 0


def test_a_notice_is_flushed_and_the_successor_goes_on_where_it_stopped(region: Region, tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    region.submit(Plan(log=str(log), steps=60, delay_s=0.1))
    one = region.launch(ONE)
    wait_for(lambda: steps(log) >= 12, "training")
    region.promote(one)
    deadline = time.time() + 90
    at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(deadline))
    one.imds.answers[ACTION] = 200, f'{{"action":"terminate","time":"{at}"}}'
    two = region.launch(TWO, lost=ONE, deadline_at=unix_seconds(at))
    assert one.trainer.wait(LIMIT_S) == 75
    left = region.wait_for_phase(one, NodePhase.DRAINING)
    flushed = steps(log)
    assert (left.flush, left.flush_step, left.exit_code) == (FlushOutcome.COMMITTED, flushed, 75)
    wait_for(lambda: steps(log) > flushed, "the successor trains")
    assert time.time() < unix_seconds(at)  # the outcome let it in, not the deadline
    assert region.generation() == 2
    beats = left.beats
    wait_for(lambda: (node := region.node(one)) is not None and node.beats > beats, "a leaver beats until it is killed")
    one.signal(signal.SIGKILL)
    assert two.trainer.wait(LIMIT_S) == 0
    assert two.agent.wait(LIMIT_S) == 0
    done = region.wait_for_phase(two, NodePhase.DONE)
    assert (done.exit_code, done.step) == (0, 60)
    reference = tmp_path / "reference.jsonl"
    train(Plan(log=str(reference), steps=60, tracked=False))
    assert read_log(log) == read_log(reference)  # nothing lost, nothing twice


def test_a_node_that_was_frozen_and_replaced_ends_itself_and_commits_nothing(region: Region, tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    region.submit(Plan(log=str(log), steps=80, delay_s=0.1))
    one = region.launch(ONE)
    wait_for(lambda: (pointer := Pointers(region.table).read("r")) is not None and pointer.step >= 5, "a commit")
    region.promote(one)
    one.signal(signal.SIGSTOP)
    two = region.launch(TWO, lost=ONE, deadline_at=time.time() - 8)
    region.wait_for_phase(two, NodePhase.PARKED, NodePhase.TRAINING)
    wait_for(lambda: region.generation() == 2, "the seal, ten seconds after the deadline")
    region.promote(two)
    one.signal(signal.SIGCONT)
    assert one.trainer.wait(LIMIT_S) == 76
    assert one.agent.wait(LIMIT_S) == 76
    woken = region.wait_for_phase(one, NodePhase.SUPERSEDED)
    assert woken.exit_code == 76
    wait_for(lambda: not one.pids(), "its trainer is gone")
    assert two.trainer.wait(LIMIT_S) == 0
    assert region.generation() == 2
    pointer = Pointers(region.table).read("r")
    assert pointer is not None
    assert (pointer.generation, pointer.step) == (2, 80)


def test_a_trainer_that_dies_is_started_again_on_its_node_and_one_that_always_fails_ends_it(
    region: Region, tmp_path: Path
) -> None:
    log = tmp_path / "log.jsonl"
    region.submit(Plan(log=str(log), steps=30, kill_at=8, raise_at=22))
    one = region.launch(ONE)
    assert one.trainer.wait(LIMIT_S) == 1
    assert one.agent.wait(LIMIT_S) == 0  # its phase tells the rest; on-failure must not start it again
    failed = region.wait_for_phase(one, NodePhase.FAILED)
    assert failed.exit_code == 1
    taken = [line["step"] for line in read_log(log)]
    assert taken[:8] == list(range(1, 9))  # killed inside step 8
    assert taken[8] == 6  # started again behind step 5
    begun = [step for before, step in pairwise(taken) if step <= before]
    assert taken.count(22) >= 3
    assert begun[-1] == begun[-2]  # the last three failures had no progress between them
    assert region.generation() == 1  # the same membership all the time

"""Nodes of one submitted run, each with host service and `spotproof run`, as on EC2; the test is the control plane.

They are processes of this machine at 127.0.0.x, on one table file and one folder of objects.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from spotproof.contract.items import NO_INSTANCE, Generation, Head, Member, Node, PointerItem
from spotproof.contract.orders import FlushOrder
from spotproof.contract.runspec import Budgets, CheckpointPolicy, Liveness, Pools, RunSpec
from spotproof.contract.states import Cause, NoticeKind, RunStatus
from spotproof.rendezvous.decide import members_of
from spotproof.store.head import Heads
from spotproof.store.local import LocalTable
from spotproof.store.members import Members, Memberships
from spotproof.store.nodes import Nodes
from spotproof.store.pointer import Pointers
from spotproof.store.slots import Slots
from spotproof.store.spec import Specs
from tests.fakes.imds import ACTION, FakeImds, serving
from tests.fakes.toy import Plan, as_argument

RUN = "r"
ROOT = Path(__file__).resolve().parents[2]


@dataclass
class Machine:
    """One instance: its metadata, its folder, its two processes."""

    instance: str
    slot: int
    incarnation: int
    folder: Path
    imds: FakeImds
    agent: subprocess.Popen[bytes]
    trainer: subprocess.Popen[bytes]

    def signal(self, number: signal.Signals) -> None:
        """To everything on the machine: workers have sessions of their own."""
        for pid in self.pids():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def pids(self) -> list[int]:
        """Its processes."""
        found = []
        for folder in Path("/proc").iterdir():
            with contextlib.suppress(OSError):
                if f"TEST_MACHINE={self.folder}\0".encode() in (folder / "environ").read_bytes():
                    found.append(int(folder.name))
        return found


@dataclass
class Region:
    """The control plane's side of a run, by hand. A context manager: what it launched is gone when it ends."""

    root: Path
    table: LocalTable
    stack: ExitStack = field(default_factory=ExitStack)
    machines: dict[int, Machine] = field(default_factory=dict)  # the newest of each slot
    launched: list[Machine] = field(default_factory=list)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for machine in self.launched:
            machine.signal(signal.SIGKILL)
            machine.agent.wait()
            machine.trainer.wait()
        self.stack.close()

    def submit(
        self,
        plan: Plan,
        *,
        slots: int,
        ranks: int = 1,
        every_steps: int = 5,
        failures: int = 3,
        script: str = "tests.fakes.toy_ddp",
        lacking: int = 0,
        **spec_fields: Any,
    ) -> None:
        """Submit the run, with `ranks` on each node, and launch a node for each place, but for the `lacking` last."""
        torchrun = (sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(ranks))
        words = (*torchrun, "-m", script, as_argument(plan))
        spec = RunSpec(
            run=RUN,
            image="x@sha256:" + "0" * 64,
            command=words,
            slots=slots,
            **spec_fields,
            pools=Pools(types=("g5.xlarge",)),
            checkpoint=CheckpointPolicy(every_s=3600, every_steps=every_steps),
            liveness=Liveness(heartbeat_s=1, silence_s=5),
            budgets=Budgets(trainer_failures=failures),
            environment=("GLOO_SOCKET_IFNAME=lo", "OMP_NUM_THREADS=1"),
        )
        Specs(self.table).create(spec)
        head = Head(
            run=RUN,
            status=RunStatus.ACTIVE,
            slots=slots,
            standby=spec.standby,
            least=spec.least if spec.elastic else 0,
            reach=slots - lacking if lacking else 0,
        )
        Heads(self.table).create(head)
        Slots(self.table).create(RUN, spec.places)
        for slot in range(spec.places - lacking):
            self.launch(slot)

    def launch(self, slot: int, *, lost: str = NO_INSTANCE, deadline_at: float | None = None) -> Machine:
        """Claim the slot, boot a machine, bind it."""
        slots = Slots(self.table)
        seen = slots.read(RUN, slot)
        assert seen is not None
        deadline = None if deadline_at is None else int(deadline_at)
        claimed = slots.claim(seen, lost, cause=Cause.SUBMIT, now=int(time.time()), deadline_at=deadline)
        number = len(self.launched) + 2
        instance = f"i-{number:017d}"
        slots.bind(RUN, slot, claimed.incarnation, instance=instance, launch=1, now=int(time.time()))
        member = Member(instance=instance, run=RUN, slot=slot, incarnation=claimed.incarnation, launch=1)
        Members(self.table).put(member)
        machine = self._boot(member, f"127.0.0.{number}")
        self.machines[slot] = machine
        self.launched.append(machine)
        return machine

    def _boot(self, member: Member, address: str) -> Machine:
        folder = self.root / member.instance
        (folder / "run").mkdir(parents=True)
        imds = FakeImds()
        url = self.stack.enter_context(serving(imds))
        base = {**os.environ, "TEST_MACHINE": str(folder), "PYTHONPATH": str(ROOT)}
        log = self.stack.enter_context((folder / "log").open("wb"))
        agent = subprocess.Popen(
            [sys.executable, "-m", "tests.fakes.node_agent", str(self.root), str(folder), member.instance, RUN],
            env={**base, "AWS_EC2_METADATA_SERVICE_ENDPOINT": url, "SPOTPROOF_ADDRESS": address},
            stdout=log,
            stderr=log,
            cwd=ROOT,
        )
        trainer = subprocess.Popen(
            [sys.executable, "-m", "spotproof.cli.main", "run", "--"],
            env={**base, "SPOTPROOF_RUNTIME_DIR": str(folder / "run"), "SPOTPROOF_RUN": RUN},
            stdout=log,
            stderr=log,
            cwd=ROOT,
        )
        return Machine(
            instance=member.instance,
            slot=member.slot,
            incarnation=member.incarnation,
            folder=folder,
            imds=imds,
            agent=agent,
            trainer=trainer,
        )

    def member(self, rank: int) -> Machine:
        """The machine that has this node's rank in the newest membership."""
        name = members_of(self.sealed())[rank].node
        return next(machine for machine in self.launched if machine.instance == name)

    def promote(self) -> None:
        """What every claim and the sweep do first: who has joined is the holder."""
        slots = Slots(self.table)
        joined = {member.node: member for member in members_of(self.sealed())}
        for slot in sorted(self.machines):
            seen = slots.read(RUN, slot)
            if seen is not None and seen.successor_instance in joined:
                slots.promote(RUN, slot, seen.incarnation, instance=str(seen.successor_instance))

    def interrupt(self, *slots: int, in_s: float = 60.0) -> float:
        """EC2 takes these slots' machines: metadata, one order for all, claims. Returns the deadline."""
        self.promote()
        deadline = int(time.time() + in_s)
        at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(deadline))
        heads = Heads(self.table)
        head = heads.read(RUN)
        assert head is not None
        order = FlushOrder(
            order=f"order-{deadline}-{slots[0]}",
            kind=NoticeKind.INTERRUPTION,
            deadline_at=deadline,
            leavers=frozenset(slots),
        )
        heads.order_flush(head, order)
        for slot in slots:
            old = self.machines[slot]
            old.imds.answers[ACTION] = 200, f'{{"action":"terminate","time":"{at}"}}'
            self.launch(slot, lost=old.instance, deadline_at=deadline)
        return deadline

    def sealed(self) -> Generation | None:
        """The newest membership."""
        memberships = Memberships(self.table)
        newest = memberships.newest(RUN)
        return None if newest is None else memberships.generation(RUN, newest.generation)

    def generation(self) -> int:
        """Its number."""
        newest = Memberships(self.table).newest(RUN)
        return 0 if newest is None else newest.generation

    def pointer(self) -> PointerItem | None:
        """What is committed."""
        return Pointers(self.table).read(RUN)

    def node(self, machine: Machine) -> Node | None:
        """The newest beat of a machine."""
        return Nodes(self.table).read(RUN, machine.slot, machine.incarnation)

    def until(self, holds: Callable[[], object], what: str, *, limit_s: float = 180.0) -> None:
        """Wait; fails with the machines' logs."""
        until = time.monotonic() + limit_s
        while not holds():
            assert time.monotonic() < until, f"it does not happen: {what}\n{self.logs()}"
            time.sleep(0.05)

    def logs(self) -> str:
        """The ends of all logs, and what the table says."""
        texts = [(m.instance, (m.folder / "log").read_text(errors="replace")[-3000:]) for m in self.launched]
        state = f"{Memberships(self.table).newest(RUN)} {self.sealed()} {self.pointer()}"
        return state + "\n" + "\n".join(f"== {name}\n{text}" for name, text in texts)

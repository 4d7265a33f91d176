"""The real control plane over a table in memory and a fake account, on a clock that tests move."""

from __future__ import annotations

import json
import logging
from collections.abc import Container, Mapping
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any, Final

from lambdas.apply import Effects
from lambdas.effects.fleet import Fleet
from lambdas.effects.machines import Machines
from lambdas.effects.meter import Meter
from lambdas.effects.notify import Notices
from lambdas.effects.queue import RepairQueue
from lambdas.effects.quotes import Quotes
from lambdas.effects.ssm import Commands
from lambdas.effects.stores import Stores, stores_of
from lambdas.facts import Reader
from lambdas.wiring import Control, Parts
from spotproof.contract.items import (
    NO_INSTANCE,
    Generation,
    Head,
    History,
    Member,
    Node,
    PointerItem,
    Slot,
    pointer_rank,
)
from spotproof.contract.metrics import Metric
from spotproof.contract.runspec import MarketPolicy, Placement, Pools, RunSpec
from spotproof.contract.settings import ControlSettings
from spotproof.contract.states import Cause, FlushOutcome, NodePhase, RunStatus
from spotproof.store.folder import FolderObjects
from spotproof.store.local import IN_MEMORY, LocalTable
from spotproof.store.table import BulkTable
from tests.fakes.ec2 import FakeEc2, FakeSns, FakeSqs, FakeSsm

STACK: Final = "prod"
REGION: Final = "us-east-1"
ACCOUNT: Final = "111122223333"
START: Final = 1_777_888_800.0  # 2026-05-04T10:00:00Z
SUBNETS: Final = {"subnet-a": "us-east-1a", "subnet-b": "us-east-1b", "subnet-c": "us-east-1c"}
IMAGE: Final = "registry.example/train@sha256:" + "0" * 64
SETTINGS: Final = ControlSettings(
    stack=STACK,
    table="table",
    bucket="bucket",
    region=REGION,
    account=ACCOUNT,
    document="flush",
    document_version="3",
    topic="arn:aws:sns:us-east-1:111122223333:topic",
    repair_queue="https://queue.example/repair",
)


@dataclass(slots=True)
class Clock:
    """Time that only tests move."""

    now: float = START

    def __call__(self) -> float:
        return self.now

    def advance(self, seconds: float) -> None:
        self.now += seconds


class CountingMeter(Meter):
    """A meter that keeps what it was told, and the lines that it wrote."""

    def __init__(self) -> None:
        super().__init__(STACK, write=self._keep)
        self.lines: list[str] = []
        self.seen: list[tuple[Metric, float, str]] = []

    def add(self, metric: Metric, value: float, *, cause: str = "", family: str = "", zone: str = "") -> None:
        self.seen.append((metric, value, cause))
        super().add(metric, value, cause=cause, family=family, zone=zone)

    def _keep(self, line: str) -> None:
        self.lines.append(line)

    def total(self, metric: Metric) -> float:
        return sum(value for one, value, _ in self.seen if one is metric)


@dataclass(slots=True)
class World:
    """One stack: `deliver` is a Lambda invocation, `tick` the schedule with the repair queue behind it."""

    clock: Clock = field(default_factory=Clock)
    ec2: FakeEc2 = field(init=False)
    ssm: FakeSsm = field(default_factory=FakeSsm)
    sns: FakeSns = field(default_factory=FakeSns)
    sqs: FakeSqs = field(default_factory=FakeSqs)
    table: BulkTable = field(init=False)
    meter: CountingMeter = field(default_factory=CountingMeter)
    folder: Path | None = None
    control: Control = field(init=False)
    stores: Stores = field(init=False)
    _ids: Any = field(default_factory=lambda: count(1))

    def __post_init__(self) -> None:
        self.ec2 = FakeEc2(clock=self.clock, zones=dict(SUBNETS))
        self.table = LocalTable(IN_MEMORY)
        self.stores = stores_of(self.table, FolderObjects(self.folder or Path("/nonexistent")))
        self.control = self.make_control(self.table, self.ec2, self.ssm, self.sqs)

    def make_control(self, table: BulkTable, ec2: Any, ssm: Any, sqs: Any) -> Control:
        stores = stores_of(table, self.stores.objects)
        machines = Machines(ec2)
        effects = Effects(
            stores=stores,
            fleet=Fleet(ec2),
            machines=machines,
            quotes=Quotes(ec2),
            commands=Commands(ssm, stack=STACK, document=SETTINGS.document, version=SETTINGS.document_version),
            notices=Notices(self.sns, SETTINGS.topic, stack=STACK),
            meter=self.meter,
            queue=RepairQueue(sqs, SETTINGS.repair_queue),
        )
        reader = Reader(
            stores=stores,
            machines=machines,
            stack=STACK,
            region=REGION,
            launches_per_hour=SETTINGS.launches_per_hour,
        )
        return Control(
            Parts(
                settings=SETTINGS,
                reader=reader,
                effects=effects,
                queue=RepairQueue(sqs, SETTINGS.repair_queue),
                log=logging.getLogger("tests.control"),
                clock=self.clock,
                owner=lambda: f"owner-{next(self._ids)}",
            )
        )

    # ----------------------------------------------------------------------------------------------- operators
    def submit(
        self,
        run: str = "mini",
        *,
        slots: int = 1,
        types: tuple[str, ...] = ("g5.xlarge", "g6.xlarge"),
        market: MarketPolicy = MarketPolicy.SPOT,
        pools: Pools | None = None,
        **fields: Any,
    ) -> RunSpec:
        """What `spotproof submit` writes: spec, empty slots, head, the sweep's entry due now."""
        spec = RunSpec(
            run=run,
            image=IMAGE,
            command=("python", "train.py"),
            pools=pools or Pools(types=types, market=market),
            slots=slots,
            placement=Placement(
                template="lt-0a0a0a0a0a0a0a0a0",
                template_version="3",
                subnets=tuple(f"{subnet}={zone}" for subnet, zone in SUBNETS.items()),
            ),
            **fields,
        )
        now = int(self.clock())
        self.stores.specs.create(spec)
        head = Head(
            run=run,
            status=RunStatus.ACTIVE,
            slots=slots,
            standby=spec.standby,
            least=spec.least if spec.elastic else 0,
            status_at=now,
            submitted_at=now,
        )
        self.stores.heads.create(head)
        self.stores.slots.create(run, spec.places)
        self.stores.live.hasten(run, due_at=now)
        return spec

    def started(self, run: str = "mini", **fields: Any) -> list[str]:
        """A run whose nodes have joined: its instances by slot."""
        self.submit(run, **fields)
        self.tick()
        self.boot()
        self.join(run)
        self.tick()
        return [str(slot.holder_instance) for slot in self.slots(run)]

    def pause(self, run: str, status: RunStatus = RunStatus.PAUSED) -> None:
        self.stores.heads.move(self.head(run), status, cause=Cause.USER, now=int(self.clock()))

    # ------------------------------------------------------------------------------------------------- delivery
    def deliver(self, *events: Mapping[str, Any], control: Control | None = None) -> dict[str, Exception]:
        """One invocation with these events as its batch."""
        bodies = {f"message-{number}": json.dumps(event) for number, event in enumerate(events)}
        return (control or self.control).handle(bodies, until=self.clock() + 60)

    def tick(self, *, after_s: float = 60) -> dict[str, Exception]:
        """A minute passes; the sweep enqueues what is due and repair works on it."""
        self.clock.advance(after_s)
        self.control.sweep()
        failures: dict[str, Exception] = {}
        for number, body in enumerate(self.sqs.take()):
            failures |= self.control.handle({f"repair-{number}": body}, until=self.clock() + 60)
        return failures

    # ---------------------------------------------------------------------------------------------------- nodes
    def boot(self) -> None:
        for instance in self.ec2.instances.values():
            if instance.state == "pending":
                instance.state = "running"

    def beat(self, run: str, instance: str, phase: NodePhase = NodePhase.TRAINING, **fields: Any) -> None:
        """A heartbeat as the node's agent writes it."""
        member = self.member(instance)
        node = Node(
            run=run,
            slot=member.slot,
            incarnation=member.incarnation,
            instance=instance,
            phase=phase,
            beat_at=int(self.clock()),
            **fields,
        )
        self.stores.nodes.beat(node)

    def beat_all(self, run: str = "mini", **fields: Any) -> None:
        for slot in self.slots(run):
            for instance in (slot.holder_instance, slot.successor_instance):
                if instance not in (None, NO_INSTANCE) and self.ec2.instances[str(instance)].is_alive:
                    self.beat(run, str(instance), **fields)

    def join(self, run: str = "mini", *, step: int | None = None, beside: Container[int] = frozenset()) -> Generation:
        """Seal the next membership: successors where there are any, holders elsewhere; without the slots `beside`."""
        members = tuple(
            f"{slot.slot}:{slot.successor_incarnation}:{slot.successor_instance}"
            if slot.successor_instance not in (None, NO_INSTANCE)
            else f"{slot.slot}:{slot.holder_incarnation}:{slot.holder_instance}"
            for slot in self.slots(run)
            if slot.slot not in beside
        )
        newest = self.stores.memberships.newest(run)
        pointer = self.stores.pointers.read(run)
        sealed = Generation(
            run=run,
            generation=1 if newest is None else newest.generation + 1,
            members=members,
            sealed_at=int(self.clock()),
            start_step=step if pointer is None else pointer.step,
        )
        return self.stores.memberships.seal(sealed, pointer=pointer)

    def commit(self, run: str, step: int) -> PointerItem:
        newest = self.stores.memberships.newest(run)
        generation = 0 if newest is None else newest.generation
        pointer = PointerItem(
            run=run,
            generation=generation,
            step=step,
            rank=pointer_rank(generation, step),
            manifest_key=f"manifest-{generation}-{step}",
            manifest_digest="0" * 64,
            committed_at=int(self.clock()),
        )
        return self.stores.pointers.rise(pointer, own_generation=generation)

    def flushed(self, run: str, instance: str, step: int) -> None:
        """The node has flushed and drains."""
        self.beat(run, instance, NodePhase.DRAINING, flush=FlushOutcome.COMMITTED, flush_step=step, step=step)

    # -------------------------------------------------------------------------------------------------- looking
    def slots(self, run: str = "mini") -> tuple[Slot, ...]:
        return self.stores.slots.list(run)

    def slot(self, run: str = "mini", number: int = 0) -> Slot:
        return self.slots(run)[number]

    def head(self, run: str = "mini") -> Head:
        head = self.stores.heads.read(run)
        assert head is not None
        return head

    def member(self, instance: str) -> Member:
        member = self.stores.members.read(instance)
        assert member is not None, f"{instance} has no INSTANCE item"
        return member

    def told(self, run: str = "mini") -> list[History]:
        return list(self.stores.histories.list(run))

    def words(self, run: str = "mini") -> list[str]:
        return [entry.what for entry in self.told(run)]


def event(detail_type: str, *, instance: str, at: float, **detail: Any) -> dict[str, Any]:
    """An EC2 event as EventBridge puts it into the queue."""
    from datetime import UTC, datetime

    moment = datetime.fromtimestamp(at, tz=UTC)
    return {
        "version": "0",
        "id": f"event-{instance}-{detail_type}-{at}",
        "detail-type": detail_type,
        "source": "aws.ec2",
        "account": ACCOUNT,
        "time": moment.strftime("%Y-%m-%dT%H:%M:%SZ"),
        "region": REGION,
        "resources": [f"arn:aws:ec2:us-east-1b:instance/{instance}"],
        "detail": {"instance-id": instance, **detail},
    }


def notice(instance: str, at: float, action: str = "terminate") -> dict[str, Any]:
    """A Spot interruption warning."""
    return event("EC2 Spot Instance Interruption Warning", instance=instance, at=at, **{"instance-action": action})


def advice(instance: str, at: float) -> dict[str, Any]:
    """A rebalance recommendation."""
    return event("EC2 Instance Rebalance Recommendation", instance=instance, at=at)


def state(instance: str, at: float, name: str) -> dict[str, Any]:
    """A state change."""
    return event("EC2 Instance State-change Notification", instance=instance, at=at, state=name)

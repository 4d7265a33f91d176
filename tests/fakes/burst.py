"""A burst of notices on a whole stack in virtual time: the real handlers behind queues and pollers as Lambda has them.

Used by benchmarks/burst.py at full size, and by a test at a small one.
"""

from __future__ import annotations

import io
import json
import random
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from aws_lambda_powertools import Logger

from lambdas.effects.meter import Meter
from lambdas.effects.ssm import PATIENCE, Commands
from lambdas.effects.stores import Stores, stores_of
from lambdas.wiring import Control
from spotproof.contract import names
from spotproof.contract.events import Queue
from spotproof.contract.items import NO_INSTANCE, Generation, Head, Launch, Member, Node, Slot
from spotproof.contract.names import Function, FunctionRow
from spotproof.contract.runspec import Placement, Pools, RunSpec
from spotproof.contract.states import Cause, FlushOutcome, LaunchState, Market, NodePhase, RunStatus
from spotproof.store.folder import FolderObjects
from tests.fakes.control import IMAGE, SETTINGS, STACK, SUBNETS, World, notice
from tests.fakes.ec2 import FakeEc2, FakeSsm
from tests.fakes.virtual import Bucket, Region, Task, VirtualClient, VirtualErrands, VirtualTable

START = 1_777_888_800.0
TYPES = ("g5.xlarge", "g6.xlarge")
COPIES, CRASHES = 3, 0.01
LAMBDA_S, VISIBILITY_S, RECEIVES = 60.0, 360.0, names.MAX_RECEIVES
POLLERS, POLLERS_PER_S = 5, 5.0  # an SQS mapping begins with 5 and adds 300 a minute
_SUBMIT = Cause.SUBMIT
_LOG: Any = Logger(service="burst", stream=io.StringIO())
NOTICE_S, SWEEPS = 120.0, (60.0, 121.0)
END_S = 180.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """How large the burst is: `large` nodes are of one run, the others are spread evenly."""

    notices: int
    runs: int
    large: int
    seed: int

    def slots(self) -> dict[str, int]:
        rest, others = self.notices - self.large, self.runs - 1
        even = {f"run-{number:03d}": rest // others + (number < rest % others) for number in range(others)}
        return {"large": self.large, **even}


class Fleets:
    """One fake EC2 for each run, so that describing a run does not look at all the others."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.by_run: dict[str, FakeEc2] = {}
        self._clock, self._names = clock, 0

    def of(self, run: str) -> FakeEc2:
        if run not in self.by_run:
            self.by_run[run] = FakeEc2(clock=self._clock, zones=dict(SUBNETS), invisible_s=2.0)
        return self.by_run[run]

    def asked(self) -> Counter[str]:
        """CreateFleet calls by run."""
        calls = (request for fleet in self.by_run.values() for name, request in fleet.calls if name == "create_fleet")
        return Counter(run_of(request) for request in calls)

    def launched(self) -> list[str]:
        """What was launched since the burst began."""
        all_of_them = (one for fleet in self.by_run.values() for one in fleet.instances.values())
        return [one.instance for one in all_of_them if one.launched_at > START]

    def name(self) -> str:
        self._names += 1
        return f"i-{self._names:017x}"

    def create_fleet(self, **request: Any) -> Any:
        fleet = self.of(run_of(request))
        fleet.names = [self.name() for _ in range(request["TargetCapacitySpecification"]["TotalTargetCapacity"])]
        return fleet.create_fleet(**request)

    def describe_instances(self, **request: Any) -> Any:
        wanted = {one["Name"]: one["Values"] for one in request["Filters"]}
        return self.of(wanted["tag:spotproof:run"][0]).describe_instances(**request)

    def __getattr__(self, name: str) -> Any:
        """Prices and scores are the region's, not a run's."""
        return getattr(self.of(""), name)

    def terminate_instances(self, *, InstanceIds: list[str]) -> Any:  # noqa: N803 - AWS's name
        for fleet in self.by_run.values():
            ours = [one for one in InstanceIds if one in fleet.instances]
            if ours:
                fleet.terminate_instances(InstanceIds=ours)
        return {}


def run_of(request: Mapping[str, Any]) -> str:
    tags = next(one["Tags"] for one in request["TagSpecifications"] if one["ResourceType"] == "instance")
    return str(next(tag["Value"] for tag in tags if tag["Key"] == "spotproof:run"))


@dataclass(slots=True)
class Line:
    """A queue and the pollers that Lambda puts before its function."""

    row: FunctionRow
    messages: list[tuple[str, int]] = field(default_factory=list)
    at_work: int = 0
    began_at: float | None = None


@dataclass(slots=True)
class Burst:
    """The burst, played once."""

    size: Size
    region: Region = field(init=False)
    table: VirtualTable = field(init=False)
    stores: Stores = field(init=False)
    fleets: Fleets = field(init=False)
    ec2: VirtualClient = field(init=False)
    ssm: VirtualClient = field(init=False)
    lines: dict[Queue, Line] = field(init=False)
    _world: World = field(default_factory=World)
    invoked: Counter[str] = field(default_factory=Counter)
    heard_by_s: float = 0.0

    def __post_init__(self) -> None:
        self.region = Region(random.Random(self.size.seed), now=START)
        clock = self.region.clock
        self.table = VirtualTable(self.region)
        self.stores = stores_of(self.table, FolderObjects(Path("/nonexistent")))
        self.fleets = Fleets(clock)
        self.ec2 = VirtualClient(
            self.region,
            self.fleets,
            _ec2_s,
            {
                "create_fleet": Bucket(clock, size=50, per_s=5),
                "describe_instances": Bucket(clock, size=100, per_s=20),
                "terminate_instances": Bucket(clock, size=100, per_s=5),
            },
        )
        limit = {"send_command": Bucket(clock, size=20, per_s=20)}
        self.ssm = VirtualClient(self.region, FakeSsm(), _always(0.15), limit, "ThrottlingException", tries=1)
        self.lines = {row.queue: Line(row) for row in names.FUNCTIONS if row.queue is not None}

    # ------------------------------------------------------------------------------------------------------ before
    def begin(self) -> list[str]:
        """A stack at work: every slot has its holder, training and beating. Returns the instances."""
        held: list[str] = []
        inner = stores_of(self.table.inner, self.stores.objects)
        for run, slots in self.size.slots().items():
            held += self._run(inner, run, slots)
        return held

    def _run(self, inner: Stores, run: str, slots: int) -> list[str]:
        now = int(START)
        placement = Placement(
            template="lt-0a0a0a0a0a0a0a0a0",
            template_version="3",
            subnets=tuple(f"{subnet}={zone}" for subnet, zone in SUBNETS.items()),
        )
        spec = RunSpec(
            run=run,
            image=IMAGE,
            command=("python", "train.py"),
            pools=Pools(types=TYPES),
            slots=slots,
            placement=placement,
        )
        inner.specs.create(spec)
        inner.heads.create(Head(run=run, status=RunStatus.ACTIVE, slots=slots, status_at=now))
        inner.slots.create(run, slots)
        inner.live.hasten(run, due_at=now + 45)
        zones = list(SUBNETS.values())
        held = []
        for number in range(slots):
            # A run's nodes come from two pools, which is why they die together.
            kind, zone = TYPES[number % 2], zones[len(run) % 3]
            instance = self.fleets.name()
            tags = {"spotproof:stack": STACK, "spotproof:run": run, "spotproof:launch": "1"}
            self.fleets.of(run).tag(instance, instance_type=kind, zone=zone, tags=tags)
            slot = inner.slots.claim(Slot(run=run, slot=number, incarnation=0), NO_INSTANCE, cause=_SUBMIT, now=now)
            inner.slots.bind(run, number, slot.incarnation, instance=instance, launch=1, now=now)
            inner.slots.promote(run, number, slot.incarnation, instance=instance)
            inner.members.put(
                Member(
                    instance=instance,
                    run=run,
                    slot=number,
                    incarnation=1,
                    launch=1,
                    instance_type=kind,
                    zone=zone,
                    market=Market.SPOT,
                    launched_at=now,
                )
            )
            held.append(instance)
        members = tuple(f"{number}:1:{instance}" for number, instance in enumerate(held))
        inner.memberships.seal(Generation(run=run, generation=1, members=members, sealed_at=now), pointer=None)
        wants = tuple(f"{number}:1" for number in range(slots))
        first = Launch(
            run=run,
            launch=1,
            state=LaunchState.INTENDED,
            wants=wants,
            request="{}",
            token="0" * 64,
            market=Market.SPOT,
            made_at=now,
        )
        inner.launches.intend(first)
        inner.launches.answer(run, 1, instances=tuple(held), errors=(), now=now)
        inner.launches.close(run, 1)
        self._beat(inner, run)
        return held

    def _beat(self, inner: Stores, run: str) -> None:
        """Everybody trains until the burst, of which every node's own metadata tells: then all of them flush."""
        flushes = self.region.now > START
        for slot in inner.slots.list(run):
            if self._lives(run, str(slot.holder_instance)):
                inner.nodes.beat(
                    Node(
                        run=run,
                        slot=slot.slot,
                        incarnation=int(slot.holder_incarnation or 0),
                        instance=str(slot.holder_instance),
                        phase=NodePhase.FLUSHING if flushes else NodePhase.TRAINING,
                        flush=FlushOutcome.PENDING if flushes else None,
                        beat_at=int(self.region.now),
                    )
                )

    def _lives(self, run: str, instance: str) -> bool:
        found = self.fleets.of(run).instances.get(instance)
        return found is not None and found.is_alive

    # ------------------------------------------------------------------------------------------------------- burst
    def play(self) -> None:
        held = self.begin()
        bodies = [json.dumps(notice(instance, START)) for instance in held for _ in range(COPIES)]
        self.region.chance.shuffle(bodies)
        line = self.lines[Queue.URGENT]
        line.messages = [(body, 0) for body in bodies]
        line.began_at = START
        for sweep_at in SWEEPS:
            self.region.at(START + sweep_at, self._sweep)
        self.region.at(START + NOTICE_S, self._die)
        self.region.at(START, lambda: self._poll(line))
        self.region.run(START + END_S)

    def _poll(self, line: Line) -> None:
        """Hand out batches as far as pollers and the stack's concurrency allow."""
        if line.began_at is None:
            line.began_at = self.region.now
        pollers = POLLERS + POLLERS_PER_S * (self.region.now - line.began_at)
        while line.messages and line.at_work < min(pollers, line.row.max_concurrency):
            batch = [line.messages.pop() for _ in range(min(line.row.batch_size, len(line.messages)))]
            self._invoke(line, batch)
        if line.messages:
            self.region.at(self.region.now + 0.2, lambda: self._poll(line))

    def _invoke(self, line: Line, batch: list[tuple[str, int]]) -> None:
        bodies = {str(number): body for number, (body, _) in enumerate(batch)}
        until = self.region.now + LAMBDA_S
        line.at_work += 1
        self.invoked[line.row.function.value] += 1
        dies_at = self.region.chance.randint(1, 15) if self.region.chance.random() < CRASHES else None

        def ended(task: Task) -> None:
            line.at_work -= 1
            failed = list(bodies) if task.killed else list(task.result)
            self.invoked["killed"] += task.killed
            again = [(batch[int(key)][0], batch[int(key)][1] + 1) for key in failed]
            self.region.at(self.region.now + VISIBILITY_S, lambda: self._again(line, again))
            if line.row.queue is Queue.URGENT:
                self.heard_by_s = self.region.now - START
            self._poll(line)

        self.region.spawn(lambda: self._control().handle(bodies, until=until), ended, dies_at=dies_at)

    def _again(self, line: Line, messages: list[tuple[str, int]]) -> None:
        line.messages += [one for one in messages if one[1] < RECEIVES]
        self._poll(line)

    def _sweep(self) -> None:
        inner = stores_of(self.table.inner, self.stores.objects)
        for run in self.size.slots():
            self._beat(inner, run)
        self.invoked[Function.SWEEP.value] += 1
        self.region.spawn(lambda: self._control().sweep(), _nothing)

    def _die(self) -> None:
        for fleet in self.fleets.by_run.values():
            for one in fleet.instances.values():
                if one.launched_at <= START:
                    one.state = "terminated"

    # ------------------------------------------------------------------------------------------------------ queues
    def send_message(self, *, QueueUrl: str, MessageBody: str, DelaySeconds: int) -> Any:  # noqa: N803 - AWS's names
        self.invoked[f"put off to {QueueUrl.rpartition('/')[2]}"] += 1
        self.region.at(self.region.now + DelaySeconds, lambda: self._arrive([MessageBody]))
        return {}

    def send_message_batch(self, *, QueueUrl: str, Entries: list[dict[str, str]]) -> Any:  # noqa: N803 - AWS's names
        self.invoked[f"due to {QueueUrl.rpartition('/')[2]}"] += len(Entries)
        self.region.at(self.region.now, lambda: self._arrive([entry["MessageBody"] for entry in Entries]))
        return {"Successful": Entries}

    def _arrive(self, bodies: list[str]) -> None:
        line = self.lines[Queue.REPAIR]
        line.messages += [(body, 0) for body in bodies]
        self._poll(line)

    def stores_now(self) -> Stores:
        """The stores without the clock: for looking, before and after."""
        return stores_of(self.table.inner, self.stores.objects)

    def wants(self, run: str) -> list[str]:
        """Every (slot, incarnation) that launches were recorded for and that brought an instance."""
        launches = self.stores_now().launches.recent(run)
        return [f"{run}:{want}" for one in launches for want in one.wants[: len(one.instances)]]

    def _control(self) -> Control:
        """One execution environment's pipeline; the settings are those of a stack of this size."""
        sqs = VirtualClient(self.region, self, _always(0.01), {})
        parts = self._world.make_control(self.table, self.ec2, self.ssm, sqs)._parts
        patience = replace(PATIENCE, clock=self.region.clock, sleep=self.region.nap, chance=self.region.chance.random)
        version = SETTINGS.document_version
        commands = Commands(self.ssm, stack=STACK, document=SETTINGS.document, version=version, patience=patience)
        errands = VirtualErrands(self.region)
        effects = replace(parts.effects, commands=commands, meter=Meter(STACK), errands=errands)
        allowed = 5 * self.size.runs
        return Control(
            replace(
                parts,
                settings=replace(SETTINGS, launches_per_hour=allowed),
                reader=replace(parts.reader, launches_per_hour=allowed),
                effects=effects,
                log=_LOG,
                clock=self.region.clock,
                owner=lambda: f"owner-{self.region.chance.random()}",
            )
        )


def _always(seconds: float) -> Callable[[str, Mapping[str, Any]], float]:
    return lambda *_: seconds


def _nothing(_: Task) -> None:
    return None


def _ec2_s(name: str, request: Mapping[str, Any]) -> float:
    """A fleet takes a second and a half, and longer the larger it is; the others a fifth of a second."""
    if name != "create_fleet":
        return 0.2
    return 1.5 + 0.01 * float(request["TargetCapacitySpecification"]["TotalTargetCapacity"])

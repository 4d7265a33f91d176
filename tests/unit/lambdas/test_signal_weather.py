"""Every kind of signal in seeded weather: lost, doubled and late events, handlers killed between any two effects.

Nodes are simple (they boot within a minute, flush when an order names them), but when a successor joins is decided by
the agent's own code. After every minute the books must be right, and after the weather the run is whole.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import pytest

from lambdas.effects.stores import stores_of
from lambdas.wiring import Control
from spotproof.agent.heartbeat import Place
from spotproof.agent.membership import incumbent_of, waiting_for
from spotproof.contract import tags
from spotproof.contract.items import NO_INSTANCE, Generation, Slot
from spotproof.contract.orders import slots_of
from spotproof.contract.runspec import Signals
from spotproof.contract.states import FlushOutcome, NodePhase, RunStatus
from spotproof.errors import Superseded
from tests.fakes.control import STACK, World, advice, event, notice, state
from tests.fakes.dict_table import DictTable
from tests.fakes.ec2 import Instance
from tests.fakes.fuse import Fuse, FusedClient, FusedTable, Killed

MINUTES, CALM_MINUTES = 60, 90
SIGNALS = Signals(prewarm=True, prewarm_keep_s=600, storm_after=3, move_lead_s=600)
SEEDS = 6


@dataclass(slots=True)
class Weather:
    """One seeded history of a run and its signals."""

    seed: int
    slots: int
    world: World = field(default_factory=World)
    members: dict[int, str] = field(default_factory=dict)
    doomed: dict[str, float] = field(default_factory=dict)  # when EC2 ends an instance
    mail: list[dict[str, Any]] = field(default_factory=list)
    chance: random.Random = field(init=False)
    trained: int = 0
    kills: int = 0
    _owned: int = 0

    def __post_init__(self) -> None:
        self.chance = random.Random(self.seed)
        self.world.table = DictTable()
        self.world.stores = stores_of(self.world.table, self.world.stores.objects)
        self.world.control = self.world.make_control(self.world.table, self.world.ec2, self.world.ssm, self.world.sqs)

    def play(self) -> None:
        self.world.submit(slots=self.slots, signals=SIGNALS)
        for minute in range(MINUTES + CALM_MINUTES):
            self.minute(is_calm=minute >= MINUTES)

    def minute(self, *, is_calm: bool) -> None:
        if not is_calm and self.chance.random() < 0.5:
            self.chance.choice(_HAPPENS)(self)
        if is_calm:
            self.world.ec2.refused = {}
        self._reclaim()
        self._post(is_calm=is_calm)
        self._invoke(self.world.tick, is_calm=is_calm)
        if not is_calm:
            self.world.sqs.take()
        self._live()
        self._check()

    # ------------------------------------------------------------------------------------------------ what happens
    def send(self, made: dict[str, Any]) -> None:
        """An event: one in five is lost, one in three comes twice."""
        if self.chance.random() < 0.8:
            self.mail += [made] * (2 if self.chance.random() < 0.33 else 1)

    def node(self) -> Instance | None:
        """Somebody of the run who lives."""
        alive = [one for one in self.world.ec2.alive() if one.tags.get(tags.RUN) == "mini" and one.state == "running"]
        return self.chance.choice(alive) if alive else None

    def holder(self) -> Instance | None:
        alive = [one for one in self.world.ec2.alive() if one.instance in self.members.values()]
        return self.chance.choice(alive) if alive else None

    def take(self, one: Instance, after_s: float) -> None:
        self.doomed[one.instance] = min(self.doomed.get(one.instance, 10**12), self.world.clock() + after_s)

    def own(self) -> Instance:
        """A person starts an instance and tags it for the run."""
        self._owned += 1
        name = f"i-0f{self._owned:015x}"
        return self.world.ec2.tag(name, tags={tags.STACK: STACK, tags.RUN: "mini"})

    # ------------------------------------------------------------------------------------------------- a minute
    def _reclaim(self) -> None:
        for name, at in self.doomed.items():
            one = self.world.ec2.instances[name]
            if at <= self.world.clock() and one.state != "terminated":
                one.state = "terminated"
                self.send(state(name, self.world.clock(), "terminated"))

    def _post(self, *, is_calm: bool) -> None:
        """What has arrived by now, in any order; the rest comes a minute later."""
        self.chance.shuffle(self.mail)
        late = [] if is_calm else [one for one in self.mail if self.chance.random() < 0.2]
        now, self.mail = [one for one in self.mail if one not in late], late
        if now:
            self._invoke(lambda: self.world.deliver(*now), is_calm=is_calm)

    def _invoke(self, work: Callable[[], object], *, is_calm: bool) -> None:
        if is_calm or self.chance.random() < 0.7:
            work()
            return
        honest = self.world.control
        with contextlib.suppress(Killed):
            self.world.control = self._victim()
            work()
        self.world.control = honest

    def _victim(self) -> Control:
        self.kills += 1
        fuse = Fuse(at=self.chance.randint(1, 30), after=self.chance.random() < 0.5)
        return self.world.make_control(
            FusedTable(self.world.table, fuse), FusedClient(self.world.ec2, fuse), self.world.ssm, self.world.sqs
        )

    def _live(self) -> None:
        self.world.boot()
        slots = self.world.slots()
        for slot in slots:
            self._beat(slot)
        self._seal(slots)
        alive = {one.instance for one in self.world.ec2.alive()}
        self.trained += len(self.members) == self.slots and set(self.members.values()) <= alive

    def _beat(self, slot: Slot) -> None:
        for instance in {slot.holder_instance, slot.successor_instance, self.members.get(slot.slot)}:
            member = self.world.stores.members.read(instance or "")
            machine = self.world.ec2.instances.get(instance or "")
            if member is None or member.slot != slot.slot or machine is None or not machine.is_alive:
                continue
            if self.members.get(slot.slot) != instance:
                self.world.beat("mini", machine.instance, NodePhase.PARKED)
            elif slot.slot in self._leavers() or machine.instance in self.doomed:
                self.world.beat("mini", machine.instance, NodePhase.DRAINING, flush=FlushOutcome.COMMITTED)
            elif not self._has_drained(slot.slot, member.incarnation):
                self.world.beat("mini", machine.instance, NodePhase.TRAINING, generation=1)

    def _leavers(self) -> frozenset[int]:
        head = self.world.head()
        stands = (head.order_deadline_at or 0) > self.world.clock() - 180
        return slots_of(head.order_leavers or "0") if stands else frozenset()

    def _has_drained(self, slot: int, incarnation: int) -> bool:
        node = self.world.stores.nodes.read("mini", slot, incarnation)
        return node is not None and node.phase is NodePhase.DRAINING

    def _seal(self, slots: tuple[Slot, ...]) -> None:
        sealed = self._sealed()
        texts = [self._joins(slot, sealed) for slot in slots]
        named = {number: text.split(":")[2] for number, text in enumerate(texts) if text}
        if len(named) < self.slots or named == self.members:
            return
        for slot in slots:
            self._may_be_superseded(slot, named[slot.slot])
        number = 1 if sealed is None else sealed.generation + 1
        members = tuple(text for text in texts if text)
        made = Generation(run="mini", generation=number, members=members, sealed_at=int(self.world.clock()))
        self.world.stores.memberships.seal(made, pointer=None)
        self.members = named

    def _may_be_superseded(self, slot: Slot, successor: str) -> None:
        """A node that trains is never put out of its place by another one before its deadline."""
        before = self.members.get(slot.slot)
        member = self.world.stores.members.read(before or "")
        if before in (None, successor) or member is None or not self.world.ec2.instances[before].is_alive:
            return
        node = self.world.stores.nodes.read("mini", slot.slot, member.incarnation)
        is_well = node is not None and node.phase is NodePhase.TRAINING
        is_over = self.world.clock() >= max(slot.deadline_at or 0, slot.lost_deadline_at or 0) + 10
        assert is_over or not is_well, f"{before} was well, and {successor} has taken its place"

    def _sealed(self) -> Generation | None:
        newest = self.world.stores.memberships.newest("mini")
        return None if newest is None else self.world.stores.memberships.generation("mini", newest.generation)

    def _joins(self, slot: Slot, sealed: Generation | None) -> str:
        """Who works in the slot by the next membership: the successor if its agent lets it, else who does now."""
        successor = self.world.ec2.instances.get(slot.successor_instance or "")
        if successor is not None and successor.state == "running":
            place = Place(run="mini", slot=slot.slot, incarnation=slot.incarnation, instance=successor.instance)
            incumbent = incumbent_of(slot, place, sealed)
            beat = None
            if incumbent is not None:
                beat = self.world.stores.nodes.read("mini", slot.slot, incumbent.incarnation)
            with contextlib.suppress(Superseded):
                now = self.world.clock()
                if not waiting_for(slot=slot, place=place, holder=beat, now=now, sealed=sealed):
                    return f"{slot.slot}:{slot.incarnation}:{successor.instance}"
        standing = [] if sealed is None else [one for one in sealed.members if one.startswith(f"{slot.slot}:")]
        return standing[0] if standing else ""

    # ------------------------------------------------------------------------------------------------- the books
    def _check(self) -> None:
        ec2 = self.world.ec2
        by_hand = [one for one in ec2.terminated if tags.LAUNCH not in ec2.instances[one].tags]
        assert not by_hand, f"hand-tagged and ended: {by_hand}"
        ended = set(ec2.terminated) & set(self.members.values())
        assert not ended, f"ended while it was a member: {ended}"
        ends = [one for slot in self.world.slots() for one in (slot.holder_instance, slot.successor_instance)]
        seated = [one for one in ends if one not in (None, NO_INSTANCE)]
        assert len(set(seated)) == len(seated), f"one instance in two places: {seated}"
        ours = [one for one in ec2.instances.values() if tags.LAUNCH in one.tags]
        claims = sum(slot.incarnation for slot in self.world.slots())
        assert len(ours) <= claims, f"{len(ours)} launched for {claims} claims"

    def end(self) -> None:
        world = self.world
        assert world.head().status is RunStatus.ACTIVE, world.head().reason
        slots = world.slots()
        assert [(slot.successor_instance, slot.waits_for_notice) for slot in slots] == [(None, None)] * self.slots
        holders = {str(slot.holder_instance) for slot in slots}
        ours = {one.instance for one in world.ec2.alive() if tags.LAUNCH in one.tags and tags.RUN in one.tags}
        assert holders == set(self.members.values())
        assert holders <= {one.instance for one in world.ec2.alive()}
        assert ours <= holders, f"there and in no slot: {ours - holders}"
        assert self.trained > CALM_MINUTES // 2


# ------------------------------------------------------------------------------------------------------ what happens
def _advised(weather: Weather) -> None:
    for one in weather.world.ec2.alive() if weather.chance.random() < 0.2 else [weather.node()]:
        if one is not None:
            weather.send(advice(one.instance, weather.world.clock()))
            if weather.chance.random() < 0.3:
                weather.take(one, 600)


def _interrupted(weather: Weather) -> None:
    one = weather.node()
    if one is not None:
        weather.send(notice(one.instance, weather.world.clock()))
        weather.take(one, 120)


def _lost(weather: Weather) -> None:
    one = weather.node()
    if one is not None:
        weather.take(one, 0)


def _maintained(weather: Weather) -> None:
    one = weather.holder()
    if one is not None:
        in_s = weather.chance.choice([0, 300, 1500])
        code = weather.chance.choice(["AWS_EC2_INSTANCE_REBOOT_MAINTENANCE_SCHEDULED", "AWS_EC2_INSTANCE_RETIREMENT"])
        made = event("AWS Health Event", instance=one.instance, at=weather.world.clock())
        detail = {
            "service": "EC2",
            "eventTypeCategory": "scheduledChange",
            "eventTypeCode": code,
            "startTime": _text(weather.world.clock() + in_s),
            "affectedEntities": [{"entityValue": one.instance}, {"entityValue": "i-0ffffffffffffff01"}],
        }
        weather.send({**made, "source": "aws.health", "detail": detail})
        if weather.chance.random() < 0.5:
            weather.take(one, in_s + 60)


def _expires(weather: Weather) -> None:
    one = weather.holder()
    if one is not None:
        one.reservation = "cr-1"
        ends = weather.world.clock() + 2400
        made = event("Capacity Block Expiration Warning", instance=one.instance, at=weather.world.clock())
        weather.send({**made, "detail": {"capacity-reservation-id": "cr-1", "end-date": _text(ends)}})
        weather.take(one, 660)


def _drilled(weather: Weather) -> None:
    one = weather.holder()
    if one is not None:
        made = event("Spotproof Drill", instance=one.instance, at=weather.world.clock(), **{"notice-s": 60})
        weather.send({**made, "source": "spotproof.drill"})


def _tagged(weather: Weather) -> None:
    weather.send(_tag_event(weather.own().instance, weather.world.clock()))


def _untagged(weather: Weather) -> None:
    one = weather.node()
    if one is not None and tags.LAUNCH not in one.tags:
        del one.tags[tags.RUN]
        weather.send(_tag_event(one.instance, weather.world.clock()))


def _dry(weather: Weather) -> None:
    pools = [f"{kind}#us-east-1{zone}#spot" for kind in ("g5.xlarge", "g6.xlarge") for zone in "abc"]
    short = [pool for pool in pools if weather.chance.random() < 0.8]
    weather.world.ec2.refused = dict.fromkeys(short, "InsufficientInstanceCapacity")


def _wet(weather: Weather) -> None:
    weather.world.ec2.refused = {}


_HAPPENS: tuple[Callable[[Weather], None], ...] = (
    _advised,
    _advised,
    _interrupted,
    _interrupted,
    _lost,
    _maintained,
    _maintained,
    _expires,
    _drilled,
    _tagged,
    _untagged,
    _dry,
    _wet,
)


def _tag_event(instance: str, at: float) -> dict[str, Any]:
    made = event("Tag Change on Resource", instance=instance, at=at)
    detail = {"changed-tag-keys": [tags.RUN], "service": "ec2", "resource-type": "instance"}
    arn = f"arn:aws:ec2:us-east-1:111122223333:instance/{instance}"
    return {**made, "source": "aws.tag", "resources": [arn], "detail": detail}


def _text(at: float) -> str:
    return datetime.fromtimestamp(at, tz=UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


@pytest.mark.parametrize("seed", range(SEEDS))
def test_the_books_are_right_in_any_weather_and_the_run_is_whole_after_it(seed: int) -> None:
    weather = Weather(seed=seed, slots=1 + seed % 3)
    weather.play()
    weather.end()
    assert weather.kills > 3

"""Failback and gangs in seeded weather: pools come and go, nodes die, handlers are killed between any two effects.

The nodes here are simple: they boot within a minute, park, flush when an order names them, and a new membership is
sealed as soon as every slot has somebody for it. `tests/simulation` plays finer nodes over the rest of the protocol.
"""

from __future__ import annotations

import contextlib
import random
from dataclasses import dataclass, field

import pytest

from lambdas.effects.stores import stores_of
from lambdas.wiring import Control
from spotproof.contract.history import HistoryKind
from spotproof.contract.items import NO_INSTANCE, Generation, Slot
from spotproof.contract.orders import slots_of
from spotproof.contract.runspec import MarketPolicy, Pools
from spotproof.contract.states import Cause, FlushOutcome, NodePhase, RunStatus
from tests.fakes.control import SUBNETS, World, notice
from tests.fakes.dict_table import DictTable
from tests.fakes.ec2 import Instance
from tests.fakes.fuse import Fuse, FusedClient, FusedTable, Killed

TYPES = ("g5.xlarge", "g6.xlarge")
STORM_MINUTES, CALM_MINUTES = 50, 200
DRY_FROM = 30  # from then on no Spot pool has anything, and everybody is lost: where a run can fall back
FALLS_BACK = Pools(
    types=TYPES, market=MarketPolicy.SPOT_THEN_ON_DEMAND, fallback_after=2, cooldown_s=60, failback_after_s=300
)
GANG = Pools(types=TYPES, gang=True, gang_patience_s=180, cooldown_s=60)


def quick_world() -> World:
    """A world whose table is a dict."""
    world = World()
    world.table = DictTable()
    world.stores = stores_of(world.table, world.stores.objects)
    world.control = world.make_control(world.table, world.ec2, world.ssm, world.sqs)
    return world


@dataclass(slots=True)
class Nodes:
    """What the machines do in a minute, and who may work: `trained` counts minutes with a whole membership."""

    world: World
    slots: int
    generation: int = 0
    members: dict[int, str] = field(default_factory=dict)
    trained: int = 0

    def live(self) -> None:
        self.world.boot()
        for slot in self.world.slots():
            self._beat(slot)
        self._seal()
        alive = {one.instance for one in self.world.ec2.alive()}
        self.trained += len(self.members) == self.slots and set(self.members.values()) <= alive

    def _beat(self, slot: Slot) -> None:
        head, now = self.world.head(), self.world.clock()
        standing = head.order is not None and (head.order_deadline_at or 0) > now - 300
        leaves = standing and slot.slot in slots_of(head.order_leavers or "")
        for instance in (slot.holder_instance, slot.successor_instance):
            machine = self.world.ec2.instances.get(instance or "")
            if machine is None or not machine.is_alive or self.world.stores.members.read(machine.instance) is None:
                continue
            if self.members.get(slot.slot) != machine.instance:
                self.world.beat("mini", machine.instance, NodePhase.PARKED)
            elif leaves and slot.successor_instance is not None and not slot.waits_for_notice:
                self.world.beat("mini", machine.instance, NodePhase.DRAINING, flush=FlushOutcome.COMMITTED)
            else:
                self.world.beat("mini", machine.instance, NodePhase.TRAINING, generation=self.generation)

    def _seal(self) -> None:
        chosen = {slot.slot: self._candidate(slot) for slot in self.world.slots()}
        members = {number: one for number, one in chosen.items() if one is not None}
        named = {number: one.split(":")[2] for number, one in members.items()}
        if len(members) < self.slots or named == self.members:
            return
        self.generation += 1
        sealed = Generation(
            run="mini",
            generation=self.generation,
            members=tuple(members[number] for number in sorted(members)),
            sealed_at=int(self.world.clock()),
        )
        self.world.stores.memberships.seal(sealed, pointer=None)
        self.members = named

    def _candidate(self, slot: Slot) -> str | None:
        alive = {one.instance for one in self.world.ec2.alive() if one.state == "running"}
        if slot.successor_instance in alive and not slot.waits_for_notice:
            return f"{slot.slot}:{slot.successor_incarnation}:{slot.successor_instance}"
        if slot.holder_instance in alive and (slot.successor_instance is None or slot.waits_for_notice):
            return f"{slot.slot}:{slot.holder_incarnation}:{slot.holder_instance}"
        return None


@dataclass(slots=True)
class Storm:
    """One seeded history."""

    seed: int
    pools: Pools
    slots: int
    world: World = field(default_factory=quick_world)
    kills: int = 0
    losses: int = 0

    def play(self) -> Nodes:
        chance = random.Random(self.seed)
        self.world.submit(slots=self.slots, pools=self.pools)
        nodes = Nodes(world=self.world, slots=self.slots)
        dry_from = STORM_MINUTES if self.pools.gang else DRY_FROM
        for minute in range(STORM_MINUTES):
            self._market(chance, is_dry=minute >= dry_from)
            self._lose(chance, everybody=minute == dry_from)
            self._look(chance)
            nodes.live()
        self.world.ec2.refused = {}
        for _ in range(CALM_MINUTES):
            self.world.tick()
            nodes.live()
        return nodes

    def _market(self, chance: random.Random, *, is_dry: bool) -> None:
        if is_dry or chance.random() < 0.2:
            pools = [f"{kind}#{zone}#spot" for kind in TYPES for zone in SUBNETS.values()]
            short = pools if is_dry else [pool for pool in pools if chance.random() < 0.7]
            self.world.ec2.refused = dict.fromkeys(short, "InsufficientInstanceCapacity")

    def _lose(self, chance: random.Random, *, everybody: bool) -> None:
        alive = [one for one in self.world.ec2.alive() if one.state == "running"]
        if not alive or (chance.random() > 0.15 and not everybody):
            return
        for one in alive if everybody or chance.random() < 0.2 else [chance.choice(alive)]:
            self.losses += 1
            if one.lifecycle == "spot" and chance.random() < 0.6:
                self._notice(chance, one)
            one.state = "terminated"

    def _look(self, chance: random.Random) -> None:
        if chance.random() < 0.5:
            self.world.tick()
            return
        honest = self.world.control
        with contextlib.suppress(Killed):
            self.world.control = self._victim(chance)
            self.world.tick()
        self.world.control = honest
        self.world.sqs.take()

    def _notice(self, chance: random.Random, one: Instance) -> None:
        with contextlib.suppress(Killed):
            victim = self._victim(chance) if chance.random() < 0.4 else None
            self.world.deliver(notice(one.instance, self.world.clock()), control=victim)

    def _victim(self, chance: random.Random) -> Control:
        self.kills += 1
        fuse = Fuse(at=chance.randint(1, 40), after=chance.random() < 0.5)
        return self.world.make_control(
            FusedTable(self.world.table, fuse), FusedClient(self.world.ec2, fuse), self.world.ssm, self.world.sqs
        )


def books(storm: Storm, nodes: Nodes) -> None:
    """Every slot has its node, nothing else runs, and nobody was launched that nobody needed for long."""
    world = storm.world
    assert world.head().status is RunStatus.ACTIVE, world.head().reason
    slots = world.slots()
    assert [slot.successor_instance for slot in slots] == [None] * storm.slots
    holders = sorted(str(slot.holder_instance) for slot in slots)
    assert NO_INSTANCE not in holders
    assert sorted(one.instance for one in world.ec2.alive()) == holders
    assert sorted(nodes.members.values()) == holders
    assert nodes.trained > CALM_MINUTES // 3


@pytest.mark.parametrize("seed", range(5))
def test_a_run_that_fell_back_is_whole_and_on_spot_when_the_weather_is_over(seed: int) -> None:
    storm = Storm(seed=seed, pools=FALLS_BACK, slots=1 + seed % 3)
    books(storm, storm.play())
    assert {one.lifecycle for one in storm.world.ec2.alive()} == {"spot"}
    causes = [entry.cause for entry in storm.world.told() if entry.what == HistoryKind.CLAIMED]
    assert causes.count(Cause.FAILBACK) >= storm.slots


@pytest.mark.parametrize("seed", range(5))
def test_a_gang_is_whole_and_in_one_zone_when_the_weather_is_over(seed: int) -> None:
    storm = Storm(seed=seed, pools=GANG, slots=2 + seed % 3)
    books(storm, storm.play())
    assert len({one.zone for one in storm.world.ec2.alive()}) == 1

"""On-demand while Spot has nothing, and back to Spot at a checkpoint: through the real pipeline."""

from __future__ import annotations

from typing import Any

import pytest

from spotproof.contract.items import NO_INSTANCE
from spotproof.contract.runspec import MarketPolicy, Pools
from spotproof.contract.states import Cause, NodePhase, NoticeKind, RunStatus
from tests.fakes.control import SETTINGS, SUBNETS, World, notice

TYPES = ("g5.xlarge", "g6.xlarge")
NO_SPOT = {f"{kind}#{zone}#spot": "InsufficientInstanceCapacity" for kind in TYPES for zone in SUBNETS.values()}
AFTER_S = 600


def on_demand(world: World, *, slots: int = 1, **pools: Any) -> list[str]:
    """A run that trains on-demand, because Spot had nothing when it began."""
    world.ec2.refused = dict(NO_SPOT)
    given = {"cooldown_s": 60, "failback_after_s": AFTER_S, **pools}
    world.submit(
        slots=slots,
        pools=Pools(types=TYPES, market=MarketPolicy.SPOT_THEN_ON_DEMAND, **given),
    )
    world.tick()
    world.boot()
    world.join()
    world.beat_all()
    world.tick()
    holders = [str(slot.holder_instance) for slot in world.slots()]
    assert {world.ec2.instances[one].lifecycle for one in holders} == {"on-demand"}
    return holders


def trained(world: World, minutes: int) -> None:
    for _ in range(minutes):
        world.beat_all()
        world.tick()


def moved(world: World) -> str:
    """The successor is ready, the holder flushes, the successor joins; who holds the slot then."""
    [moving] = [slot for slot in world.slots() if slot.successor_instance is not None]
    successor, holder = str(moving.successor_instance), str(moving.holder_instance)
    world.boot()
    world.beat_all()
    world.beat("mini", successor, NodePhase.PARKED)
    world.tick()
    world.beat_all()
    world.flushed("mini", holder, 40)
    world.join()
    world.tick()
    return successor


def test_without_spot_a_run_goes_on_demand_and_back_to_spot_when_there_is_some_again() -> None:
    world = World()
    [holder] = on_demand(world)
    world.ec2.refused = {}
    trained(world, 8)
    assert world.slot().successor_instance is None, "not yet: it has been on-demand for eight minutes"
    trained(world, 4)
    slot = world.slot()
    assert (slot.holder_instance, slot.cause, slot.waits_for_notice) == (holder, Cause.FAILBACK, True)
    successor = str(slot.successor_instance)
    assert world.ec2.instances[successor].lifecycle == "spot"
    assert world.ec2.instances[holder].is_alive, "it works until its successor is ready"
    world.boot()
    world.beat("mini", holder)
    world.beat("mini", successor, NodePhase.PARKED)
    world.tick()
    world.beat("mini", successor, NodePhase.PARKED)
    assert (world.head().order_kind, world.slot().waits_for_notice) == (NoticeKind.MAINTENANCE, None)
    world.flushed("mini", holder, 40)
    world.join()
    world.tick()
    assert (world.slot().holder_instance, world.ec2.terminated) == (successor, [holder])
    assert world.head().recoveries == 0, "nothing was lost"


def test_slots_go_back_one_at_a_time() -> None:
    world = World()
    on_demand(world, slots=3)
    world.ec2.refused = {}
    trained(world, 12)
    for left in (2, 1, 0):
        assert sum(slot.successor_instance is not None for slot in world.slots()) == 1
        moved(world)
        holders = [world.ec2.instances[str(slot.holder_instance)] for slot in world.slots()]
        assert sum(one.lifecycle == "on-demand" for one in holders) == left
        trained(world, 2)
    assert len(world.ec2.alive()) == 3


def test_spot_that_has_nothing_after_all_costs_a_cool_down_and_nothing_else() -> None:
    world = World()
    [holder] = on_demand(world)
    trained(world, 12)
    asked = [one for call, one in world.ec2.calls if call == "create_fleet"]
    assert {one["TargetCapacitySpecification"]["DefaultTargetCapacityType"] for one in asked[2:]} == {"spot"}
    slot = world.slot()
    assert (slot.holder_instance, slot.successor_instance, world.head().spot_attempts) == (holder, None, 0)
    assert len(world.ec2.instances) == 1, "never a second on-demand node"
    world.ec2.refused = {}
    trained(world, 130)
    assert world.ec2.instances[str(world.slot().successor_instance)].lifecycle == "spot"


@pytest.mark.parametrize("code", ["AuthFailure.ServiceLinkedRoleCreationNotPermitted", "UnauthorizedOperation", "Odd"])
def test_a_way_back_that_ec2_refuses_as_a_whole_leaves_the_run_as_it_is(code: str) -> None:
    world = World()
    [holder] = on_demand(world)
    world.ec2.refused = {}
    before = world.ec2.count("create_fleet")
    world.ec2.fail("create_fleet", code, times=99)
    trained(world, 40)
    head, slot = world.head(), world.slot()
    assert (head.status, slot.holder_instance, slot.successor_instance) == (RunStatus.ACTIVE, holder, None)
    assert world.ec2.count("create_fleet") - before < 10, "not each minute of the thirty"
    assert world.sns.said == []


class Mute:
    """EC2 whose fleets launch nothing and say nothing."""

    def __init__(self, world: World) -> None:
        self._ec2 = world.ec2
        self.asked = 0

    def create_fleet(self, **_: Any) -> dict[str, Any]:
        self.asked += 1
        return {"FleetId": "fleet-0", "Instances": [], "Errors": []}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._ec2, name)


def test_an_answer_that_says_nothing_at_all_rests_the_pools_too() -> None:
    world = World()
    [holder] = on_demand(world)
    mute = Mute(world)
    world.control = world.make_control(world.table, mute, world.ssm, world.sqs)
    trained(world, 15)
    assert mute.asked in {1, 2, 3}
    assert (world.slot().holder_instance, world.slot().successor_instance) == (holder, None)


def test_a_pool_that_lost_something_recently_is_not_gone_back_to() -> None:
    world = World()
    on_demand(world, zones=("us-east-1a",))
    world.ec2.refused = {}
    for pool in world.stores.pools.list("us-east-1"):
        world.stores.pools.lost(pool, losses=1, counted_for="other#1", now=int(world.clock()) + 400)
    trained(world, 14)
    assert world.slot().successor_instance is None
    trained(world, 8)
    assert world.slot().cause is Cause.FAILBACK


def test_an_on_demand_node_that_is_lost_while_its_way_back_is_open_is_replaced_from_any_market() -> None:
    world = World()
    [holder] = on_demand(world)
    world.ec2.refused = {}
    world.ec2.fail("create_fleet", "RequestLimitExceeded", times=40)
    trained(world, 12)
    assert (world.slot().successor_instance, world.slot().cause) == (NO_INSTANCE, Cause.FAILBACK)
    world.ec2._faults.clear()
    world.ec2.refused = dict(NO_SPOT)
    world.ec2.instances[holder].state = "terminated"
    for _ in range(4):
        world.tick()
    successor = str(world.slot().successor_instance)
    assert world.ec2.instances[successor].lifecycle == "on-demand"


def test_a_spot_successor_that_is_lost_before_its_turn_leaves_the_holder_alone() -> None:
    world = World()
    [holder] = on_demand(world)
    world.ec2.refused = {}
    trained(world, 12)
    successor = str(world.slot().successor_instance)
    world.ec2.refused = dict(NO_SPOT)
    world.deliver(notice(successor, world.clock()))
    world.ec2.instances[successor].state = "terminated"
    trained(world, 3)
    slot = world.slot()
    assert (slot.holder_instance, slot.successor_instance) == (holder, None)
    assert [one.instance for one in world.ec2.alive()] == [holder]


@pytest.mark.parametrize(
    ("pools", "market"),
    [
        ({"first_on_demand_s": 300}, "on-demand"),
        ({}, "spot"),
    ],
)
def test_the_first_minutes_of_a_run_are_on_demand_where_it_wants_that(pools: dict[str, Any], market: str) -> None:
    world = World()
    world.submit(pools=Pools(types=TYPES, market=MarketPolicy.SPOT_THEN_ON_DEMAND, **pools))
    world.tick()
    assert [one.lifecycle for one in world.ec2.alive()] == [market]


def test_after_the_first_minutes_a_run_goes_to_spot() -> None:
    world = World()
    world.submit(pools=Pools(types=TYPES, market=MarketPolicy.SPOT_THEN_ON_DEMAND, first_on_demand_s=300))
    world.tick()
    world.boot()
    world.join()
    trained(world, 3)
    assert world.slot().successor_instance is None
    trained(world, 3)
    assert world.slot().cause is Cause.FAILBACK


def test_a_run_that_never_goes_back_stays() -> None:
    world = World()
    on_demand(world, failback_after_s=0)
    world.ec2.refused = {}
    trained(world, 60)
    assert world.slot().successor_instance is None


def test_an_order_that_the_node_before_has_heard_does_not_hold_up_the_way_back() -> None:
    world = World()
    pools = Pools(types=TYPES, market=MarketPolicy.SPOT_THEN_ON_DEMAND, cooldown_s=10, failback_after_s=20)
    [holder] = world.started(pools=pools)
    world.ec2.refused = dict(NO_SPOT)
    world.deliver(notice(holder, world.clock()))
    ordered = world.head().order_deadline_at
    world.clock.advance(5)
    world.boot()
    world.flushed("mini", holder, 40)
    world.join()
    world.ec2.instances[holder].state = "terminated"
    world.ec2.refused = {}
    for _ in range(2):
        world.beat_all()
        world.tick(after_s=50)
    assert ordered is not None
    assert world.clock() < ordered
    slot = world.slot()
    assert world.ec2.instances[str(slot.holder_instance)].lifecycle == "on-demand"
    assert (slot.cause, slot.waits_for_notice) == (Cause.FAILBACK, True)


def test_no_way_back_is_begun_while_the_stack_may_launch_nothing() -> None:
    world = World()
    [holder] = on_demand(world)
    world.ec2.refused = {}
    world.clock.advance(3600 - world.clock() % 3600 + 900)  # in the middle of an hour
    hour, limit = int(world.clock()) // 3600, SETTINGS.launches_per_hour
    for number in range(limit):
        world.table.write(world.stores.pools.counting("us-east-1", hour=hour, limit=limit, begun=number > 0))
    before = world.slot().incarnation
    trained(world, 40)
    assert (world.slot().incarnation, world.slot().holder_instance) == (before, holder), "and none is taken back"
    trained(world, 15)
    assert world.slot().cause is Cause.FAILBACK

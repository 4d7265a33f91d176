"""Gangs: all nodes together in one zone or none, the lost one near the others, and the whole gang elsewhere."""

from __future__ import annotations

import json
from typing import Any

import pytest

from spotproof.contract.items import NO_INSTANCE, Launch
from spotproof.contract.runspec import Pools
from spotproof.contract.states import Cause, LaunchState, Market, NodePhase, NoticeKind
from tests.fakes.control import World, notice

TYPES = ("p4d.24xlarge", "p4de.24xlarge")
A, B, C = "us-east-1a", "us-east-1b", "us-east-1c"
PATIENCE_S = 300


def submitted(world: World, *, slots: int = 4, **pools: Any) -> None:
    given = {"types": TYPES, "gang": True, "gang_patience_s": PATIENCE_S, "cooldown_s": 60, **pools}
    world.submit(slots=slots, pools=Pools(**given))


def started(world: World, **fields: Any) -> list[str]:
    submitted(world, **fields)
    world.tick()
    world.boot()
    world.join()
    world.beat_all()
    world.tick()
    return [str(slot.holder_instance) for slot in world.slots()]


def zones(world: World) -> set[str]:
    """Where the successors, or else the holders, of all slots are."""
    placed = (
        slot.successor_instance if slot.successor_instance is not None else slot.holder_instance
        for slot in world.slots()
    )
    return {world.ec2.instances[str(one)].zone for one in placed}


def asked(world: World) -> list[dict[str, Any]]:
    return [request for call, request in world.ec2.calls if call == "create_fleet"]


def short(world: World, *zone_names: str, left: int = 0) -> None:
    for zone in zone_names:
        for kind in TYPES:
            world.ec2.room[f"{kind}#{zone}#spot"] = left


def test_a_gang_starts_whole_in_the_one_zone_that_has_room_for_all_of_it() -> None:
    world = World()
    short(world, A, left=1)
    short(world, B)
    submitted(world)
    world.tick()
    [request] = asked(world)
    options = request["SpotOptions"]
    assert (options["MinTargetCapacity"], options["SingleAvailabilityZone"]) == (4, True)
    assert "SingleInstanceType" not in options
    assert (len(world.ec2.instances), zones(world)) == (4, {C})


def test_over_efa_a_gang_is_of_one_type() -> None:
    world = World()
    for zone in (A, B):
        short(world, zone)
    world.ec2.room = {**world.ec2.room, f"{TYPES[0]}#{C}#spot": 3, f"{TYPES[1]}#{C}#spot": 4}
    submitted(world, efa=True)
    world.tick()
    assert asked(world)[0]["SpotOptions"]["SingleInstanceType"] is True
    assert {one.instance_type for one in world.ec2.alive()} == {TYPES[1]}


def test_without_room_for_all_nothing_is_launched() -> None:
    world = World()
    short(world, A, B, C, left=1)
    submitted(world, slots=4)
    for _ in range(10):
        world.tick()
    assert (world.ec2.instances, [slot.successor_instance for slot in world.slots()]) == ({}, [NO_INSTANCE] * 4)
    short(world, B, left=9)
    for _ in range(40):
        world.tick()
    assert (len(world.ec2.alive()), zones(world)) == (4, {B})


def test_a_lost_node_comes_back_in_the_gangs_zone() -> None:
    world = World()
    holders = started(world)
    assert zones(world) == {A}
    world.deliver(notice(holders[2], world.clock()))
    overrides = asked(world)[-1]["LaunchTemplateConfigs"][0]["Overrides"]
    assert {one["SubnetId"] for one in overrides} == {"subnet-a"}
    assert zones(world) == {A}


def test_a_gang_whose_zone_stays_dry_moves_as_a_whole_once_the_new_one_is_ready() -> None:
    world = World()
    holders = started(world)
    short(world, A)
    world.deliver(notice(holders[2], world.clock()))
    world.ec2.instances[holders[2]].state = "terminated"
    for _ in range(PATIENCE_S // 60):
        world.beat_all()
        world.tick()
    assert world.ec2.count("create_fleet") >= 2
    assert len(world.ec2.instances) == 4, "nothing elsewhere while the zone may still give"
    for _ in range(3):
        world.beat_all()
        world.tick()
    assert zones(world) == {B}
    moving = [slot for slot in world.slots() if slot.slot != 2]
    assert {(slot.cause, slot.waits_for_notice) for slot in moving} == {(Cause.CAPACITY, True)}
    assert [world.ec2.instances[holders[one]].is_alive for one in (0, 1, 3)] == [True] * 3

    world.boot()
    world.beat_all()
    for slot in world.slots():
        world.beat("mini", str(slot.successor_instance), NodePhase.PARKED)
    world.tick()
    assert (world.head().order_kind, world.head().order_leavers) == (NoticeKind.MAINTENANCE, "b")
    for one in (0, 1, 3):
        world.flushed("mini", holders[one], 40)
    world.join()
    world.beat_all()
    world.tick()
    assert sorted(world.ec2.terminated) == sorted(holders[one] for one in (0, 1, 3))
    assert (len(world.ec2.alive()), world.head().recoveries) == (4, 1)


def test_a_successor_that_came_in_the_old_zone_moves_with_its_gang() -> None:
    world = World()
    holders = started(world)
    short(world, A)
    world.ec2.room[f"{TYPES[1]}#{A}#spot"] = 1
    world.deliver(notice(holders[3], world.clock()))
    late = str(world.slot(number=3).successor_instance)
    assert world.ec2.instances[late].zone == A
    world.deliver(notice(holders[2], world.clock()))
    for one in (2, 3):
        world.ec2.instances[holders[one]].state = "terminated"
    world.boot()
    for _ in range(9):
        world.beat_all()
        world.tick()
    assert zones(world) == {B}
    assert world.ec2.terminated == [late]
    assert len(world.ec2.alive()) == 6, "the two that are left, and the four that come"


def moving(world: World) -> list[str]:
    """A gang of which one place is lost and the others have successors elsewhere: these, by slot."""
    holders = started(world)
    short(world, A)
    world.deliver(notice(holders[2], world.clock()))
    world.ec2.instances[holders[2]].state = "terminated"
    for _ in range(PATIENCE_S // 60 + 3):
        world.beat_all()
        world.tick()
    assert zones(world) == {B}
    world.boot()
    return [str(slot.successor_instance) for slot in world.slots()]


@pytest.mark.parametrize("lost", [0, 2])
def test_who_dies_of_a_gang_on_its_way_comes_back_where_the_rest_of_it_is(lost: int) -> None:
    world = World()
    dead = moving(world)[lost]
    for kind in TYPES:
        del world.ec2.room[f"{kind}#{A}#spot"]
    world.deliver(notice(dead, world.clock()))
    world.ec2.instances[dead].state = "terminated"
    again = str(world.slot(number=lost).successor_instance)
    assert (world.ec2.instances[again].zone, zones(world)) == (B, {B})


def test_a_gang_on_its_way_that_cannot_be_whole_where_it_goes_starts_anew_elsewhere() -> None:
    world = World()
    came = moving(world)
    short(world, B)
    world.deliver(notice(came[1], world.clock()))
    world.ec2.instances[came[1]].state = "terminated"
    for _ in range(PATIENCE_S // 60):
        world.beat_all()
        world.tick()
    assert world.slot(number=1).successor_instance == NO_INSTANCE
    assert world.ec2.terminated == []
    for _ in range(4):
        world.beat_all()
        world.tick()
    assert zones(world) == {C}
    assert set(world.ec2.terminated) == {came[0], came[2], came[3]}
    assert len(world.ec2.alive()) == 7, "the three that go on, and the four that come"


def test_a_gang_stays_while_a_launch_in_its_zone_is_under_way() -> None:
    world = World()
    holders = started(world)
    world.ec2.fail("create_fleet", "RequestLimitExceeded", times=12)
    world.deliver(notice(holders[2], world.clock()))
    world.ec2.instances[holders[2]].state = "terminated"
    for _ in range(PATIENCE_S // 60 + 2):
        world.beat_all()
        world.tick()
    assert {slot.cause for slot in world.slots() if slot.slot != 2} == {None}, "nobody moves"
    world.ec2._faults.clear()
    world.beat_all()
    world.tick()
    assert world.slot(number=2).successor_instance not in (None, NO_INSTANCE)
    assert zones(world) == {A}


def test_a_gang_that_finds_no_other_zone_keeps_its_nodes() -> None:
    world = World()
    holders = started(world)
    short(world, A, B, C)
    world.deliver(notice(holders[2], world.clock()))
    world.ec2.instances[holders[2]].state = "terminated"
    for _ in range(20):
        world.beat_all()
        world.tick()
    assert (len(world.ec2.instances), world.ec2.terminated) == (4, [])
    short(world, C, left=4)
    for _ in range(130):
        world.beat_all()
        world.tick()
    assert zones(world) == {C}


def test_what_a_gangs_launch_brought_too_few_of_is_ended_and_none_of_it_bound() -> None:
    """EC2 keeps the promise of all or nothing; what a killed handler's launch is found to have made may be less."""
    world = World()
    submitted(world, slots=3)
    world.ec2.fail("create_fleet", "RequestLimitExceeded")
    world.tick()
    [record] = world.stores.launches.recent("mini")
    assert record.minimum == 3
    tags = {"spotproof:stack": "prod", "spotproof:run": "mini", "spotproof:launch": "1"}
    for name in ("i-0aaaaaaaaaaaaaaa1", "i-0aaaaaaaaaaaaaaa2"):
        world.ec2.tag(name, tags=tags)
    answered = world.stores.launches.answer(
        "mini", 1, instances=("i-0aaaaaaaaaaaaaaa1",), errors=(), now=int(world.clock())
    )
    assert answered.state is LaunchState.ANSWERED
    world.tick()
    assert sorted(world.ec2.terminated) == ["i-0aaaaaaaaaaaaaaa1", "i-0aaaaaaaaaaaaaaa2"]
    assert {slot.successor_instance for slot in world.slots()} == {NO_INSTANCE}
    for _ in range(2):
        world.tick()
    assert len(world.ec2.alive()) == 3
    assert {slot.successor_instance for slot in world.slots()} == {one.instance for one in world.ec2.alive()}


def test_a_gang_that_is_found_whole_is_bound() -> None:
    world = World()
    submitted(world, slots=2)
    world.ec2.fail("create_fleet", "timeout")
    world.tick()
    world.tick()
    assert (len(world.ec2.instances), world.ec2.terminated) == (2, [])
    assert NO_INSTANCE not in [slot.successor_instance for slot in world.slots()]


@pytest.mark.parametrize("slots", [2, 64, 1000])
def test_one_request_is_for_the_whole_gang_within_ec2s_limits(slots: int) -> None:
    world = World()
    submitted(world, slots=slots)
    world.tick()
    [request] = asked(world)
    assert request["TargetCapacitySpecification"]["TotalTargetCapacity"] == slots
    assert request["SpotOptions"]["MinTargetCapacity"] == slots <= 1000
    assert len(json.dumps(request)) < 16_000
    [record] = world.stores.launches.recent("mini")
    assert isinstance(record, Launch)
    assert (record.market, len(record.instances)) == (Market.SPOT, slots)

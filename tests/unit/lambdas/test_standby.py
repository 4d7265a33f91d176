"""Places beside the slots: who works is what the membership says; one loss is one launch, and the others are kept."""

from __future__ import annotations

import json
from typing import Any

import pytest

from lambdas.decisions import spares, standby
from lambdas.decisions.actions import Guarded, Vacate
from lambdas.decisions.facts import Facts
from spotproof.contract.history import HistoryKind
from spotproof.contract.items import NO_INSTANCE, Generation, Head, Slot
from spotproof.contract.runspec import Pools
from spotproof.contract.states import Cause, NodePhase, RunStatus
from spotproof.contract.times import Moment, Times
from tests.fakes.control import World, notice, state

SPARE = 2  # the place beside slots 0 and 1


def started(world: World, **fields: Any) -> None:
    """Two nodes train, the third stands by."""
    world.submit(slots=2, standby=1, **fields)
    world.tick()
    world.boot()
    world.join(beside={SPARE})
    world.tick()
    beat(world)


def beat(world: World) -> None:
    world.beat_all(generation=1)
    world.beat("mini", stands_by(world), NodePhase.PARKED)


def stands_by(world: World, place: int = SPARE) -> str:
    return str(world.slot(number=place).successor_instance)


def launches(world: World) -> list[int]:
    sizes = [json.dumps(request) for call, request in world.ec2.calls if call == "create_fleet"]
    return [json.loads(text)["TargetCapacitySpecification"]["TotalTargetCapacity"] for text in sizes]


def test_the_places_beside_the_slots_are_launched_for_after_the_slots() -> None:
    world = World()
    world.submit(slots=2, standby=1, pools=Pools(types=("g5.xlarge",), gang=True))
    world.tick()
    assert launches(world) == [2, 1]  # no gang waits for a node that it can begin without


def test_a_node_that_stands_by_is_kept_for_hours() -> None:
    world = World()
    started(world)
    for _ in range(90):
        beat(world)
        world.tick()
    assert world.ec2.terminated == []
    assert len(world.ec2.instances) == 3
    assert world.slot(number=SPARE).holder_instance == NO_INSTANCE


def test_when_it_takes_the_place_of_a_lost_node_one_more_is_launched_and_stands_by() -> None:
    world = World()
    started(world)
    lost, taker = str(world.slot().holder_instance), stands_by(world)
    world.ec2.instances[lost].state = "terminated"
    world.deliver(state(lost, world.clock(), "terminated"))
    world.boot()
    world.join(beside={0})  # the survivor and the node that stood by, at once
    world.tick()
    assert world.slot(number=SPARE).holder_instance == taker
    assert world.slot().holder_instance == NO_INSTANCE  # its place is its successor's, which stands by
    assert world.slot().successor_instance not in (None, NO_INSTANCE, lost)
    assert len(world.ec2.instances) == 4
    for _ in range(20):
        world.beat_all(generation=2)
        world.tick()
    assert len(world.ec2.instances) == 4
    assert world.ec2.terminated == []


def test_a_node_that_froze_is_ended_when_another_has_taken_its_place() -> None:
    world = World()
    started(world)
    frozen = str(world.slot().holder_instance)
    for _ in range(15):
        for number in (1, SPARE):
            slot = world.slot(number=number)
            instance = slot.successor_instance if slot.holder_instance == NO_INSTANCE else slot.holder_instance
            world.beat("mini", str(instance))
        successor = world.slot().successor_instance
        if successor not in (None, NO_INSTANCE):
            world.beat("mini", str(successor), NodePhase.PARKED)
            if world.stores.memberships.generation("mini", 2) is None:
                world.boot()
                world.join(beside={0})
        world.tick()
    assert world.slot().cause is Cause.SILENCE
    assert world.ec2.terminated == [frozen]


def test_a_notice_for_a_node_that_stands_by_stops_nobody() -> None:
    world = World()
    started(world)
    gone = stands_by(world)
    world.deliver(notice(gone, world.clock()))
    assert world.head().order is None
    assert stands_by(world) != gone
    assert launches(world) == [2, 1, 1]


def test_a_notice_for_a_holder_that_the_membership_does_without_stops_nobody() -> None:
    world = World()
    started(world)
    world.join(beside={0})  # its neighbours took it for dead; it stands by now
    world.deliver(notice(str(world.slot().holder_instance), world.clock()))
    assert world.head().order is None
    world.deliver(notice(str(world.slot(number=1).holder_instance), world.clock()))
    assert world.head().order is not None


def test_the_run_is_done_when_its_members_are() -> None:
    world = World()
    started(world)
    for number in (0, 1):
        world.beat("mini", str(world.slot(number=number).holder_instance), NodePhase.DONE, step=9)
    world.tick()
    assert world.head().status is RunStatus.DONE
    world.tick()
    assert set(world.ec2.terminated) == set(world.ec2.instances)


@pytest.mark.parametrize("status", [RunStatus.PAUSED, RunStatus.STOPPING])
def test_a_run_that_wants_no_nodes_ends_those_that_stand_by_at_once(status: RunStatus) -> None:
    world = World()
    started(world)
    idle = stands_by(world)
    world.pause("mini", status)
    world.tick()
    assert world.ec2.terminated == [idle]


def test_a_resumed_run_has_its_node_beside_the_slots_again() -> None:
    world = World()
    started(world)
    world.pause("mini")
    world.tick()
    world.pause("mini", RunStatus.ACTIVE)
    world.tick()
    assert stands_by(world) not in ("None", NO_INSTANCE)


SEALED = Generation(run="mini", generation=2, members=("1:1:i-1", "2:1:i-2"), sealed_at=9)


def facts(*slots: Slot, count: int = 1, sealed: Generation | None = SEALED) -> Facts:
    head = Head(run="mini", status=RunStatus.ACTIVE, slots=2, standby=count)
    return Facts(run="mini", stack="s", region="r", now=100, head=head, slots=slots, sealed=sealed)


def place(number: int, holder: str = NO_INSTANCE, successor: str | None = None) -> Slot:
    return Slot(
        run="mini",
        slot=number,
        incarnation=1 if successor is None else 2,
        holder_instance=holder,
        holder_incarnation=1,
        successor_instance=successor,
        successor_incarnation=None if successor is None else 2,
    )


@pytest.mark.parametrize(
    ("slot", "count", "sealed", "is_displaced"),
    [
        (place(0, "i-0", "i-4"), 1, SEALED, True),  # its work is another node's now
        (place(0, "i-0", NO_INSTANCE), 1, SEALED, True),  # also while its successor is still asked for
        (place(0, "i-0"), 1, SEALED, False),  # left out while it lived: it stands by where it is
        (place(0, NO_INSTANCE, "i-4"), 1, SEALED, False),
        (place(1, "i-1", "i-4"), 1, SEALED, False),  # lost, and the membership still names it
        (place(0, "i-0", "i-4"), 0, SEALED, False),  # without spares it may still save
        (place(0, "i-0", "i-4"), 1, None, False),
    ],
)
def test_who_has_been_replaced_by_a_node_that_stood_by(
    slot: Slot, count: int, sealed: Generation | None, is_displaced: bool
) -> None:
    of = facts(slot, count=count, sealed=sealed)
    found = standby.displaced(of, {slot.slot: slot})
    vacated = [one.first for one in found if isinstance(one, Guarded)]
    assert vacated == ([Vacate(seen=slot, instance="i-0")] if is_displaced else [])


@pytest.mark.parametrize(
    ("slot", "instance", "works"),
    [(place(1, "i-1"), "i-1", True), (place(0, "i-0"), "i-0", False), (place(1, "i-9"), "i-9", False)],
)
def test_who_works_is_what_the_membership_says(slot: Slot, instance: str, works: bool) -> None:
    assert spares.works(facts(slot), slot, instance) is works
    assert spares.works(facts(slot, count=0), slot, instance)


def test_the_timeline_says_who_took_a_lost_nodes_work() -> None:
    world = World()
    started(world)
    lost, taker = str(world.slot().holder_instance), stands_by(world)
    world.ec2.instances[lost].state = "terminated"
    world.deliver(state(lost, world.clock(), "terminated"))
    sealed = world.join(beside={0})
    joined_ms = sealed.sealed_at * 1000 + 500
    times = Times().passed(Moment.PARKED, joined_ms - 3_600_000).passed(Moment.JOINED, joined_ms)
    world.beat("mini", taker, generation=2, times=times.text())
    world.tick()
    [told] = [entry for entry in world.told() if entry.what == HistoryKind.TAKEN_OVER]
    assert (told.slot, told.incarnation, told.cause, told.detail) == (0, 2, Cause.DISAPPEARED, f"{SPARE}:1")

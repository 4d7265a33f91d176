"""How long a successor waits for its holder: until its flush is final, it has ended, or its deadline is past."""

from __future__ import annotations

import pytest

from spotproof.contract.items import NO_INSTANCE
from spotproof.contract.orders import slots_of
from tests.fakes.control import World, notice, state


def interrupted() -> tuple[World, str]:
    """A run whose holder has had its notice 20 s ago and whose successor boots."""
    world = World()
    [lost] = world.started()
    world.beat("mini", lost)
    world.deliver(notice(lost, world.clock()))
    world.clock.advance(20)
    return world, lost


@pytest.mark.parametrize("name", ["terminated", "stopped"])
def test_a_holder_that_ends_before_its_deadline_is_waited_for_no_more(name: str) -> None:
    world, lost = interrupted()
    before = world.slot()
    world.deliver(state(lost, world.clock(), name))
    after = world.slot()
    assert after.deadline_at == int(world.clock())
    assert (after.incarnation, after.successor_instance) == (before.incarnation, before.successor_instance)


@pytest.mark.parametrize("name", ["stopping", "shutting-down"])
def test_a_holder_that_is_only_going_down_keeps_its_seconds(name: str) -> None:
    world, lost = interrupted()
    before = world.slot()
    world.deliver(state(lost, world.clock(), name))
    assert world.slot() == before


def test_a_notice_and_the_end_in_one_batch_claim_once_and_wait_for_nobody() -> None:
    world = World()
    [lost] = world.started()
    at = world.clock()
    world.clock.advance(5)
    assert world.deliver(state(lost, at + 5, "terminated"), notice(lost, at)) == {}
    slot = world.slot()
    assert (slot.incarnation, slot.deadline_at) == (2, int(world.clock()))
    assert slot.successor_instance not in (None, NO_INSTANCE)


def test_the_sweep_lifts_the_wait_when_the_event_is_lost() -> None:
    world, lost = interrupted()
    world.ec2.instances[lost].state = "terminated"
    world.clock.advance(10)
    world.tick(after_s=50)
    assert world.slot().deadline_at == int(world.clock())
    assert world.slot().incarnation == 2


def test_the_end_of_a_lost_successor_leaves_the_holders_deadline() -> None:
    world, lost = interrupted()
    deadline_at = world.slot().deadline_at
    world.deliver(state(str(world.slot().successor_instance), world.clock(), "terminated"))
    slot = world.slot()
    assert (slot.holder_instance, slot.incarnation, slot.deadline_at) == (lost, 3, deadline_at)


def test_the_end_of_a_holder_that_has_been_replaced_moves_no_deadline_of_the_next_one() -> None:
    world, lost = interrupted()
    world.boot()
    world.join()
    world.tick(after_s=50)
    holder = str(world.slot().holder_instance)
    world.deliver(notice(holder, world.clock()))
    before = world.slot()
    world.deliver(state(lost, world.clock(), "terminated"))
    assert world.slot() == before


def test_leavers_who_have_heard_their_order_are_not_named_again() -> None:
    """The slot's number would mean the node that has come in the place of the one who left."""
    world = World()
    one, other = world.started(slots=2)
    world.deliver(notice(one, world.clock()))
    world.clock.advance(3)
    world.deliver(notice(other, world.clock()))
    assert slots_of(world.head().order_leavers or "0") == frozenset({0, 1}), "not every agent may have read the first"
    world = World()
    one, other = world.started(slots=2)
    world.deliver(notice(one, world.clock()))
    world.clock.advance(60)
    world.deliver(notice(other, world.clock()))
    assert slots_of(world.head().order_leavers or "0") == frozenset({1})


def test_a_notice_that_comes_when_the_successor_has_joined_tells_nobody_to_leave() -> None:
    world = World()
    [lost] = world.started()
    warned_at = world.clock()
    world.deliver(state(lost, world.clock(), "stopped"))
    world.join()
    world.clock.advance(20)
    world.deliver(notice(lost, warned_at))
    assert slots_of(world.head().order_leavers or "0") == frozenset()
    assert world.slot().holder_instance != lost


def test_an_order_that_is_replaced_before_it_was_read_keeps_its_deadline() -> None:
    world = World()
    one, other = world.started(slots=2)
    world.deliver(notice(one, world.clock()))
    before = world.head().order_deadline_at
    world.clock.advance(1)
    world.deliver(notice(other, world.clock() - 118))
    assert slots_of(world.head().order_leavers or "0") == frozenset({0, 1})
    assert world.head().order_deadline_at == before, "one that is past in a second would be heard by nobody"

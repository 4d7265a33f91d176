"""Claims whose holder is well, moves planned for a date, prewarmed nodes counted, instances let go."""

from __future__ import annotations

import dataclasses

import pytest

from spotproof.contract.items import NEVER, NO_INSTANCE, Member, Slot
from spotproof.contract.limits import STORM_QUIET_S
from spotproof.contract.states import Cause
from spotproof.errors import Lost
from spotproof.store.members import Members
from spotproof.store.slots import Slots
from spotproof.store.storms import Storms
from spotproof.store.table import Table

NOW = 1_777_888_800


def held(table: Table, run: str) -> tuple[Slots, Slot]:
    """A slot whose first node has joined."""
    slots = Slots(table)
    slots.create(run, 1)
    [empty] = slots.list(run)
    slots.claim(empty, NO_INSTANCE, cause=Cause.SUBMIT, now=NOW)
    slots.bind(run, 0, 1, instance="i-a", launch=1, now=NOW)
    return slots, slots.promote(run, 0, 1, instance="i-a")


def planned(slots: Slots, seen: Slot) -> Slot:
    return slots.claim(seen, "i-a", cause=Cause.REBALANCE, now=NOW, deadline_at=NEVER, waits_for_notice=True)


def test_a_successor_that_waits_is_released_once(table: Table, run: str) -> None:
    slots, seen = held(table, run)
    waiting = planned(slots, seen)
    assert (waiting.waits_for_notice, waiting.deadline_at, waiting.cause) == (True, NEVER, Cause.REBALANCE)
    bound = slots.bind(run, 0, 2, instance="i-b", launch=2, now=NOW)
    released = slots.release(bound, deadline_at=NOW + 120, cause=Cause.INTERRUPTION)
    assert released == dataclasses.replace(
        bound, waits_for_notice=None, deadline_at=NOW + 120, cause=Cause.INTERRUPTION
    )
    with pytest.raises(Lost):
        slots.release(bound, deadline_at=NOW + 300)
    with pytest.raises(Lost):
        slots.withdraw(bound)  # no notice came, says one who looked before it came
    assert slots.read(run, 0) == released


def test_a_claim_that_was_withdrawn_leaves_the_holder_and_raises_the_next_number(table: Table, run: str) -> None:
    slots, seen = held(table, run)
    waiting = planned(slots, seen)
    alone = slots.withdraw(waiting)
    assert alone == dataclasses.replace(seen, incarnation=2)
    with pytest.raises(Lost):
        slots.bind(run, 0, 2, instance="i-b", launch=2, now=NOW)  # its launch was under way: surplus
    with pytest.raises(Lost):
        slots.release(waiting, deadline_at=NOW + 120)
    assert slots.claim(alone, "i-a", cause=Cause.INTERRUPTION, now=NOW).successor_incarnation == 3


def test_a_claim_is_not_withdrawn_by_who_saw_it_without_its_instance(table: Table, run: str) -> None:
    slots, seen = held(table, run)
    waiting = planned(slots, seen)
    slots.bind(run, 0, 2, instance="i-b", launch=2, now=NOW)
    with pytest.raises(Lost):
        slots.withdraw(waiting)  # nobody would end i-b


def test_a_lost_successor_waits_on_in_its_successor(table: Table, run: str) -> None:
    slots, seen = held(table, run)
    planned(slots, seen)
    bound = slots.bind(run, 0, 2, instance="i-b", launch=2, now=NOW)
    again = slots.claim(bound, "i-b", cause=Cause.MAINTENANCE, now=NOW + 9, deadline_at=NOW + 129)
    assert (again.waits_for_notice, again.deadline_at, again.lost_deadline_at) == (True, NEVER, NOW + 129)


def test_a_join_ends_the_wait_and_the_plan(table: Table, run: str) -> None:
    slots, seen = held(table, run)
    slots.plan_move(seen, "i-a", at=NOW + 60, before=NOW + 600)
    planned(slots, seen)
    slots.bind(run, 0, 2, instance="i-b", launch=2, now=NOW)
    joined = slots.promote(run, 0, 2, instance="i-b")
    assert (joined.waits_for_notice, joined.lost_deadline_at, joined.move_instance, joined.move_at) == (None,) * 4


def test_the_end_of_the_holder_ends_the_wait(table: Table, run: str) -> None:
    slots, seen = held(table, run)
    lifted = slots.lift_barrier(planned(slots, seen), "i-a", now=NOW + 5)
    assert (lifted.waits_for_notice, lifted.deadline_at) == (None, NOW + 5)


def test_the_earliest_plan_stands_and_a_stranger_has_none(table: Table, run: str) -> None:
    slots, seen = held(table, run)
    first = slots.plan_move(seen, "i-a", at=NOW + 600, before=NOW + 900)
    assert (first.move_instance, first.move_at, first.move_before) == ("i-a", NOW + 600, NOW + 900)
    for later in (NOW + 600, NOW + 700):
        with pytest.raises(Lost):
            slots.plan_move(seen, "i-a", at=later, before=NOW + 900)
    assert slots.plan_move(seen, "i-a", at=NOW + 60, before=NOW + 300).move_at == NOW + 60
    with pytest.raises(Lost):
        slots.plan_move(seen, "i-z", at=NOW, before=NOW + 300)


def test_prewarmed_nodes_are_counted_for_each_window(table: Table, run: str) -> None:
    storms, region = Storms(table), f"us-east-1-{run}"
    assert [storms.spend(region, window=7, limit=3) for _ in range(3)] == [1, 2, 3]
    with pytest.raises(Lost):
        storms.spend(region, window=7, limit=3)
    assert storms.spend(region, window=8, limit=3) == 1
    assert storms.spend(region, window=7 + 24, limit=3) == 1  # the same item, a day's share later


def test_a_storm_is_said_once_in_an_hour(table: Table, run: str) -> None:
    storms, region = Storms(table), f"us-east-1-{run}"
    storms.note(region, now=NOW)
    with pytest.raises(Lost):
        storms.note(region, now=NOW + STORM_QUIET_S - 1)
    storms.note(region, now=NOW + STORM_QUIET_S)


def test_a_hand_tagged_instance_that_was_let_go_may_have_another_place_and_one_of_ours_may_not(
    table: Table, run: str
) -> None:
    members = Members(table)
    mine = Member(instance=f"i-mine-{run}", run=run, slot=0, incarnation=1)
    ours = Member(instance=f"i-ours-{run}", run=run, slot=0, incarnation=1, launch=4)
    for member in (mine, ours):
        elsewhere = dataclasses.replace(member, slot=1, incarnation=2)
        members.put(member)
        with pytest.raises(Lost):
            members.put(elsewhere)
        assert members.end(member.instance, now=NOW)
        if member.launch is None:
            members.put(elsewhere)
            assert members.read(member.instance) == elsewhere
        else:
            with pytest.raises(Lost):
                members.put(elsewhere)

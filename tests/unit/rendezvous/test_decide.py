"""What a launcher does next: tables of (what the table says) -> action."""

from __future__ import annotations

import pytest

from spotproof.contract.items import Generation, Join, Newest
from spotproof.rendezvous.decide import (
    Action,
    Enter,
    Gather,
    MarkBad,
    Member,
    Park,
    Refuse,
    Seat,
    Size,
    Stand,
    gone,
    is_enough,
    is_over,
    may_grow,
    members_of,
    neighbour,
    next_action,
    ready,
    seating,
)

FREE = Seat(node="i-b")
BOUND = Seat(node="i-b", slot=1, incarnation=2)
LIMIT_S = 15.0


def sealed(number: int, *members: str) -> Generation:
    return Generation(run="r", generation=number, members=members, sealed_at=0)


def join(node: str, *, ready_for: int = 5, slot: int = -1, incarnation: int = 0, left: bool = False) -> Join:
    return Join(run="r", node=node, slot=slot, incarnation=incarnation, ready_for=ready_for, left=left)


def texts(members: tuple[Member, ...]) -> list[str]:
    return [member.text() for member in members]


@pytest.mark.parametrize(
    ("what", "seat", "newest", "members", "ready_for", "action"),
    [
        ("nothing was ever sealed", FREE, None, (), 0, Park(number=1)),
        ("parked for the first one", FREE, None, (), 1, Gather(number=1)),
        ("the newest is bad", FREE, (4, 4), ("0:1:i-a",), 0, Park(number=5)),
        ("the newest is bad, parked", FREE, (4, 4), ("0:1:i-a",), 5, Gather(number=5)),
        ("parked for one that was sealed and is bad too", FREE, (5, 5), ("0:1:i-b",), 5, Park(number=6)),
        ("sealed with us", FREE, (5, 4), ("0:1:i-a", "1:1:i-b"), 5, Enter(generation=5, rank=1, world=2)),
        ("we come out of it", FREE, (5, 0), ("0:1:i-a", "1:1:i-b"), 0, MarkBad(generation=5)),
        ("a launcher of our name was in it", BOUND, (5, 0), ("0:1:i-a", "1:2:i-b"), 0, MarkBad(generation=5)),
        ("our predecessor is in it", BOUND, (5, 0), ("0:1:i-a", "1:1:i-x"), 0, MarkBad(generation=5)),
        ("our successor is in it", BOUND, (5, 0), ("1:3:i-x",), 0, Refuse(reason="slot 1 has been given to i-x")),
        ("all places are taken", FREE, (5, 0), ("0:1:i-a", "1:1:i-c"), 0, Stand(generation=5)),
        ("it was sealed smaller, without our slot", BOUND, (5, 0), ("0:1:i-a",), 5, Stand(generation=5)),
        ("a standby when the generation ends", FREE, (5, 5), ("0:1:i-a",), 6, Gather(number=6)),
    ],
)  # fmt: skip
def test_next_action(
    what: str,
    seat: Seat,
    newest: tuple[int, int] | None,
    members: tuple[str, ...],
    *,
    ready_for: int,
    action: Action,
) -> None:
    stands = None if newest is None else Newest(run="r", generation=newest[0], bad=newest[1])
    generation = None if newest is None else sealed(newest[0], *members)
    assert next_action(seat, stands, generation, ready_for=ready_for) == action, what


@pytest.mark.parametrize(
    ("newest", "over"), [(None, False), ((4, 0), False), ((4, 3), False), ((4, 4), True), ((5, 3), True)]
)
def test_a_generation_is_over_when_it_is_bad_or_no_longer_the_newest(
    newest: tuple[int, int] | None, over: bool
) -> None:
    stands = None if newest is None else Newest(run="r", generation=newest[0], bad=newest[1])
    assert is_over(stands, 4) is over


def test_ready_are_those_who_are_parked_for_this_number_alive_and_the_newest_of_their_slot() -> None:
    joins = [
        join("i-early", ready_for=4),
        join("i-left", left=True),
        join("i-silent"),
        join("i-here"),
        join("i-old", slot=1, incarnation=1),
        join("i-new", slot=1, incarnation=2),
    ]
    found = ready(joins, 5, silent_s={"i-silent": LIMIT_S, "i-here": LIMIT_S - 0.1}, limit_s=LIMIT_S)
    assert {one.node for one in found} == {"i-here", "i-new"}


@pytest.mark.parametrize(
    ("count", "unchanged_s", "enough"), [(3, 0.0, True), (2, 2.9, False), (2, 3.0, True), (1, 99.0, False)]
)
def test_a_generation_is_sealed_full_at_once_and_smaller_after_the_last_call(
    count: int, unchanged_s: float, enough: bool
) -> None:
    assert is_enough(count, Size(smallest=2, largest=3, last_call_s=3.0), unchanged_s=unchanged_s) is enough


@pytest.mark.parametrize(
    ("count", "reach", "enough"),
    [
        (3, 4, False),  # a replacement may still come: it is waited for, however long
        (3, 3, True),
        (2, 3, False),
        (3, 2, True),
        (1, 1, False),  # never fewer than the least
        (4, 2, True),
    ],
)
def test_who_is_within_reach_by_the_control_planes_word_is_waited_for(count: int, reach: int, enough: bool) -> None:
    assert is_enough(count, Size(smallest=2, largest=4), unchanged_s=1000.0, reach=reach) is enough
    assert is_enough(count, Size(smallest=2, largest=4), unchanged_s=0.0, reach=reach) is (count == 4)


def test_slots_are_ranks_at_the_first_seal() -> None:
    here = [join("i-c", slot=2, incarnation=1), join("i-a", slot=0, incarnation=1), join("i-b", slot=1, incarnation=1)]
    assert texts(seating(here, (), 1, largest=3)) == ["0:1:i-a", "1:1:i-b", "2:1:i-c"]


@pytest.mark.parametrize("lost", [0, 1, 2])
def test_survivors_keep_their_ranks_and_the_newcomer_fills_the_hole(lost: int) -> None:
    previous = members_of(sealed(4, "0:1:i-c", "1:1:i-b", "2:1:i-a"))
    here = [join(member.node) for member in previous if member.slot != lost] + [join("i-0new")]
    after = seating(here, previous, 5, largest=3)
    assert after[lost] == Member(slot=lost, incarnation=5, node="i-0new")
    assert [one for one in after if one.slot != lost] == [one for one in previous if one.slot != lost]


def test_a_replacement_gets_its_predecessors_rank_even_if_another_is_lost_too() -> None:
    previous = members_of(sealed(4, "0:1:i-a", "1:1:i-b", "2:1:i-c"))
    here = [join("i-z", slot=1, incarnation=2), join("i-y", slot=2, incarnation=2), join("i-a", slot=0, incarnation=1)]
    assert texts(seating(here, previous, 5, largest=3)) == ["0:1:i-a", "1:2:i-z", "2:2:i-y"]


def test_survivors_come_before_standbys() -> None:
    previous = members_of(sealed(4, "0:1:i-b", "1:1:i-c"))
    here = [join("i-a"), join("i-c"), join("i-b")]
    assert texts(seating(here, previous, 5, largest=2)) == ["0:1:i-b", "1:1:i-c"]


def test_a_smaller_world_is_without_holes_and_moves_only_the_highest_ranks() -> None:
    previous = members_of(sealed(4, "0:1:i-a", "1:1:i-b", "2:1:i-c", "3:1:i-d"))
    here = [join("i-b"), join("i-c"), join("i-d")]
    assert [one.node for one in seating(here, previous, 5, largest=4)] == ["i-d", "i-b", "i-c"]


def test_grown_again_the_slot_that_is_free_is_given() -> None:
    previous = members_of(sealed(5, "3:1:i-d", "1:1:i-b", "2:1:i-c"))
    here = [join("i-b"), join("i-c"), join("i-d"), join("i-e")]
    assert texts(seating(here, previous, 6, largest=4)) == ["3:1:i-d", "1:1:i-b", "2:1:i-c", "0:6:i-e"]


def test_everybody_is_watched_by_another_one() -> None:
    members = members_of(sealed(4, "0:1:i-a", "1:1:i-b", "2:1:i-c"))
    assert [neighbour(members, rank) for rank in range(3)] == [members[1], members[2], members[0]]
    assert neighbour(members[:1], 0) is None


@pytest.mark.parametrize(
    ("left", "silent_s", "is_gone"), [(False, 0.0, False), (False, LIMIT_S, True), (True, 0.0, True)]
)
def test_a_standby_takes_the_place_of_who_left_or_is_silent(left: bool, silent_s: float, is_gone: bool) -> None:
    members = members_of(sealed(4, "0:1:i-a", "1:1:i-b"))
    joins = [join("i-a", ready_for=4), join("i-b", ready_for=4, left=left), join("i-other", left=True)]
    assert gone(members, joins, silent_s={"i-b": silent_s}, limit_s=LIMIT_S) is is_gone


@pytest.mark.parametrize(
    ("world", "waited_s", "has_committed", "grows"),
    [(2, 60.0, True, True), (2, 59.0, True, False), (2, 60.0, False, False), (3, 60.0, True, False)],
)
def test_a_world_grows_only_after_a_commit_and_a_while(
    world: int, waited_s: float, has_committed: bool, grows: bool
) -> None:
    size = Size(smallest=2, largest=3)
    assert may_grow(world, size, waited_s=waited_s, has_committed=has_committed, patience_s=60.0) is grows


def test_a_nodes_name_may_hold_colons() -> None:
    assert members_of(sealed(1, "0:1:host:8:x"))[0].node == "host:8:x"

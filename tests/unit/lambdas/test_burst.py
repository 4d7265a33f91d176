"""A burst of notices: few orders, few launches, nothing twice, nothing forgotten. See benchmarks/burst.py."""

from __future__ import annotations

import io
import random
from contextlib import redirect_stdout
from dataclasses import replace
from typing import Any

import pytest

from benchmarks.burst import Row, judged
from lambdas.decisions import bursts
from lambdas.decisions.actions import ComeBack, Expect, Guarded, OrderFlush
from lambdas.decisions.facts import Facts
from spotproof.contract.items import NO_INSTANCE, Generation, Head, Slot
from spotproof.contract.orders import bitmap_of
from spotproof.contract.states import Cause, NoticeKind, RunStatus
from spotproof.store.slots import Slots
from spotproof.store.table import Exists
from tests.fakes.burst import Burst, Size

NOW = 1_777_888_800
OWN_CPU = "own CPU for each event, ms"  # judged at full size: here the first use of everything would be counted


def played(seed: int) -> list[Row]:
    burst = Burst(Size(notices=260, runs=6, large=120, seed=seed))
    with redirect_stdout(io.StringIO()):
        burst.play()
    return judged(burst)


def broken(seed: int) -> dict[str, float]:
    """The bounds that a small burst breaks, with what it counted."""
    return {row.what: row.count for row in played(seed) if not row.is_kept() and row.what != OWN_CPU}


def test_a_small_burst_keeps_every_bound() -> None:
    seed = random.SystemRandom().randrange(2**32)
    print(f"python benchmarks/burst.py --check --notices 260 --runs 6 --large 120 --seed {seed}")
    assert broken(seed) == {}


def test_without_putting_off_a_run_is_told_again_and_again(monkeypatch: pytest.MonkeyPatch) -> None:
    most = "orders of a run, most"
    assert {row.what: row.count for row in played(1)}[most] <= 3
    monkeypatch.setattr(bursts, "holds_order", lambda facts, **_: False)
    assert {row.what: row.count for row in played(1)}[most] > 10


def test_without_the_claims_condition_a_burst_launches_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    original: Any = Slots._move

    def move(self: Slots, seen: Any, changed: Any, *, remove: Any, when: Any) -> Any:
        always = replace_when(changed, when)
        return original(self, seen, changed, remove=remove, when=always)

    def replace_when(changed: Any, when: Any) -> Any:
        return Exists("pk") if "claimed_at" in changed else when

    monkeypatch.setattr(Slots, "_move", move)
    monkeypatch.setattr("lambdas.decisions.losses.place_of", _as_if_nobody_had_claimed)
    assert broken(1) != {}


def _as_if_nobody_had_claimed(slot: Slot, instance: str) -> Any:
    from lambdas.decisions.losses import Place

    return Place.HOLDER


# ------------------------------------------------------------------------------------------------------- decisions
def head(*leavers: int, slots: int = 100, **fields: Any) -> Head:
    """A run whose standing order, given 5 s ago, names these leavers."""
    standing = {
        "order": "o-1",
        "order_kind": NoticeKind.INTERRUPTION,
        "order_deadline_at": NOW + 110,
        "order_leavers": bitmap_of(frozenset(leavers)),
        "order_at": NOW - 5,
    }
    return Head(run="r", status=RunStatus.ACTIVE, slots=slots, **(standing | fields if leavers else fields))


def facts(of: Head | None, *slots: Slot, crowded: bool = False) -> Facts:
    return Facts(run="r", stack="prod", region="us-east-1", now=NOW, head=of, slots=slots, crowded=crowded)


def claimed(number: int, **fields: Any) -> Slot:
    return Slot(
        **{
            "run": "r",
            "slot": number,
            "incarnation": 2,
            "holder_instance": f"i-{number}",
            "holder_incarnation": 1,
            "successor_instance": NO_INSTANCE,
            "successor_incarnation": 2,
            "cause": Cause.INTERRUPTION,
            "claimed_at": NOW - 8,
            "deadline_at": NOW + 110,
            **fields,
        }
    )


CROWD = tuple(range(bursts.CROWD))


@pytest.mark.parametrize(
    ("of", "crowded", "deadline_at", "expected"),
    [
        (head(0), True, NOW + 115, True),
        (head(*CROWD), False, NOW + 115, True),
        (head(*CROWD[:-1]), False, NOW + 115, False),  # a few at once are no burst: each order goes out
        (head(), True, NOW + 115, False),  # nobody has been told anything yet
        (head(0), True, NOW + 30, False),  # it would be told too late
        (head(0, order_at=NOW - 61), True, NOW + 115, False),
        (head(0, order_deadline_at=NOW - 1), True, NOW + 115, False),
        (replace(head(0), status=RunStatus.PAUSED), True, NOW + 115, False),  # nobody will come for its claims
        (None, True, NOW + 115, False),
    ],
)
def test_when_leavers_wait_for_the_next_order(of: Head | None, crowded: bool, deadline_at: int, expected: bool) -> None:
    assert bursts.holds_order(facts(of, crowded=crowded), deadline_at=deadline_at) is expected


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (facts(head(0), claimed(0), crowded=True), True),
        (facts(head(*CROWD), claimed(0)), True),
        (facts(head(0), claimed(0)), False),
        (facts(head(0, wake_at=NOW + 3), claimed(0)), True),  # somebody comes for it
        (facts(head(0, wake_at=NOW), claimed(0)), False),
        (facts(head(0, slots=1), claimed(0), crowded=True), False),  # nothing more can come
        (facts(head(0, slots=2), claimed(1), crowded=True), False),
        (facts(None, crowded=True), False),
    ],
)
def test_when_claims_wait_to_be_filled_together(given: Facts, expected: bool) -> None:
    assert bursts.holds_launch(given) is expected


def test_one_comes_back_and_the_next_time_later() -> None:
    waits = []
    of = head(0)
    for _ in range(4):
        [guarded] = bursts.put_off(facts(of))
        assert isinstance(guarded, Guarded)
        assert isinstance(guarded.first, Expect)
        [back] = guarded.then
        assert isinstance(back, ComeBack)
        assert back.only_fills
        assert back.after_s > guarded.first.wake_at - NOW, "the message must not come before the time in HEAD"
        waits.append(guarded.first.wake_s)
        of = replace(of, wake_at=NOW - 1, wake_s=guarded.first.wake_s)
    assert waits[0] < waits[1] < waits[2] + 1
    assert waits[-1] == bursts.LONGEST_WAIT_S
    assert bursts.put_off(facts(replace(of, wake_at=NOW + 1))) == ()
    assert bursts.put_off(facts(None)) == ()


def test_runs_do_not_come_back_in_the_same_second() -> None:
    def wait(run: str) -> int:
        [guarded] = bursts.put_off(Facts(run=run, stack="s", region="r", now=NOW, head=replace(head(), run=run)))
        assert isinstance(guarded, Guarded)
        assert isinstance(guarded.first, Expect)
        return guarded.first.wake_s

    assert len({wait(f"run-{number}") for number in range(40)}) == bursts.SPREAD_S


def test_leavers_who_were_left_out_are_named_together() -> None:
    of = head(0, wake_at=NOW, wake_s=8)
    since = NOW - 8
    gone = claimed(3, deadline_at=NOW - 1)
    silent = claimed(4, cause=Cause.SILENCE)
    planned = claimed(5, cause=Cause.DRILL, waits_for_notice=True)
    never_held = claimed(6, holder_instance=NO_INSTANCE)
    earlier = claimed(7, claimed_at=since - 10)
    others = (gone, silent, planned, never_held, earlier)
    [order] = bursts.late_order(facts(of, claimed(0), claimed(1), claimed(2), *others))
    assert isinstance(order, OrderFlush)
    assert {1, 2} <= order.order.leavers <= {0, 1, 2}
    assert bursts.late_order(facts(head(0, 1, wake_at=NOW, wake_s=8), claimed(0), claimed(1))) == ()
    assert bursts.late_order(facts(replace(of, status=RunStatus.DONE), claimed(1))) == ()


def test_a_leaver_whose_successor_has_joined_is_named_no_more() -> None:
    """By the slot's number the order would mean the successor."""
    joined, waits = claimed(1, successor_instance="i-b", successor_incarnation=2), claimed(2)
    sealed = Generation(run="run", generation=2, members=("1:2:i-b",), sealed_at=NOW)
    [order] = bursts.late_order(replace(facts(head(0), joined, waits), sealed=sealed))
    assert isinstance(order, OrderFlush)
    assert 1 not in order.order.leavers
    assert 2 in order.order.leavers

"""Which checkpoints stay."""

from __future__ import annotations

import pytest

from spotproof.plan.candidates import Order
from spotproof.plan.retention import DAY_S, GRACE_S, HOUR_S, QUARANTINE_S, Known, judge

NOW = 100.0 * DAY_S


def known(step: int, age_s: float, *, is_whole: bool = True, is_quarantined: bool = False) -> Known:
    return Known(order=(1, step), at=NOW - age_s, is_whole=is_whole, is_quarantined=is_quarantined)


def dropped(
    *all_known: Known, keep: int = 1, pointer: Order | None = None, starts: frozenset[Order] = frozenset()
) -> list[int]:
    return sorted(step for _, step in judge(all_known, pointer=pointer, starts=starts, keep=keep, now=NOW).dropped)


OLD = [known(step, (20 - step) * DAY_S) for step in range(1, 11)]


@pytest.mark.parametrize("keep", [1, 3, 50])
def test_the_newest_stay(keep: int) -> None:
    assert dropped(*OLD, keep=keep) == list(range(1, max(1, 11 - keep)))


def test_pointer_and_start_of_a_membership_stay() -> None:
    assert dropped(*OLD, pointer=(1, 4), starts=frozenset({(1, 6)})) == [1, 2, 3, 5, 7, 8, 9]


def test_one_of_each_hour_of_the_last_day_stays() -> None:
    hours = [known(100 - half, half * HOUR_S / 2 + 60) for half in range(60)]
    old = [step for step in dropped(*hours) if NOW - (100 - step) * HOUR_S / 2 < NOW - DAY_S]
    assert old
    young = [one.order[1] for one in hours if one.at > NOW - DAY_S]
    stays = [step for step in young if step not in dropped(*hours)]
    assert {int((NOW - (100 - step) * HOUR_S / 2 - 60) // HOUR_S) for step in stays} == {
        int(one.at // HOUR_S) for one in hours if one.at > NOW - DAY_S
    }


def test_whoever_was_the_newest_within_the_grace_stays() -> None:
    # Step 2 followed a minute ago: a save that began before it leaves out the chunks of step 1.
    assert dropped(known(1, 30 * DAY_S), known(2, 60)) == []
    assert dropped(known(1, 30 * DAY_S), known(2, GRACE_S + 60)) == [1]


def test_quarantined_ones_do_not_count_and_stay_a_week() -> None:
    bad = known(11, 8 * DAY_S, is_quarantined=True)
    assert dropped(*OLD, bad) == [*range(1, 10), 11]
    assert dropped(*OLD, known(11, QUARANTINE_S - 60, is_quarantined=True)) == list(range(1, 10))


def test_without_a_good_one_everything_stays() -> None:
    assert dropped(known(1, 90 * DAY_S, is_quarantined=True), known(2, 90 * DAY_S, is_whole=False)) == []


def test_every_verdict_is_one_of_the_two() -> None:
    verdict = judge(OLD, pointer=None, starts=frozenset(), keep=2, now=NOW)
    assert set(verdict.kept) | verdict.dropped == {one.order for one in OLD}
    assert not set(verdict.kept) & verdict.dropped
    assert all(verdict.kept.values())

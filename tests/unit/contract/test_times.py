"""The moments of a node's start: a short text in its beat, in order, never half told."""

from __future__ import annotations

import pytest

from spotproof.contract.times import Moment, Times, times_of

AT = 1_777_888_800_123


def whole() -> Times:
    times = Times()
    for moment, at_ms in zip(Moment, (AT, AT + 5200, AT + 5600, AT + 5601), strict=True):
        times = times.passed(moment, at_ms)
    return times


def test_a_text_says_every_moment_to_the_millisecond() -> None:
    assert times_of(whole().text()) == whole()
    assert whole().of(Moment.RESTORED) == AT + 5600
    assert whole().is_whole


def test_a_text_is_short() -> None:
    day = Times(at_ms=(AT, AT + 86_400_000, AT + 2 * 86_400_000, AT + 3 * 86_400_000))
    assert len(day.text()) <= 36
    assert len(whole().text()) <= 25


def test_only_the_first_time_counts_and_no_moment_is_told_before_the_one_before_it() -> None:
    assert Times().passed(Moment.FIRST_STEP, AT) == Times()
    assert whole().passed(Moment.PARKED, AT + 9) == whole()
    assert Times().passed(Moment.PARKED, AT).passed(Moment.RESTORED, AT + 1).at_ms == (AT,)


def test_a_clock_that_steps_back_makes_no_negative_phase() -> None:
    assert Times().passed(Moment.PARKED, AT).passed(Moment.JOINED, AT - 50).at_ms == (AT, AT)


@pytest.mark.parametrize("text", ["", "zz", "1+2+3+4+5", "-1", "1+-2", "1++2", "f" * 12, "1e400x", "1 2"])
def test_what_is_no_such_text_gives_no_times(text: str) -> None:
    assert times_of(text) == Times()


def test_what_has_not_been_has_no_time() -> None:
    assert Times(at_ms=(AT,)).of(Moment.JOINED) is None
    assert not Times(at_ms=(AT,)).is_whole

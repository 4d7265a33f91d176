"""Axes and how numbers are written."""

from __future__ import annotations

import itertools

import pytest

from spotproof.report.scales import Scale, clock, duration_ticks, length, number_ticks


def test_a_scale_maps_its_ends_and_its_middle() -> None:
    scale = Scale(low=10, high=20, start=100, end=0)
    assert [scale(10), scale(15), scale(20)] == [100, 50, 0]


def test_a_scale_of_one_value_puts_it_in_the_middle() -> None:
    assert Scale(low=3, high=3, start=0, end=10)(3) == 5


@pytest.mark.parametrize("seconds", [1, 7, 60, 119.9, 3600, 86_400, 40 * 86_400])
def test_time_ticks_are_few_even_and_within(seconds: float) -> None:
    ticks = duration_ticks(seconds, at_most=12)
    assert ticks[0] == 0
    assert ticks[-1] <= seconds
    assert 1 <= len(ticks) <= 13
    assert len({after - before for before, after in itertools.pairwise(ticks)}) <= 1


@pytest.mark.parametrize(
    ("low", "high", "ticks"),
    [(0, 5, [0, 1, 2, 3, 4, 5]), (1.9, 2.05, [1.9, 1.95, 2.0, 2.05]), (-3, 3, [-3, -2, -1, 0, 1, 2, 3]), (2, 2, [2])],
)
def test_number_ticks_are_round(low: float, high: float, ticks: list[float]) -> None:
    assert number_ticks(low, high, at_most=6) == pytest.approx(ticks)


@pytest.mark.parametrize(
    ("seconds", "written"), [(0, "0:00"), (5.4, "0:05"), (59.7, "1:00"), (750, "12:30"), (11_220, "3:07:00")]
)
def test_a_clock(seconds: float, written: str) -> None:
    assert clock(seconds) == written


@pytest.mark.parametrize(
    ("seconds", "written"),
    [(0.04, "0.0 s"), (9.94, "9.9 s"), (9.96, "10 s"), (12.4, "12 s"), (59.7, "1 min 00 s"), (185, "3 min 05 s"),
     (7800, "2 h 10 min")],
)  # fmt: skip
def test_a_length(seconds: float, written: str) -> None:
    assert length(seconds) == written

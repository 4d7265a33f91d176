"""Losses by hour of the week, as one short text: a digit for each of the 168 hours (UTC, from Monday 0 h)."""

from __future__ import annotations

from typing import Final

HOURS: Final = 7 * 24
MOST: Final = 9
_MONDAY: Final = 4 * 24  # 1970 began on a Thursday: so many hours before a Monday


def hour_of(at: int) -> int:
    """The hour of the week of a Unix time."""
    return (at // 3600 - _MONDAY) % HOURS


def counted(hours: str, at: int, losses: int) -> str:
    """`hours` with `losses` more in the hour of `at`. A digit that would pass 9 halves the others: old news fades."""
    digits = [int(digit) for digit in hours] if is_hours(hours) else [0] * HOURS
    now = hour_of(at)
    total = digits[now] + losses
    if total > MOST:
        digits = [digit // 2 for digit in digits]
    digits[now] = min(total, MOST)
    return "".join(str(digit) for digit in digits)


def losses_at(hours: str, at: int) -> int:
    """How many losses are known for the hour of the week of `at`, at most 9; 0 where nothing is known."""
    return int(hours[hour_of(at)]) if is_hours(hours) else 0


def is_hours(text: str) -> bool:
    """Whether it is such a text."""
    return len(text) == HOURS and text.isdecimal() and text.isascii()

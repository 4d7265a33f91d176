"""Axes: from values to places on the page, and the round numbers that are written beside them."""

from __future__ import annotations

import math
from dataclasses import dataclass

_DURATIONS_S = (1, 2, 5, 10, 15, 20, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 21_600, 43_200, 86_400)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """A straight line from [low, high] to [start, end]. Where low equals high everything lies in the middle."""

    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        if self.high == self.low:
            return (self.start + self.end) / 2
        return self.start + (value - self.low) / (self.high - self.low) * (self.end - self.start)


def duration_ticks(seconds: float, *, at_most: int) -> list[float]:
    """Round durations from 0 to `seconds`, at most `at_most` + 1 of them."""
    step = next((one for one in _DURATIONS_S if seconds / one <= at_most), None)
    width = float(step if step is not None else math.ceil(seconds / at_most / 86_400) * 86_400)
    return [width * index for index in range(int(seconds / width) + 1)]


def number_ticks(low: float, high: float, *, at_most: int) -> list[float]:
    """Round numbers within [low, high]: steps of 1, 2 or 5 times a power of ten."""
    if high <= low:
        return [low]
    power = 10.0 ** math.floor(math.log10((high - low) / at_most))
    width = next(power * factor for factor in (1, 2, 5, 10, 20) if (high - low) / (power * factor) <= at_most)
    first = math.ceil(low / width - 1e-9)
    return [round(index * width, 10) for index in range(first, math.floor(high / width + 1e-9) + 1)]


def clock(seconds: float) -> str:
    """A time since the beginning: `0:05`, `12:30`, `3:07:00`."""
    whole = round(seconds)
    minutes, rest = divmod(whole, 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def length(seconds: float) -> str:
    """A duration for reading: `0.4 s`, `12 s`, `3 min 05 s`, `2 h 10 min`."""
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    if seconds < 59.5:
        return f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02d} s"
    return f"{minutes // 60} h {minutes % 60:02d} min"

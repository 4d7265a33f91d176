"""Trouble that a script makes on purpose: what fails meanwhile is told, and is no surprise. Anything else is one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

FOR_EVER: Final = float("inf")


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """From `begin` to `end` (Unix seconds) functions may fail and letters may die, because of `why`."""

    why: str
    begin: float
    end: float = FOR_EVER


@dataclass(frozen=True, slots=True, kw_only=True)
class Failed:
    """Something that failed: a function's invocation, or a message that ended in a dead-letter queue (one moment)."""

    name: str
    begin: float
    end: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Sorted:
    """What nobody expected, counted by name; and how much was expected, by its reason."""

    surprising: Mapping[str, int]
    explained: Mapping[str, int]


def sort(failed: Iterable[Failed], expected: Sequence[Expected]) -> Sorted:
    """Every failure to the first reason whose time it touches, or to the surprises."""
    surprising: Counter[str] = Counter()
    explained: Counter[str] = Counter()
    for one in failed:
        reason = next((e.why for e in expected if one.begin <= e.end and one.end >= e.begin), None)
        if reason is None:
            surprising[one.name] += 1
        else:
            explained[reason] += 1
    return Sorted(surprising=surprising, explained=explained)

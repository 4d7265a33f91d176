"""What a scenario is: a training of its own on a freshly deployed stack, what happens to it, and what must hold."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

from rehearsal.evidence import Evidence
from rehearsal.plan import Plan
from rehearsal.play import Script
from rehearsal.stage import Stage
from rehearsal.verdicts import Verdict

# One length for all, so that they share one uninterrupted run.
STEPS: Final = 120
PLAN: Final = Plan(steps=STEPS, interval_steps=20, patience_s=90.0, covers=False)

Promises = Callable[[Stage, Evidence], Iterable[Verdict]]
"""The scenario's own verdicts, read while the region is still up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Spoil:
    """One thing broken on purpose from outside the product. `breaks`: at least one of these verdicts must fail."""

    name: str
    says: str
    act: Script
    breaks: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """One piece of weather. `script` goes from submit to end; the general verdicts are judged beside `promises`."""

    name: str
    says: str
    script: Script
    promises: Promises
    sabotage: Spoil
    plan: Plan = PLAN

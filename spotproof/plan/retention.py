"""Which checkpoints of a run are kept. Pure: facts in, names out.

Kept are the newest `keep`, one of every hour of the last day, those that a membership began with, the pointer's, and
each one that was the newest at any time within the grace: a save that is on its way leaves out the chunks of the
commit that was the newest when it began. What is quarantined does not count as one of the newest.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Final

from spotproof.plan.candidates import Order

HOUR_S: Final = 3600
DAY_S: Final = 86_400
GRACE_S: Final = 6 * HOUR_S  # no save takes longer
QUARANTINE_S: Final = 7 * DAY_S  # what was found damaged stays a week, for whoever looks into it


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """A checkpoint whose manifest is in the bucket. `began_at` of parts without one is their newest part's time."""

    order: Order
    at: float  # Unix seconds
    is_whole: bool = True
    is_quarantined: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What becomes of each checkpoint; `kept` says why."""

    kept: dict[Order, str]
    dropped: frozenset[Order]


def judge(
    known: Sequence[Known], *, pointer: Order | None, starts: AbstractSet[Order], keep: int, now: float
) -> Verdict:
    """Sort the checkpoints of one run into kept and dropped. With nothing that is whole and good nothing is dropped."""
    ordered = sorted(known, key=lambda one: one.order)
    good = [one for one in ordered if one.is_whole and not one.is_quarantined]
    if not good:
        return Verdict(kept={one.order: "the run has no better one" for one in known}, dropped=frozenset())
    kept = {one.order: "one of the newest" for one in good[-max(1, keep) :]}
    hours = {int(one.at // HOUR_S): one.order for one in good if now - one.at < DAY_S}
    kept |= {order: "one for each hour of the last day" for order in hours.values() if order not in kept}
    for one, following in itertools.pairwise(ordered):
        if one.order not in kept and now - following.at < GRACE_S:
            kept[one.order] = "it was the newest a moment ago"
    for one in ordered:
        if one.order in kept:
            continue
        if one.order == pointer:
            kept[one.order] = "the pointer names it"
        elif one.order in starts:
            kept[one.order] = "a membership began with it"
        elif now - one.at < (QUARANTINE_S if one.is_quarantined else GRACE_S):
            kept[one.order] = "it is young"
    return Verdict(kept=kept, dropped=frozenset(one.order for one in known if one.order not in kept))

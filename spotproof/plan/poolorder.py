"""The order in which a run asks its pools: bands of like pools, the calmest first, one request for each band.

Within a band EC2 decides by what it alone knows, the depth and price of this moment (docs/decisions/pool-order.md);
between bands we decide by what EC2 does not tell: who has taken our nodes, when, and at which hours of the week.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from typing import Final

from spotproof.contract.frozen import dataclass

HALF_LIFE_S: Final = 3600.0  # of a loss: pools that die together recover within hours (Spot traces)
CALM: Final = 0.25
TENSE: Final = 0.75
BUSY_LOSSES: Final = 9.0  # as many in one hour of the week count like a loss in this moment
POOR_SCORE: Final = 3  # of 10; a score is a hint: it never makes a pool worse than `tense`
FAIR_SCORE: Final = 6


class Band(IntEnum):
    """How a pool looks. A later band is asked only when no earlier one has anything to give."""

    CALM = 0
    TENSE = 1
    STORMY = 2
    JUST_RECLAIMED = 3  # by the loss that is being replaced


@dataclass(frozen=True, slots=True, kw_only=True)
class Outlook:
    """A pool as far as it is known; `at` is its place in the run's own list. None: unknown."""

    name: str
    at: int
    just_reclaimed: bool = False
    since_loss_s: float | None = None
    losses_this_hour: int = 0  # at this hour of the week, earlier
    score: int | None = None
    price_usd: float | None = None


def risk(outlook: Outlook) -> float:
    """From 0, nothing speaks against it, to about 2. The sum of a fading loss, the hour's record, and a poor score."""
    recent = 0.0 if outlook.since_loss_s is None else 0.5 ** (max(0.0, outlook.since_loss_s) / HALF_LIFE_S)
    return recent + min(1.0, outlook.losses_this_hour / BUSY_LOSSES) + _of_score(outlook.score)


def band_of(outlook: Outlook) -> Band:
    """The band of a pool."""
    if outlook.just_reclaimed:
        return Band.JUST_RECLAIMED
    danger = risk(outlook)
    if danger < CALM:
        return Band.CALM
    return Band.TENSE if danger < TENSE else Band.STORMY


def in_order(outlooks: Sequence[Outlook]) -> tuple[Outlook, ...]:
    """All of them: by band, then price (unknown last), then risk, then the run's own order."""
    return tuple(sorted(outlooks, key=_rank))


def first_band(outlooks: Sequence[Outlook]) -> tuple[Outlook, ...]:
    """Those to ask now, in order; () of none."""
    ordered = in_order(outlooks)
    return tuple(one for one in ordered if band_of(one) == band_of(ordered[0]))


def _of_score(score: int | None) -> float:
    if score is None or score > FAIR_SCORE:
        return 0.0
    return 0.1 if score > POOR_SCORE else 0.3


def _rank(outlook: Outlook) -> tuple[float, ...]:
    price = float("inf") if outlook.price_usd is None else outlook.price_usd
    return float(band_of(outlook)), price, risk(outlook), float(outlook.at)

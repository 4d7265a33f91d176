"""What a run's instances cost, each by its own lifecycle and the price that was noted when it came.

An instance is on-demand or Spot by what it was, never by what its run asked for; a price is the one in the record, so
that an old run's cost does not change with a catalogue; every instance counts, whatever became of it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import ROUND_HALF_UP, Decimal, InvalidOperation
from typing import Final

from spotproof.contract.history import HistoryKind
from spotproof.contract.items import History
from spotproof.contract.states import Cause, Market
from spotproof.report.model import Money

_K: Final = HistoryKind
_ENDS: Final = frozenset({_K.ENDED, _K.SURPLUS_ENDED, _K.ORPHAN_ENDED, _K.NEVER_JOINED})
CENT: Final = Decimal("0.01")
HOUR_S: Final = Decimal(3600)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rental:
    """One instance from its launch to its end. `usd` an hour, None: nobody noted it."""

    instance: str
    instance_type: str
    zone: str
    market: Market
    begin_at: float
    end_at: float
    usd: Decimal | None = None
    on_demand_usd: Decimal | None = None

    def cost(self, usd: Decimal) -> Decimal:
        """Dollars for its whole time at a price an hour."""
        return usd * Decimal(str(max(0.0, self.end_at - self.begin_at))) / HOUR_S


@dataclass(frozen=True, slots=True, kw_only=True)
class Bill:
    """Sum and parts. `on_demand` is the same hours of the same types on demand; both only over what has prices."""

    spent: Decimal
    on_demand: Decimal
    by_instance: tuple[tuple[str, Decimal], ...]
    unpriced: tuple[str, ...]  # instances whose price nobody knows: their cost is missing above

    @property
    def saved(self) -> Decimal:
        """The part of the on-demand price that was saved, 0.475 for 47.5 %; 0 where there is nothing to compare."""
        return 1 - self.spent / self.on_demand if self.on_demand else Decimal(0)

    def money(self) -> Money | None:
        """For the page; None if no price is known."""
        if not self.by_instance:
            return None
        return Money(spent_usd=float(_cents(self.spent)), on_demand_usd=float(_cents(self.on_demand)))


def bill(rentals: Iterable[Rental]) -> Bill:
    """The bill of these instances. Where a twin's on-demand price is not known, it is left out of both sums' saving."""
    parts: list[tuple[str, Decimal]] = []
    unpriced: list[str] = []
    on_demand = Decimal(0)
    for one in rentals:
        usd = one.usd if one.usd is not None or one.market is not Market.ON_DEMAND else one.on_demand_usd
        if usd is None:
            unpriced.append(one.instance)
            continue
        parts.append((one.instance, one.cost(usd)))
        on_demand += one.cost(one.on_demand_usd if one.on_demand_usd is not None else usd)
    spent = sum((cost for _, cost in parts), Decimal(0))
    return Bill(spent=spent, on_demand=on_demand, by_instance=tuple(parts), unpriced=tuple(unpriced))


def rentals(history: Sequence[History], *, on_demand: Mapping[str, Decimal], until: float) -> tuple[Rental, ...]:
    """Each instance that was bound, with the pool and the price that its entry holds; those that run end `until`."""
    found: dict[str, Rental] = {}
    ends: dict[str, float] = {}
    taken: set[str] = set()
    for entry in sorted(history, key=lambda one: one.at_ms):
        instance, at = entry.instance or "", entry.at_ms / 1000
        if entry.what == _K.BOUND and instance not in found:
            rental = _rental(entry, on_demand, until)
            found |= {} if rental is None else {instance: rental}
        elif entry.what in _ENDS:
            ends.setdefault(instance, at)
        elif entry.what == _K.NOTICE and entry.cause is Cause.INTERRUPTION:
            taken.add(instance)
    ended = (
        dataclasses.replace(one, end_at=max(one.begin_at, ends.get(one.instance, until))) for one in found.values()
    )
    return tuple(_as_billed(one, is_taken=one.instance in taken and one.instance in ends) for one in ended)


def _as_billed(one: Rental, *, is_taken: bool) -> Rental:
    """A Spot instance that EC2 interrupts in its first hour is free."""
    is_free = is_taken and one.market is Market.SPOT and one.end_at - one.begin_at < HOUR_S
    return dataclasses.replace(one, usd=Decimal(0)) if is_free and one.usd is not None else one


def on_demand_prices(entries: Iterable[str]) -> dict[str, Decimal]:
    """`type=usd` entries of a run spec; what is no price is left out."""
    pairs = (entry.partition("=") for entry in entries)
    known = ((kind, _usd(usd)) for kind, _, usd in pairs)
    return {kind: usd for kind, usd in known if usd is not None}


def pool_and_price(detail: str) -> tuple[str, str, Market, Decimal | None] | None:
    """Type, zone, market and price of a BOUND entry's `type#zone#market[#usd]`; None where it says no pool."""
    parts = detail.split("#")
    if len(parts) not in (3, 4) or parts[2] not in set(Market):
        return None
    return parts[0], parts[1], Market(parts[2]), _usd(parts[3]) if len(parts) == 4 else None


def _rental(entry: History, on_demand: Mapping[str, Decimal], until: float) -> Rental | None:
    pool = pool_and_price(entry.detail)
    if pool is None:
        return None
    instance_type, zone, market, usd = pool
    return Rental(
        instance=entry.instance or "",
        instance_type=instance_type,
        zone=zone,
        market=market,
        begin_at=entry.at_ms / 1000,
        end_at=until,
        usd=usd,
        on_demand_usd=on_demand.get(instance_type),
    )


def _usd(text: str) -> Decimal | None:
    try:
        usd = Decimal(text)
    except InvalidOperation:
        return None
    return usd if usd.is_finite() and usd >= 0 else None


def _cents(usd: Decimal) -> Decimal:
    return usd.quantize(CENT, rounding=ROUND_HALF_UP)

"""What machines cost: an estimate, from launch times and the prices that are known.

Too high by what EC2 does not bill (an instance that it interrupts in its first hour is free), too low by the seconds
of instances that came and went between two looks, and by disks, traffic and the control plane.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from spotproof.contract.frozen import dataclass
from spotproof.contract.states import Market


@dataclass(frozen=True, slots=True, kw_only=True)
class Rented:
    """A machine that runs since `since` (Unix seconds)."""

    instance_type: str
    zone: str
    market: Market
    since: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Prices:
    """Dollars an hour: on-demand by type, Spot by type and zone."""

    on_demand: Mapping[str, float]
    spot: Mapping[tuple[str, str], float]

    def of(self, machine: Rented) -> float:
        """The machine's price; an unknown Spot price counts as on-demand, an unknown on-demand price as nothing."""
        on_demand = self.on_demand.get(machine.instance_type, 0.0)
        if machine.market is Market.SPOT:
            return self.spot.get((machine.instance_type, machine.zone), on_demand)
        return on_demand


def prices_of(on_demand: Iterable[str], spot: Mapping[tuple[str, str], float]) -> Prices:
    """Prices from a run spec's `type=usd` entries and from what EC2 told of Spot."""
    pairs = (entry.partition("=") for entry in on_demand)
    return Prices(on_demand={kind: float(usd) for kind, _, usd in pairs}, spot=dict(spot))


def spent_usd(machines: Iterable[Rented], prices: Prices, *, since: int, now: int) -> float:
    """Dollars from `since` to `now`, each machine from its launch on, to the second."""
    return sum(prices.of(one) * max(0, now - max(since, one.since)) / 3600 for one in machines)

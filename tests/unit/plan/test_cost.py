"""What machines cost, by hand-made sums."""

from __future__ import annotations

import pytest

from spotproof.contract.states import Market
from spotproof.plan.cost import Rented, prices_of, spent_usd

PRICES = prices_of(("g5.xlarge=1.0", "p4d.24xlarge=32.77"), {("g5.xlarge", "a"): 0.25})


def rented(kind: str = "g5.xlarge", zone: str = "a", market: Market = Market.SPOT, since: int = 0) -> Rented:
    return Rented(instance_type=kind, zone=zone, market=market, since=since)


@pytest.mark.parametrize(
    ("machine", "usd"),
    [
        (rented(), 0.25),
        (rented(zone="b"), 1.0),  # no Spot price is known there: it counts as on-demand
        (rented(market=Market.ON_DEMAND), 1.0),
        (rented("p4d.24xlarge", market=Market.ON_DEMAND), 32.77),
        (rented("m5.large", market=Market.ON_DEMAND), 0.0),  # unknown
    ],
)
def test_an_hour(machine: Rented, usd: float) -> None:
    assert spent_usd([machine], PRICES, since=0, now=3600) == pytest.approx(usd)


def test_each_machine_costs_from_its_launch_or_the_last_estimate_on() -> None:
    machines = [rented(since=0), rented(since=5400), rented(since=9000)]
    assert spent_usd(machines, PRICES, since=3600, now=7200) == pytest.approx(0.25 * (1 + 0.5))


def test_estimates_one_after_the_other_make_the_whole() -> None:
    parts = sum(spent_usd([rented()], PRICES, since=at, now=at + 300) for at in range(0, 7200, 300))
    assert parts == pytest.approx(0.5)

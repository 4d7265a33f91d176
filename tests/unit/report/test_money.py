"""What a run's instances cost, from its timeline."""

from __future__ import annotations

from decimal import Decimal

import pytest

from spotproof.contract.history import HistoryKind as K
from spotproof.contract.items import History
from spotproof.contract.states import Cause, Market
from spotproof.report.money import bill, on_demand_prices, pool_and_price, rentals

HOUR_MS = 3_600_000


def bound(instance: str, at_h: float, detail: str) -> History:
    return History(run="r", at_ms=int(at_h * HOUR_MS), what=K.BOUND.value, slot=0, instance=instance, detail=detail)


def ended(instance: str, at_h: float, what: K = K.ENDED) -> History:
    return History(run="r", at_ms=int(at_h * HOUR_MS), what=what.value, instance=instance)


def test_an_instance_costs_from_its_launch_to_its_end_and_one_that_runs_until_now() -> None:
    told = [bound("i-1", 0, "g5.xlarge#a#spot#0.4"), ended("i-1", 2), bound("i-2", 2, "g5.xlarge#b#spot#0.5")]
    made = bill(rentals(told, on_demand={}, until=3 * 3600))
    assert made.by_instance == (("i-1", Decimal("0.8")), ("i-2", Decimal("0.5")))


def test_surplus_and_orphans_cost_too_and_an_end_that_is_told_twice_is_one() -> None:
    told = [
        bound("i-1", 0, "g5.xlarge#a#spot#1"),
        ended("i-1", 1, K.ORPHAN_ENDED),
        ended("i-1", 5),
    ]
    assert bill(rentals(told, on_demand={}, until=9 * 3600)).spent == 1


@pytest.mark.parametrize(
    ("hours", "cause", "spent"), [(0.5, Cause.INTERRUPTION, 0), (2, Cause.INTERRUPTION, 2), (0.5, Cause.DRILL, 0.5)]
)
def test_a_spot_instance_that_ec2_takes_back_in_its_first_hour_is_free(
    hours: float, cause: Cause, spent: float
) -> None:
    sign = History(run="r", at_ms=int(hours * HOUR_MS) - 1, what=K.NOTICE.value, instance="i-1", cause=cause)
    told = [bound("i-1", 0, "g5.xlarge#a#spot#1"), sign, ended("i-1", hours)]
    assert bill(rentals(told, on_demand={}, until=9 * 3600)).spent == Decimal(str(spent))


def test_a_price_that_nobody_noted_is_missing_and_said() -> None:
    made = bill(rentals([bound("i-1", 0, "g5.xlarge#a#spot")], on_demand={}, until=3600))
    assert (made.spent, made.unpriced) == (Decimal(0), ("i-1",))
    assert made.money() is None


def test_on_demand_without_a_noted_price_has_the_specs() -> None:
    prices = on_demand_prices(["g5.xlarge=1.006", "bad", "g6.xlarge=NaN", "g4dn.xlarge=-1"])
    assert prices == {"g5.xlarge": Decimal("1.006")}
    made = bill(rentals([bound("i-1", 0, "g5.xlarge#a#on-demand")], on_demand=prices, until=3600))
    assert (made.spent, made.on_demand, made.saved) == (Decimal("1.006"), Decimal("1.006"), Decimal(0))


@pytest.mark.parametrize("detail", ["", "g5.xlarge", "g5.xlarge#a", "g5.xlarge#a#moon", "a#b#spot#1#2"])
def test_what_says_no_pool_is_no_rental(detail: str) -> None:
    assert pool_and_price(detail) is None
    assert rentals([bound("i-1", 0, detail)], on_demand={}, until=9) == ()


@pytest.mark.parametrize("price", ["", "x", "NaN", "-1", "Infinity"])
def test_what_is_no_price_is_no_price(price: str) -> None:
    assert pool_and_price(f"g5.xlarge#a#spot#{price}") == ("g5.xlarge", "a", Market.SPOT, None)

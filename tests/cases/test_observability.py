"""OBS: metrics that no odd value can break, and money that is each instance's own."""

from __future__ import annotations

import json
import math
from decimal import Decimal
from typing import Any

import pytest

from lambdas.effects.meter import Meter
from spotproof.agent.heartbeat import Condition, Place, Vitals
from spotproof.contract.metrics import METRICS, Dimension, Metric
from spotproof.contract.states import Market, NodePhase
from spotproof.report.money import Rental, bill

PLACE = Place(run="mini", slot=0, incarnation=1, instance="i-1")
HOUR_S = 3600.0


def strict(line: str) -> dict[str, Any]:
    """A strict parser: NaN and Infinity are no JSON."""

    def refuse(word: str) -> None:
        raise AssertionError(f"{word} is not JSON")

    document: dict[str, Any] = json.loads(line, parse_constant=refuse)
    return document


@pytest.mark.parametrize("loss", [math.nan, math.inf, -math.inf])
def test_OBS_01_a_nan_loss_is_dropped_and_counted_and_the_step_time_beside_it_is_delivered(loss: float) -> None:
    lines: list[str] = []
    vitals = Vitals(stack="prod", write=lines.append, now=lambda: 1_777_888_800)
    vitals.tell(PLACE, Condition(phase=NodePhase.TRAINING, step=7, loss=loss, step_s=0.8), missed=0)
    [line] = [strict(line) for line in lines]
    assert "loss" not in line
    assert (line[Metric.NONFINITE_LOSS], line[Metric.STEP]) == ([1], [0.8])


def test_OBS_01_a_step_time_that_is_no_number_is_dropped_and_counted() -> None:
    lines: list[str] = []
    vitals = Vitals(stack="prod", write=lines.append, now=lambda: 1_777_888_800)
    vitals.tell(PLACE, Condition(phase=NodePhase.TRAINING, step=7, loss=2.5, step_s=math.nan), missed=0)
    [line] = [strict(line) for line in lines]
    assert Metric.STEP.value not in line
    assert (line["loss"], line[Metric.NONFINITE_VALUES]) == (2.5, [1])


@pytest.mark.parametrize("metric", [row.metric for row in METRICS], ids=str)
@pytest.mark.parametrize("value", [math.nan, math.inf, 1.0])
def test_OBS_01_every_line_of_the_meter_parses_strictly(metric: Metric, value: float) -> None:
    lines: list[str] = []
    meter = Meter("prod", write=lines.append)
    meter.add(metric, value, cause="interruption", family="g5", zone="us-east-1a")
    meter.add(Metric.CLAIMS, 1)
    meter.flush()
    assert any(strict(line).get(Metric.CLAIMS.value) for line in lines)


@pytest.mark.parametrize("empty", ["", "none"])
@pytest.mark.parametrize("metric", [row.metric for row in METRICS if row.dimensions], ids=str)
def test_OBS_05_an_empty_dimension_has_a_placeholder_and_the_set_stays_what_it_is(metric: Metric, empty: str) -> None:
    def sets(*, cause: str, family: str, zone: str) -> tuple[list[list[str]], dict[str, Any]]:
        lines: list[str] = []
        meter = Meter("prod", write=lines.append)
        meter.add(metric, 1, cause=cause, family=family, zone=zone)
        meter.flush()
        [line] = [strict(line) for line in lines]
        [directive] = line["_aws"]["CloudWatchMetrics"]
        return directive["Dimensions"], line

    given, _ = sets(cause="interruption", family="g5", zone="us-east-1a")
    without, line = sets(cause=empty, family=empty, zone=empty)
    assert without == given
    assert all(line[name] for dimensions in without for name in dimensions)
    assert {line[name] for dimensions in without for name in dimensions if name != Dimension.STACK} == {"none"}


def test_OBS_05_a_stack_without_a_name_is_still_found() -> None:
    lines: list[str] = []
    meter = Meter("", write=lines.append)
    meter.add(Metric.CLAIMS, 1)
    meter.flush()
    assert strict(lines[0])["stack"] == "none"


def rental(instance: str, hours: float, market: Market, usd: str | None, twin: str | None = "32.77") -> Rental:
    return Rental(
        instance=instance,
        instance_type="p5.48xlarge",
        zone="us-east-1a",
        market=market,
        begin_at=0,
        end_at=hours * HOUR_S,
        usd=None if usd is None else Decimal(usd),
        on_demand_usd=None if twin is None else Decimal(twin),
    )


def test_OBS_02_spot_and_on_demand_hours_are_priced_by_what_each_instance_was() -> None:
    made = bill([rental("i-1", 3, Market.SPOT, "12.00"), rental("i-2", 1, Market.ON_DEMAND, "32.77")])
    assert (made.spent, made.on_demand) == (Decimal("68.77"), Decimal("131.08"))
    assert round(made.saved * 100, 1) == Decimal("47.5")


def test_OBS_03_an_old_run_keeps_its_price_when_the_catalogue_forgets_the_type() -> None:
    made = bill([rental("i-1", 3, Market.SPOT, "12.00", twin=None)])
    assert (made.spent, made.unpriced) == (Decimal("36.00"), ())


def test_OBS_04_the_cost_of_a_run_is_the_sum_of_all_its_instances_and_can_be_split() -> None:
    made = bill([rental(f"i-{number}", number, Market.SPOT, "2.00") for number in (1, 2, 3)])
    assert made.spent == Decimal("12.00")
    assert made.by_instance == (("i-1", Decimal("2.00")), ("i-2", Decimal("4.00")), ("i-3", Decimal("6.00")))

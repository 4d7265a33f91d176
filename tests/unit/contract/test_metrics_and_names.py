"""The tables that dashboards, alarms, queues and functions are generated from."""

from __future__ import annotations

from pathlib import Path

import pytest

from spotproof.contract import limits, names
from spotproof.contract.events import Queue
from spotproof.contract.metrics import METRICS, Dimension, Metric, MetricRow, Section, Unit, row_of
from spotproof.contract.names import FUNCTIONS, Function, FunctionRow, function_of

ROOT = Path(__file__).parents[3]
VALUES_AT_MOST = {Dimension.CAUSE: 20, Dimension.ZONE: 30, Dimension.FAMILY: 40}


def test_every_metric_has_one_row() -> None:
    assert sorted(row.metric for row in METRICS) == sorted(Metric)
    assert all(row_of(metric).metric is metric for metric in Metric)


def test_names_are_unique_whatever_their_case() -> None:
    assert len({metric.value.lower() for metric in Metric}) == len(Metric)
    assert all(metric.value.isalnum() for metric in Metric)


@pytest.mark.parametrize("row", METRICS, ids=lambda row: row.metric.value)
def test_a_metrics_dimensions_are_bounded(row: MetricRow) -> None:
    # The stack is on every metric already; a run id never is one.
    assert Dimension.STACK not in row.dimensions
    assert len(set(row.dimensions)) == len(row.dimensions)
    # They are never crossed: a metric is published once for the stack and once for each dimension by itself.
    assert 1 + sum(VALUES_AT_MOST[dimension] for dimension in row.dimensions) <= 100


@pytest.mark.parametrize("row", METRICS, ids=lambda row: row.metric.value)
def test_a_metric_says_what_it_counts(row: MetricRow) -> None:
    assert 15 <= len(row.says) <= 100
    assert row.says[0].islower() or row.says.startswith("EC2")
    assert not row.says.endswith(".")


def test_there_is_no_dimension_for_a_run_an_instance_or_a_slot() -> None:
    assert {dimension.value for dimension in Dimension} == {"stack", "family", "zone", "cause"}


def test_a_unit_is_in_the_name() -> None:
    in_seconds = [row.metric for row in METRICS if row.unit is Unit.SECONDS]
    assert in_seconds == [row.metric for row in METRICS if row.metric.value.endswith("Seconds")]


def test_every_section_of_the_dashboard_has_something_to_show() -> None:
    assert {row.section for row in METRICS} == set(Section)


def test_an_alarm_is_a_sentence_and_rings_for_something() -> None:
    alarms = [row.alarm for row in METRICS if row.alarm is not None]
    assert alarms
    assert all(alarm.threshold >= 1 and alarm.says.endswith(".") and len(alarm.says) > 20 for alarm in alarms)


# --- functions and queues ---------------------------------------------------------------------------------------------
def test_every_function_has_one_row() -> None:
    assert sorted(row.function for row in FUNCTIONS) == sorted(Function)
    assert all(function_of(function).function is function for function in Function)


def test_every_queue_feeds_exactly_one_function() -> None:
    fed = [row.queue for row in FUNCTIONS if row.queue is not None]
    assert sorted(fed) == sorted(Queue)


@pytest.mark.parametrize("row", FUNCTIONS, ids=lambda row: row.function.value)
def test_a_functions_handler_is_there(row: FunctionRow) -> None:
    module, _, name = row.handler.rpartition(".")
    file = ROOT / (module.replace(".", "/") + ".py")
    assert name == "handler"
    assert file.is_file()
    assert "def handler(" in file.read_text()


@pytest.mark.parametrize("row", FUNCTIONS, ids=lambda row: row.function.value)
def test_a_functions_limits_are_possible(row: FunctionRow) -> None:
    assert 1 <= row.timeout_s <= 900
    assert 128 <= row.memory_mib <= 10_240
    # SQS allows an event source at least two workers; a schedule has none.
    assert row.max_concurrency >= (2 if row.queue else 1)
    assert row.timeout_s * names.VISIBILITY_FACTOR <= 43_200


def test_the_sweep_ends_before_its_next_tick() -> None:
    assert function_of(Function.SWEEP).timeout_s < limits.SWEEP_PERIOD_S


def test_outputs_are_unique() -> None:
    assert len(set(names.OUTPUTS)) == len(names.OUTPUTS)
    declared = {value for name, value in vars(names).items() if name.startswith("OUTPUT_")}
    assert set(names.OUTPUTS) == declared


# --- numbers ----------------------------------------------------------------------------------------------------------
def test_the_products_numbers_fit_together() -> None:
    assert limits.SILENCE_S >= 3 * limits.HEARTBEAT_S, "a lost beat is no silence"
    assert limits.SILENCE_SEEN_WITHIN_S >= limits.SILENCE_S + limits.SWEEP_PERIOD_S
    assert limits.FLUSH_MARGIN_S < limits.NOTICE_S
    assert limits.PREFLIGHT_BUDGET_S <= limits.NOTICE_S - limits.FLUSH_MARGIN_S
    assert limits.SSM_DELIVERY_S < limits.NOTICE_S
    assert limits.EXECUTION_LIMIT_S < limits.NOTICE_S
    assert limits.POOL_COOLDOWN_S < limits.POOL_COOLDOWN_MAX_S < limits.POOL_NOT_OFFERED_S
    assert function_of(Function.REPAIR).timeout_s <= limits.LAUNCHER_LEASE_S, "a lease outlives its holder's work"
    assert 0 < limits.MASS_SILENCE_SHARE < 1

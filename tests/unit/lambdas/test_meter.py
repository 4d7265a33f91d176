"""What the meter writes is EMF with bounded dimensions, whatever it was told."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

from lambdas.effects.meter import Meter
from spotproof.contract.metrics import NAMESPACE, Metric


def no_json(word: str) -> None:
    raise AssertionError(f"{word} is not JSON")


class Log:
    """What was written, through a parser that takes nothing but JSON."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def objects(self) -> list[dict[str, Any]]:
        return [json.loads(line, parse_constant=no_json) for line in self.lines]


@pytest.fixture
def log() -> Log:
    return Log()


@pytest.fixture
def meter(log: Log) -> Meter:
    return Meter("prod", write=log.lines.append, clock=lambda: 1_777_888_800.5)


def sets_of(blob: dict[str, Any], metric: Metric) -> list[list[str]]:
    """The dimension sets under which a metric is published."""
    return next(
        directive["Dimensions"]
        for directive in blob["_aws"]["CloudWatchMetrics"]
        if metric.value in {named["Name"] for named in directive["Metrics"]}
    )


def test_values_of_one_set_of_labels_are_one_object(meter: Meter, log: Log) -> None:
    meter.add(Metric.CLAIMS, 1)
    meter.add(Metric.CLAIMS, 1)
    meter.add(Metric.EVENT_DELAY, 2.5)
    meter.add(Metric.EVENT_DELAY, 4)
    meter.flush()
    [blob] = log.objects()
    [directive] = blob["_aws"]["CloudWatchMetrics"]
    assert blob["_aws"]["Timestamp"] == 1_777_888_800_500
    assert (directive["Namespace"], directive["Dimensions"]) == (NAMESPACE, [["stack"]])
    assert (blob["stack"], blob["Claims"], blob["EventDelaySeconds"]) == ("prod", [2], [2.5, 4])
    units = {metric["Name"]: metric["Unit"] for metric in directive["Metrics"]}
    assert units == {"Claims": "Count", "EventDelaySeconds": "Seconds"}


def test_a_metric_is_published_for_the_stack_and_once_for_each_dimension_of_its_row(meter: Meter, log: Log) -> None:
    meter.add(Metric.INTERRUPTIONS, 1, cause="interruption", family="g5", zone="us-east-1a")
    meter.flush()
    [blob] = log.objects()
    assert sets_of(blob, Metric.INTERRUPTIONS) == [
        ["stack"],
        ["stack", "cause"],
        ["stack", "family"],
        ["stack", "zone"],
    ]
    assert (blob["cause"], blob["family"], blob["zone"]) == ("interruption", "g5", "us-east-1a")


def test_a_label_counts_only_where_the_table_says_so(meter: Meter, log: Log) -> None:
    meter.add(Metric.RUNS_BLOCKED, 1, cause="quota", family="g5")
    meter.add(Metric.RUNS_BLOCKED, 1, cause="configuration")
    meter.add(Metric.CLAIMS, 1, cause="interruption")
    meter.flush()
    blobs = log.objects()
    assert [blob.get("cause") for blob in blobs] == [None, "configuration", "quota"]
    assert not any("family" in blob for blob in blobs)


@pytest.mark.parametrize("bad", ["two words", "x" * 65, "run:7", "a\nb", "naïve", "<b>"])
def test_a_strange_label_makes_no_series_of_its_own(meter: Meter, log: Log, bad: str) -> None:
    meter.add(Metric.RUNS_BLOCKED, 1, cause=bad)
    meter.flush()
    [blob] = log.objects()
    assert blob["cause"] == "other"


def test_more_values_than_an_array_may_hold_are_several_lines_and_none_is_lost(meter: Meter, log: Log) -> None:
    for number in range(250):
        meter.add(Metric.EVENT_DELAY, number)
        meter.add(Metric.CLAIMS, 1)
    meter.flush()
    blobs = log.objects()
    assert [len(blob["EventDelaySeconds"]) for blob in blobs] == [100, 100, 50]
    assert sorted(value for blob in blobs for value in blob["EventDelaySeconds"]) == list(range(250))
    assert sum(sum(blob.get("Claims", [])) for blob in blobs) == 250


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_value_that_is_no_number_is_dropped_and_counted(meter: Meter, log: Log, bad: float) -> None:
    meter.add(Metric.EVENT_DELAY, bad)
    meter.add(Metric.EVENT_DELAY, 1)
    meter.flush()
    [blob] = log.objects()
    assert (blob["EventDelaySeconds"], blob["NonFiniteValues"]) == ([1], [1])


def test_nothing_is_written_when_nothing_was_counted_and_never_twice(meter: Meter, log: Log) -> None:
    meter.flush()
    meter.add(Metric.CLAIMS, 1)
    meter.flush()
    meter.flush()
    assert len(log.lines) == 1

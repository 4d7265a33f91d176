"""What the meter writes is EMF with bounded dimensions."""

from __future__ import annotations

import json

import pytest

from lambdas.effects.meter import Meter
from spotproof.contract.metrics import NAMESPACE, Metric


def written(capsys: pytest.CaptureFixture[str]) -> list[dict[str, object]]:
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_values_of_one_set_of_dimensions_are_one_object(capsys: pytest.CaptureFixture[str]) -> None:
    meter = Meter("prod")
    meter.add(Metric.CLAIMS, 1)
    meter.add(Metric.CLAIMS, 1)
    meter.add(Metric.EVENT_DELAY, 2.5)
    meter.flush()
    [blob] = written(capsys)
    [directive] = blob["_aws"]["CloudWatchMetrics"]  # type: ignore[index]
    assert (directive["Namespace"], directive["Dimensions"]) == (NAMESPACE, [["stack"]])
    assert (blob["stack"], blob["Claims"], blob["EventDelaySeconds"]) == ("prod", [1.0, 1.0], [2.5])
    units = {metric["Name"]: metric["Unit"] for metric in directive["Metrics"]}
    assert units == {"Claims": "Count", "EventDelaySeconds": "Seconds"}


def test_a_cause_is_a_dimension_only_where_the_table_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    meter = Meter("prod")
    meter.add(Metric.LAUNCH_ERRORS, 1, cause="capacity")
    meter.add(Metric.LAUNCH_ERRORS, 1, cause="throttle")
    meter.add(Metric.CLAIMS, 1, cause="interruption")
    meter.flush()
    blobs = written(capsys)
    assert [blob.get("cause") for blob in blobs] == [None, "capacity", "throttle"]


def test_nothing_is_written_when_nothing_was_counted_and_never_twice(capsys: pytest.CaptureFixture[str]) -> None:
    meter = Meter("prod")
    meter.flush()
    meter.add(Metric.CLAIMS, 1)
    meter.flush()
    meter.flush()
    assert len(written(capsys)) == 1

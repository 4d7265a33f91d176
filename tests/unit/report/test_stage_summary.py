"""Recoveries together: p50 and p95 of each stage."""

from __future__ import annotations

import pytest

from spotproof.report.model import Recovery, Stage, StageSpan
from spotproof.report.stagesummary import quantile, stage_summary, summaries


def recovery(number: int, **seconds: float) -> Recovery:
    spans = tuple(StageSpan(stage=Stage[name.upper()], begin_at=0, end_at=length) for name, length in seconds.items())
    return Recovery(slot=0, incarnation=number, cause="interruption", lost="i-1", begin_at=0, stages=spans)


@pytest.mark.parametrize(
    ("values", "share", "expected"),
    [([3.0], 0.5, 3.0), ([3.0], 0.95, 3.0), ([1, 2], 0.5, 1), ([1, 2, 3, 4], 0.5, 2), (range(1, 101), 0.95, 95)],
)
def test_a_quantile_is_a_value_that_was_measured(values: list[float], share: float, expected: float) -> None:
    assert quantile([*values], share) == expected


def test_no_value_has_no_quantile() -> None:
    with pytest.raises(ValueError, match="no value"):
        quantile([], 0.5)


def test_a_stage_that_nobody_measured_is_left_out() -> None:
    found = summaries([recovery(1, boot=10, park=1), recovery(2, boot=30), recovery(3, boot=20)])
    assert [(one.stage, one.count, one.p50_s, one.p95_s) for one in found] == [
        (Stage.BOOT, 3, 20, 30),
        (Stage.PARK, 1, 1, 1),
    ]


def test_one_recovery_needs_no_summary() -> None:
    assert stage_summary([recovery(1, boot=10)]) == ""
    assert "p50 10 s, p95 30 s, measured 2 times" in stage_summary([recovery(1, boot=10), recovery(2, boot=30)])

"""The guide page has the metric table as it is."""

from __future__ import annotations

from pathlib import Path

import pytest

from spotproof.contract.metrics import METRICS, MetricRow, Section

PAGE = (Path(__file__).parents[3] / "docs" / "observability.md").read_text()


def line_of(row: MetricRow) -> str:
    by = ", ".join(one.value for one in row.dimensions) or "-"
    rings = "-" if row.alarm is None else f"from {row.alarm.threshold} in 5 min"
    return f"| `{row.metric.value}` | {row.unit.value} | {by} | {row.says} | {rings} |"


@pytest.mark.parametrize("section", Section, ids=lambda section: section.value)
def test_a_section_of_the_page_is_the_metric_tables(section: Section) -> None:
    _, heading, rest = PAGE.partition(f"### {section.value}\n")
    assert heading
    lines = [line for line in rest.partition("\n#")[0].splitlines() if line.startswith("| `")]
    assert lines == [line_of(row) for row in METRICS if row.section is section]

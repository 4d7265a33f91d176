"""The dashboard, generated from the metric table: one section per Section, one graph per metric."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from aws_cdk import Duration
from aws_cdk import aws_cloudwatch as cloudwatch
from aws_cdk import aws_sqs as sqs
from constructs import Construct

from spotproof.contract.metrics import METRICS, NAMESPACE, Dimension, MetricRow, Section, Unit

PERIOD: Final = Duration.minutes(5)
WIDTH: Final = 6  # four graphs in a row of 24
HEIGHT: Final = 6


class Dashboard(Construct):
    """`name` is generated: dashboards share one namespace per account."""

    def __init__(self, scope: Construct, construct_id: str, *, stack: str, letters: Mapping[str, sqs.Queue]) -> None:
        super().__init__(scope, construct_id)
        rows = [_section(section, stack) for section in Section]
        self.dashboard = cloudwatch.Dashboard(
            self, "Dashboard", default_interval=Duration.hours(6), widgets=[*rows, [_letters(letters)]]
        )
        self.name = self.dashboard.dashboard_name


def _section(section: Section, stack: str) -> list[cloudwatch.IWidget]:
    title = cloudwatch.TextWidget(markdown=f"## {section.value}", width=24, height=1)
    return [title, *(_graph(row, stack) for row in METRICS if row.section is section)]


def _graph(row: MetricRow, stack: str) -> cloudwatch.GraphWidget:
    return cloudwatch.GraphWidget(title=row.metric.value, left=_lines(row, stack), width=WIDTH, height=HEIGHT)


def _lines(row: MetricRow, stack: str) -> list[cloudwatch.IMetric]:
    if row.dimensions:
        return [_by_dimension(row, stack)]
    statistics = ("p50", "p95") if row.unit is Unit.SECONDS else ("Sum",)
    return [
        cloudwatch.Metric(
            namespace=NAMESPACE,
            metric_name=row.metric.value,
            dimensions_map={Dimension.STACK.value: stack},
            statistic=statistic,
            label=statistic if len(statistics) > 1 else row.metric.value,
            period=PERIOD,
        )
        for statistic in statistics
    ]


def _by_dimension(row: MetricRow, stack: str) -> cloudwatch.IMetric:
    """One line per value that has been seen of the row's own dimensions."""
    schema = ",".join([NAMESPACE, Dimension.STACK.value, *(one.value for one in row.dimensions)])
    statistic = "p95" if row.unit is Unit.SECONDS else "Sum"
    wanted = f'{{{schema}}} MetricName="{row.metric.value}" {Dimension.STACK.value}="{stack}"'
    search = f"SEARCH('{wanted}', '{statistic}', {PERIOD.to_seconds():.0f})"
    return cloudwatch.MathExpression(expression=search, using_metrics={}, label="", period=PERIOD)


def _letters(letters: Mapping[str, sqs.Queue]) -> cloudwatch.IWidget:
    depths = [
        queue.metric_approximate_number_of_messages_visible(label=what, statistic="Maximum")
        for what, queue in letters.items()
    ]
    return cloudwatch.GraphWidget(title="Must stay empty", left=depths, width=24, height=4)

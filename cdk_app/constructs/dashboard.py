"""The dashboard, generated from the metric table: the runs, then one section per Section, graphs for each metric."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from aws_cdk import Duration
from aws_cdk import aws_cloudwatch as cloudwatch
from aws_cdk import aws_lambda as lambda_
from aws_cdk import aws_sqs as sqs
from constructs import Construct

from spotproof.contract.metrics import METRICS, NAMESPACE, Dimension, Metric, MetricRow, Section, Unit

PERIOD: Final = Duration.minutes(5)
WIDTH: Final = 6  # four graphs in a row of 24
HEIGHT: Final = 6
RUNS: Final = "Runs"
# Stages that follow each other: stacked they are a recovery.
STAGES: Final = (
    Metric.EVENT_DELAY,
    Metric.CLAIM_TO_INSTANCE,
    Metric.BOOT,
    Metric.PARK,
    Metric.RESTORE,
    Metric.FIRST_STEP,
)


class Dashboard(Construct):
    """`name` is generated: dashboards share one namespace per account. `widget` is asked for the runs' stories."""

    def __init__(
        self,
        scope: Construct,
        construct_id: str,
        *,
        stack: str,
        letters: Mapping[str, sqs.Queue],
        widget: lambda_.IFunction,
    ) -> None:
        super().__init__(scope, construct_id)
        rows = [_section(section, stack) for section in Section]
        self.dashboard = cloudwatch.Dashboard(
            self,
            "Dashboard",
            default_interval=Duration.hours(6),
            widgets=[[_runs(widget)], *rows, [_letters(letters)]],
        )
        self.name = self.dashboard.dashboard_name


def _runs(widget: lambda_.IFunction) -> cloudwatch.IWidget:
    """The slot for one run's story: it lists the live runs; `run` among its parameters pins one.

    CloudWatch calls the function with the permissions of whoever looks, once that person has allowed it.
    """
    return cloudwatch.CustomWidget(
        function_arn=widget.function_arn,
        title=RUNS,
        update_on_refresh=True,
        update_on_resize=False,
        update_on_time_range_change=False,
        width=24,
        height=9,
    )


def _section(section: Section, stack: str) -> list[cloudwatch.IWidget]:
    rows = [row for row in METRICS if row.section is section]
    words = " · ".join(f"**{row.metric.value}**: {row.says}" for row in rows)
    title = cloudwatch.TextWidget(markdown=f"## {section.value}\n{words}", width=24, height=2 + len(words) // 400)
    drawn = [_stacked("p50", stack), _stacked("p95", stack)] if section is Section.PHASES else []
    return [title, *drawn, *(graph for row in rows for graph in _graphs(row, stack))]


def _stacked(statistic: str, stack: str) -> cloudwatch.IWidget:
    """A recovery as one column: its stages one upon the other."""
    lines = [_line(metric, stack, statistic, label=metric.value.removesuffix("Seconds")) for metric in STAGES]
    return cloudwatch.GraphWidget(
        title=f"One recovery, {statistic} of each stage", left=[*lines], stacked=True, width=12, height=HEIGHT
    )


def _graphs(row: MetricRow, stack: str) -> list[cloudwatch.IWidget]:
    if row.dimensions:
        return [_graph(f"{row.metric.value} by {one.value}", [_by(row, one, stack)]) for one in row.dimensions]
    statistics = ("p50", "p95") if row.unit is Unit.SECONDS else ("Sum",)
    lines = [
        _line(row.metric, stack, one, label=one if len(statistics) > 1 else row.metric.value) for one in statistics
    ]
    return [_graph(row.metric.value, lines)]


def _graph(title: str, lines: list[cloudwatch.IMetric]) -> cloudwatch.IWidget:
    return cloudwatch.GraphWidget(title=title, left=lines, width=WIDTH, height=HEIGHT)


def _line(metric: Metric, stack: str, statistic: str, *, label: str) -> cloudwatch.IMetric:
    return cloudwatch.Metric(
        namespace=NAMESPACE,
        metric_name=metric.value,
        dimensions_map={Dimension.STACK.value: stack},
        statistic=statistic,
        label=label,
        period=PERIOD,
    )


def _by(row: MetricRow, dimension: Dimension, stack: str) -> cloudwatch.IMetric:
    """One line per value that has been seen of the dimension."""
    schema = f"{NAMESPACE},{Dimension.STACK.value},{dimension.value}"
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

"""The metric table, read by dashboard and alarms. Dimensions are bounded (stack, family, zone, cause): no run ids."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

NAMESPACE: Final = "Spotproof"


class Unit(StrEnum):
    """CloudWatch units that we use."""

    COUNT = "Count"
    SECONDS = "Seconds"


class Dimension(StrEnum):
    """The only dimensions; STACK is on every metric."""

    STACK = "stack"
    FAMILY = "family"
    ZONE = "zone"
    CAUSE = "cause"


class Section(StrEnum):
    """Sections of the dashboard."""

    OVERVIEW = "Overview"
    RECOVERY = "Recovery"
    CAPACITY = "Capacity"
    HYGIENE = "Hygiene"


class Metric(StrEnum):
    """Names as CloudWatch shows them."""

    INTERRUPTIONS = "Interruptions"
    LOSSES_WITHOUT_NOTICE = "LossesWithoutNotice"
    CLAIMS = "Claims"
    CLAIMS_LOST = "ClaimsLost"
    LAUNCHES = "Launches"
    LAUNCH_ERRORS = "LaunchErrors"
    INSTANCES_LAUNCHED = "InstancesLaunched"
    SURPLUS_ENDED = "SurplusEnded"
    ORPHANS_ENDED = "OrphansEnded"
    NEVER_JOINED = "NeverJoined"
    FLUSH_ORDERS = "FlushOrders"
    FLUSHES_COMMITTED = "FlushesCommitted"
    FLUSHES_FAILED = "FlushesFailed"
    IGNORED = "Ignored"
    MALFORMED = "Malformed"
    RUNS_BLOCKED = "RunsBlocked"
    RUNS_LIVE = "RunsLive"
    MASS_SILENCE = "MassSilence"
    NOTICE_TO_CLAIM = "NoticeToClaimSeconds"
    CLAIM_TO_INSTANCE = "ClaimToInstanceSeconds"
    EVENT_DELAY = "EventDelaySeconds"


@dataclass(frozen=True, slots=True, kw_only=True)
class Alarm:
    """When a metric rings: its sum over five minutes reaches `threshold`."""

    threshold: int
    says: str  # what happened and what, if anything, to do


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricRow:
    """A metric: unit, further dimensions, place on the dashboard, alarm."""

    metric: Metric
    unit: Unit
    section: Section
    dimensions: tuple[Dimension, ...] = ()
    alarm: Alarm | None = None


_C, _S = Unit.COUNT, Unit.SECONDS
METRICS: Final[tuple[MetricRow, ...]] = (
    MetricRow(metric=Metric.INTERRUPTIONS, unit=_C, section=Section.OVERVIEW, dimensions=(Dimension.CAUSE,)),
    MetricRow(metric=Metric.LOSSES_WITHOUT_NOTICE, unit=_C, section=Section.OVERVIEW),
    MetricRow(metric=Metric.RUNS_LIVE, unit=_C, section=Section.OVERVIEW),
    MetricRow(
        metric=Metric.RUNS_BLOCKED,
        unit=_C,
        section=Section.OVERVIEW,
        alarm=Alarm(threshold=1, says="A run cannot be filled: `spotproof status` names the cause and the next step."),
    ),
    MetricRow(metric=Metric.CLAIMS, unit=_C, section=Section.RECOVERY),
    MetricRow(metric=Metric.CLAIMS_LOST, unit=_C, section=Section.RECOVERY),
    MetricRow(metric=Metric.FLUSH_ORDERS, unit=_C, section=Section.RECOVERY),
    MetricRow(metric=Metric.FLUSHES_COMMITTED, unit=_C, section=Section.RECOVERY),
    MetricRow(
        metric=Metric.FLUSHES_FAILED,
        unit=_C,
        section=Section.RECOVERY,
        alarm=Alarm(threshold=1, says="A flush did not become durable: the run goes on from the commit before it."),
    ),
    MetricRow(metric=Metric.NOTICE_TO_CLAIM, unit=_S, section=Section.RECOVERY),
    MetricRow(metric=Metric.CLAIM_TO_INSTANCE, unit=_S, section=Section.RECOVERY),
    MetricRow(metric=Metric.EVENT_DELAY, unit=_S, section=Section.RECOVERY),
    MetricRow(metric=Metric.LAUNCHES, unit=_C, section=Section.CAPACITY),
    MetricRow(metric=Metric.INSTANCES_LAUNCHED, unit=_C, section=Section.CAPACITY),
    MetricRow(metric=Metric.LAUNCH_ERRORS, unit=_C, section=Section.CAPACITY, dimensions=(Dimension.CAUSE,)),
    MetricRow(metric=Metric.SURPLUS_ENDED, unit=_C, section=Section.HYGIENE),
    MetricRow(
        metric=Metric.ORPHANS_ENDED,
        unit=_C,
        section=Section.HYGIENE,
        alarm=Alarm(threshold=5, says="Several instances that no slot knew were ended: see the runs' history."),
    ),
    MetricRow(metric=Metric.NEVER_JOINED, unit=_C, section=Section.HYGIENE),
    MetricRow(metric=Metric.IGNORED, unit=_C, section=Section.HYGIENE),
    MetricRow(
        metric=Metric.MALFORMED,
        unit=_C,
        section=Section.HYGIENE,
        alarm=Alarm(threshold=1, says="An event did not parse: it is in the dead-letter queue with its reason."),
    ),
    MetricRow(
        metric=Metric.MASS_SILENCE,
        unit=_C,
        section=Section.HYGIENE,
        alarm=Alarm(threshold=1, says="Many nodes are silent at once: nothing is replaced until beats return."),
    ),
)


def row_of(metric: Metric) -> MetricRow:
    """The row of `metric`."""
    return next(row for row in METRICS if row.metric is metric)

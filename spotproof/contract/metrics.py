"""The metric table: dashboard, alarms, meter and guide page are made from it.

Dimensions are bounded (stack, family, zone, cause): no run ids. What one run did is told by its history, not here.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final

from spotproof.contract.frozen import dataclass

NAMESPACE: Final = "Spotproof"


class Unit(StrEnum):
    """CloudWatch units that we use."""

    COUNT = "Count"
    SECONDS = "Seconds"
    NONE = "None"  # dollars: CloudWatch has no unit for them


class Dimension(StrEnum):
    """The only dimensions; STACK is on every metric."""

    STACK = "stack"
    FAMILY = "family"
    ZONE = "zone"
    CAUSE = "cause"


class Section(StrEnum):
    """Sections of the dashboard."""

    OVERVIEW = "Overview"
    INTERRUPTIONS = "Interruptions"
    RECOVERY = "Recovery"
    PHASES = "Phases of a recovery"
    CAPACITY = "Capacity"
    TRAINING = "Training"
    HYGIENE = "Hygiene"


class Metric(StrEnum):
    """Names as CloudWatch shows them."""

    RUNS_LIVE = "RunsLive"
    RUNS_BLOCKED = "RunsBlocked"
    RUNS_PAUSED = "RunsPaused"
    RUNS_FAILED = "RunsFailed"
    WASTE_STEPS = "WasteSteps"
    WASTE_DOLLARS = "WasteDollars"
    INTERRUPTIONS = "Interruptions"
    ADVICE = "RebalanceAdvice"
    ADVICE_STORMS = "AdviceStorms"
    PREWARMED = "Prewarmed"
    MOVES_PLANNED = "MovesPlanned"
    ADOPTED = "Adopted"
    LOSSES_WITHOUT_NOTICE = "LossesWithoutNotice"
    SILENT_NODES = "SilentNodes"
    MASS_SILENCE = "MassSilence"
    CLAIMS = "Claims"
    CLAIMS_LOST = "ClaimsLost"
    FLUSH_ORDERS = "FlushOrders"
    COMMANDS_NOT_SENT = "CommandsNotSent"
    COMMANDS_ENDED = "CommandsEnded"
    FLUSHES_COMMITTED = "FlushesCommitted"
    FLUSHES_FAILED = "FlushesFailed"
    COMMITS_FOR_THE_DEAD = "CommitsForTheDead"
    RECOVERY = "RecoverySeconds"
    EVENT_DELAY = "EventDelaySeconds"
    NOTICE_TO_CLAIM = "NoticeToClaimSeconds"
    FLUSH = "FlushSeconds"
    CLAIM_TO_INSTANCE = "ClaimToInstanceSeconds"
    BOOT = "BootSeconds"
    PARK = "ParkSeconds"
    RESTORE = "RestoreSeconds"
    FIRST_STEP = "FirstStepSeconds"
    LAUNCHES = "Launches"
    LAUNCH_ERRORS = "LaunchErrors"
    INSTANCES_LAUNCHED = "InstancesLaunched"
    STEP = "StepSeconds"
    NONFINITE_LOSS = "NonFiniteLoss"
    BEATS_MISSED = "BeatsMissed"
    SURPLUS_ENDED = "SurplusEnded"
    ORPHANS_ENDED = "OrphansEnded"
    NEVER_JOINED = "NeverJoined"
    IGNORED = "Ignored"
    MALFORMED = "Malformed"
    NOTIFICATIONS_LOST = "NotificationsLost"
    NOTES_LOST = "NotesLost"
    NONFINITE_VALUES = "NonFiniteValues"


@dataclass(frozen=True, slots=True, kw_only=True)
class Alarm:
    """When a metric rings: its sum over five minutes reaches `threshold`."""

    threshold: int
    says: str  # what happened and what, if anything, to do


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricRow:
    """A metric: unit, further dimensions, place on the dashboard, alarm. `says` explains it under its graph."""

    metric: Metric
    unit: Unit
    section: Section
    says: str = ""
    dimensions: tuple[Dimension, ...] = ()
    alarm: Alarm | None = None


_C, _S = Unit.COUNT, Unit.SECONDS
_CAUSE: Final = (Dimension.CAUSE,)
_POOL: Final = (Dimension.FAMILY, Dimension.ZONE)
METRICS: Final[tuple[MetricRow, ...]] = (
    MetricRow(metric=Metric.RUNS_LIVE, unit=_C, section=Section.OVERVIEW, says="runs that are not over, at each sweep"),
    MetricRow(
        metric=Metric.RUNS_BLOCKED,
        unit=_C,
        section=Section.OVERVIEW,
        says="runs that cannot be filled before somebody changes something",
        dimensions=_CAUSE,
        alarm=Alarm(threshold=1, says="A run cannot be filled: `spotproof status` names the cause and the next step."),
    ),
    MetricRow(
        metric=Metric.RUNS_PAUSED,
        unit=_C,
        section=Section.OVERVIEW,
        says="runs that a spent budget has paused",
        dimensions=_CAUSE,
        alarm=Alarm(threshold=1, says="A budget of a run is spent: `spotproof status` says which; resume it after."),
    ),
    MetricRow(
        metric=Metric.RUNS_FAILED,
        unit=_C,
        section=Section.OVERVIEW,
        says="runs whose trainer gave up",
        dimensions=_CAUSE,
    ),
    MetricRow(
        metric=Metric.WASTE_STEPS,
        unit=_C,
        section=Section.OVERVIEW,
        says="optimizer steps that had to be done again, as far as heartbeats told them",
        dimensions=_CAUSE,
    ),
    MetricRow(
        metric=Metric.WASTE_DOLLARS,
        unit=Unit.NONE,
        section=Section.OVERVIEW,
        says="what replacements cost before their first step, where a price is known",
    ),
    MetricRow(
        metric=Metric.INTERRUPTIONS,
        unit=_C,
        section=Section.INTERRUPTIONS,
        says="nodes that were given a notice, by cause, family and zone",
        dimensions=(Dimension.CAUSE, *_POOL),
    ),
    MetricRow(
        metric=Metric.ADVICE, unit=_C, section=Section.INTERRUPTIONS, says="rebalance recommendations for our nodes"
    ),
    MetricRow(
        metric=Metric.ADVICE_STORMS,
        unit=_C,
        section=Section.INTERRUPTIONS,
        says="storms of advice: no more nodes are started for advice alone",
    ),
    MetricRow(
        metric=Metric.PREWARMED, unit=_C, section=Section.INTERRUPTIONS, says="successors started for advice alone"
    ),
    MetricRow(
        metric=Metric.MOVES_PLANNED,
        unit=_C,
        section=Section.INTERRUPTIONS,
        says="nodes that have to go at a date: maintenance, ends of blocks",
    ),
    MetricRow(
        metric=Metric.ADOPTED, unit=_C, section=Section.CAPACITY, says="hand-tagged instances that were given a slot"
    ),
    MetricRow(
        metric=Metric.LOSSES_WITHOUT_NOTICE,
        unit=_C,
        section=Section.INTERRUPTIONS,
        says="nodes that went without a word, by cause, family and zone",
        dimensions=(Dimension.CAUSE, *_POOL),
    ),
    MetricRow(
        metric=Metric.SILENT_NODES,
        unit=_C,
        section=Section.INTERRUPTIONS,
        says="running nodes that do not beat, at each look",
    ),
    MetricRow(
        metric=Metric.MASS_SILENCE,
        unit=_C,
        section=Section.INTERRUPTIONS,
        says="looks that found so many nodes silent that nothing was replaced",
        alarm=Alarm(threshold=1, says="Many nodes are silent at once: nothing is replaced until beats return."),
    ),
    MetricRow(metric=Metric.CLAIMS, unit=_C, section=Section.RECOVERY, says="slots opened for a successor"),
    MetricRow(metric=Metric.CLAIMS_LOST, unit=_C, section=Section.RECOVERY, says="duplicates that changed nothing"),
    MetricRow(
        metric=Metric.FLUSH_ORDERS, unit=_C, section=Section.RECOVERY, says="flush orders, one per run and cause"
    ),
    MetricRow(
        metric=Metric.COMMANDS_NOT_SENT,
        unit=_C,
        section=Section.RECOVERY,
        says="orders that Run Command refused; nodes hear them by two other ways",
    ),
    MetricRow(
        metric=Metric.COMMANDS_ENDED,
        unit=_C,
        section=Section.RECOVERY,
        says="how Run Command says that orders ended on nodes: a hint, never proof of a flush",
        dimensions=(Dimension.CAUSE,),
    ),
    MetricRow(
        metric=Metric.FLUSHES_COMMITTED,
        unit=_C,
        section=Section.RECOVERY,
        says="flushes that were durable before the node went",
    ),
    MetricRow(
        metric=Metric.FLUSHES_FAILED,
        unit=_C,
        section=Section.RECOVERY,
        says="flushes that were not: the run goes on from the commit before",
        alarm=Alarm(threshold=1, says="A flush did not become durable: the run goes on from the commit before it."),
    ),
    MetricRow(
        metric=Metric.COMMITS_FOR_THE_DEAD,
        unit=_C,
        section=Section.RECOVERY,
        says="checkpoints that were whole and that the sweep committed, because their agents were gone",
    ),
    MetricRow(
        metric=Metric.RECOVERY,
        unit=_S,
        section=Section.PHASES,
        says="from the launch record to the first step of the replacement",
    ),
    MetricRow(metric=Metric.EVENT_DELAY, unit=_S, section=Section.PHASES, says="from the event to the function"),
    MetricRow(metric=Metric.NOTICE_TO_CLAIM, unit=_S, section=Section.PHASES, says="from the notice to the claim"),
    MetricRow(
        metric=Metric.FLUSH, unit=_S, section=Section.PHASES, says="from the claim until the leaver's step is durable"
    ),
    MetricRow(
        metric=Metric.CLAIM_TO_INSTANCE, unit=_S, section=Section.PHASES, says="from the claim until EC2 gave a node"
    ),
    MetricRow(metric=Metric.BOOT, unit=_S, section=Section.PHASES, says="from EC2's launch until the node is prepared"),
    MetricRow(
        metric=Metric.PARK, unit=_S, section=Section.PHASES, says="from prepared to joined: it waits for the leaver"
    ),
    MetricRow(
        metric=Metric.RESTORE, unit=_S, section=Section.PHASES, says="from joined until the trainer has its state"
    ),
    MetricRow(
        metric=Metric.FIRST_STEP, unit=_S, section=Section.PHASES, says="from the state to the first optimizer step"
    ),
    MetricRow(metric=Metric.LAUNCHES, unit=_C, section=Section.CAPACITY, says="launch records made"),
    MetricRow(
        metric=Metric.INSTANCES_LAUNCHED,
        unit=_C,
        section=Section.CAPACITY,
        says="instances bound to a slot, by family and zone",
        dimensions=_POOL,
    ),
    MetricRow(
        metric=Metric.LAUNCH_ERRORS,
        unit=_C,
        section=Section.CAPACITY,
        says="verdicts on EC2's refusals, by cause, family and zone",
        dimensions=(Dimension.CAUSE, *_POOL),
    ),
    MetricRow(metric=Metric.STEP, unit=_S, section=Section.TRAINING, says="an optimizer step, as the nodes report it"),
    MetricRow(
        metric=Metric.NONFINITE_LOSS,
        unit=_C,
        section=Section.TRAINING,
        says="beats of nodes whose loss is NaN or infinite",
    ),
    MetricRow(
        metric=Metric.BEATS_MISSED,
        unit=_C,
        section=Section.TRAINING,
        says="heartbeats that the table did not take",
    ),
    MetricRow(
        metric=Metric.SURPLUS_ENDED, unit=_C, section=Section.HYGIENE, says="instances that a launch made too many"
    ),
    MetricRow(
        metric=Metric.ORPHANS_ENDED,
        unit=_C,
        section=Section.HYGIENE,
        says="instances that no slot knew",
        alarm=Alarm(threshold=5, says="Several instances that no slot knew were ended: see the runs' history."),
    ),
    MetricRow(metric=Metric.NEVER_JOINED, unit=_C, section=Section.HYGIENE, says="instances that never beat"),
    MetricRow(
        metric=Metric.IGNORED, unit=_C, section=Section.HYGIENE, says="events that mean nothing to us, acknowledged"
    ),
    MetricRow(
        metric=Metric.MALFORMED,
        unit=_C,
        section=Section.HYGIENE,
        says="events that did not parse",
        alarm=Alarm(threshold=1, says="An event did not parse: it is in the dead-letter queue with its reason."),
    ),
    MetricRow(
        metric=Metric.NOTIFICATIONS_LOST,
        unit=_C,
        section=Section.HYGIENE,
        says="messages to people that did not go out",
    ),
    MetricRow(
        metric=Metric.NOTES_LOST,
        unit=_C,
        section=Section.HYGIENE,
        says="entries of timelines that could not be written",
    ),
    MetricRow(
        metric=Metric.NONFINITE_VALUES,
        unit=_C,
        section=Section.HYGIENE,
        says="values that were no finite number and were dropped",
    ),
)
_ROWS: Final = {row.metric: row for row in METRICS}


def row_of(metric: Metric) -> MetricRow:
    """The row of `metric`."""
    return _ROWS[metric]

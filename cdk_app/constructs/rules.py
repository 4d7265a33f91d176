"""One EventBridge rule per row of the event table. Delivery is bounded: an hour, then the undelivered queue."""

from __future__ import annotations

from collections.abc import Mapping

from aws_cdk import Duration
from aws_cdk import aws_events as events
from aws_cdk import aws_events_targets as targets
from constructs import Construct

from cdk_app.constructs.queues import Queues
from spotproof.contract.events import EVENTS, EventKind, EventRow
from spotproof.contract.limits import EVENT_MAX_AGE_S

ATTEMPTS = 185  # EventBridge's most; the age ends it earlier


class EventRules(Construct):
    """`narrowed` adds equality filters on `detail` that only the deployment knows, such as our document's name."""

    def __init__(
        self,
        scope: Construct,
        construct_id: str,
        *,
        queues: Queues,
        narrowed: Mapping[EventKind, Mapping[str, list[str]]],
    ) -> None:
        super().__init__(scope, construct_id)
        for row in EVENTS:
            rule = events.Rule(self, rule_id(row.kind), event_pattern=_pattern(row, narrowed.get(row.kind, {})))
            rule.add_target(
                targets.SqsQueue(
                    queues.by_name[row.queue],
                    dead_letter_queue=queues.undelivered,
                    max_event_age=Duration.seconds(EVENT_MAX_AGE_S),
                    retry_attempts=ATTEMPTS,
                )
            )


def rule_id(kind: EventKind) -> str:
    """Construct id of a row's rule: `SpotInterruption`."""
    return kind.value.title().replace("-", "")


def _pattern(row: EventRow, narrowed: Mapping[str, list[str]]) -> events.EventPattern:
    pattern = row.pattern()
    detail = {**pattern.get("detail", {}), **narrowed}
    return events.EventPattern(source=pattern["source"], detail_type=pattern["detail-type"], detail=detail or None)

"""The event table: every row of DESIGN section 3. Rules, queues, parsers, handlers and golden events hang on it.

A rule matches on source and detail-type only (no EC2 event carries tags); the rest is decided from the table.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any, Final

from spotproof.contract import tags
from spotproof.contract.frozen import dataclass


class Queue(StrEnum):
    """The two event queues: routine events never delay a notice. `repair` carries the sweep's due runs."""

    URGENT = "urgent"
    SIGNALS = "signals"
    REPAIR = "repair"


class EventKind(StrEnum):
    """One per row of the event table."""

    SPOT_INTERRUPTION = "spot-interruption"
    RESERVATION_INTERRUPTION = "reservation-interruption"
    BLOCK_EXPIRY = "block-expiry"
    REBALANCE = "rebalance"
    HEALTH = "health"
    STATE_CHANGE = "state-change"
    TAG_CHANGE = "tag-change"
    COMMAND_RESULT = "command-result"
    DRILL = "drill"


DRILL_SOURCE: Final = "spotproof.drill"
DRILL_TYPE: Final = "Spotproof Drill"


@dataclass(frozen=True, slots=True, kw_only=True)
class EventRow:
    """A row: what matches, where it goes, and its golden events in tests/events."""

    kind: EventKind
    source: str
    detail_types: tuple[str, ...]
    queue: Queue
    golden: tuple[str, ...]
    detail_filter: tuple[tuple[str, tuple[str, ...]], ...] = ()  # further equality filters on `detail`

    def pattern(self) -> dict[str, Any]:
        """The EventBridge pattern of this row's rule."""
        pattern: dict[str, Any] = {"source": [self.source], "detail-type": list(self.detail_types)}
        if self.detail_filter:
            pattern["detail"] = {name: list(values) for name, values in self.detail_filter}
        return pattern


STATES_THAT_MATTER: Final = ("running", "stopping", "stopped", "shutting-down", "terminated")

EVENTS: Final[tuple[EventRow, ...]] = (
    EventRow(
        kind=EventKind.SPOT_INTERRUPTION,
        source="aws.ec2",
        detail_types=("EC2 Spot Instance Interruption Warning",),
        queue=Queue.URGENT,
        golden=("spot-interruption-terminate", "spot-interruption-stop", "spot-interruption-hibernate"),
    ),
    EventRow(
        kind=EventKind.RESERVATION_INTERRUPTION,
        source="aws.ec2",
        detail_types=("EC2 Capacity Reservation Instance Interruption Warning",),
        queue=Queue.URGENT,
        golden=("capacity-reservation-interruption",),
    ),
    EventRow(
        kind=EventKind.BLOCK_EXPIRY,
        source="aws.ec2",
        detail_types=("Capacity Block Expiration Warning", "Capacity Block Reservation Expiration Warning"),
        queue=Queue.URGENT,
        golden=("capacity-block-expiration", "capacity-block-reservation-expiration"),
    ),
    EventRow(
        kind=EventKind.DRILL,
        source=DRILL_SOURCE,
        detail_types=(DRILL_TYPE,),
        queue=Queue.URGENT,
        golden=("drill",),
    ),
    EventRow(
        kind=EventKind.REBALANCE,
        source="aws.ec2",
        detail_types=("EC2 Instance Rebalance Recommendation", "EC2 Spot Instance Rebalance Recommended"),
        queue=Queue.SIGNALS,
        golden=("rebalance-recommendation", "rebalance-recommended"),
    ),
    EventRow(
        kind=EventKind.HEALTH,
        source="aws.health",
        detail_types=("AWS Health Event",),
        queue=Queue.SIGNALS,
        golden=("health-scheduled-change",),
        detail_filter=(("service", ("EC2",)), ("eventTypeCategory", ("scheduledChange",))),
    ),
    EventRow(
        kind=EventKind.STATE_CHANGE,
        source="aws.ec2",
        detail_types=("EC2 Instance State-change Notification",),
        queue=Queue.SIGNALS,
        golden=("state-running", "state-stopping", "state-stopped", "state-shutting-down", "state-terminated"),
        detail_filter=(("state", STATES_THAT_MATTER),),
    ),
    EventRow(
        kind=EventKind.TAG_CHANGE,
        source="aws.tag",
        detail_types=("Tag Change on Resource",),
        queue=Queue.SIGNALS,
        golden=("tag-change", "tag-removed"),
        detail_filter=(
            ("service", ("ec2",)),
            ("resource-type", ("instance",)),
            ("changed-tag-keys", (tags.RUN, tags.STACK)),  # a list in the event: one of them is enough
        ),
    ),
    EventRow(
        kind=EventKind.COMMAND_RESULT,
        source="aws.ssm",
        detail_types=("EC2 Command Invocation Status-change Notification",),
        queue=Queue.SIGNALS,
        golden=("ssm-invocation",),
    ),
)


def drill_detail(instance: str, *, notice_s: int) -> dict[str, Any]:
    """What a drill's event says: the node that pretends to be taken, and with how many seconds of notice."""
    return {"instance-id": instance, "instance-action": "terminate", "notice-s": notice_s}


def row_of(kind: EventKind) -> EventRow:
    """The row of `kind`."""
    return next(row for row in EVENTS if row.kind is kind)


def row_for(source: str, detail_type: str) -> EventRow | None:
    """The row that an event with this source and detail-type belongs to, or None."""
    return next((row for row in EVENTS if row.source == source and detail_type in row.detail_types), None)

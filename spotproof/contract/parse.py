"""EventBridge envelope -> message, once, at the edge.

`parse(envelope, received_at=...)` returns a message, or Ignored for what is unknown or foreign. It
raises MalformedEvent, with the event id, only for an event of a known kind that lacks what it must have.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any, Final

from spotproof.contract import ids
from spotproof.contract.events import EventKind, row_for
from spotproof.contract.limits import DRILL_NOTICE_MAX_S, NOTICE_S
from spotproof.contract.messages import (
    BlockExpiry,
    CommandResult,
    Drill,
    Ignored,
    Interruption,
    Message,
    Rebalance,
    Repair,
    ScheduledChange,
    StateChange,
    TagChange,
)
from spotproof.contract.states import InterruptionAction
from spotproof.errors import MalformedEvent

BLOCK_LEAD_S: Final = 30 * 60  # EC2 begins to terminate 30 minutes before a block's end
REPAIR_FIELD: Final = "repair"
ONLY_FIELD: Final = "only"
FILLS: Final = "fill"


def repair_body(run: str, *, only_fills: bool = False) -> dict[str, str]:
    """Body of a message in the repair queue. `only_fills`: look for open claims, and leave the rest to the sweep."""
    return {REPAIR_FIELD: run, ONLY_FIELD: FILLS} if only_fills else {REPAIR_FIELD: run}


def parse(envelope: Mapping[str, Any], *, received_at: int) -> Message | Ignored:
    """The message in `envelope`. `received_at` (Unix seconds) stands in where the event has no time (EV-15)."""
    if REPAIR_FIELD in envelope:
        return _repair(envelope)
    event_id = str(envelope.get("id", ""))
    source, detail_type = envelope.get("source"), envelope.get("detail-type", envelope.get("detail_type"))
    row = row_for(source, detail_type) if isinstance(source, str) and isinstance(detail_type, str) else None
    if row is None:
        return Ignored(reason=f"unknown event {source}/{detail_type}", event_id=event_id)
    detail = envelope.get("detail")
    if not isinstance(detail, Mapping):
        raise MalformedEvent("detail is not an object", event_id=event_id)
    fields = _Fields(envelope=envelope, detail=detail, event_id=event_id, received_at=received_at)
    return _PARSERS[row.kind](fields)


def unix_seconds(text: str) -> int:
    """ISO 8601 (`2026-05-04T10:02:00Z`) or RFC 1123 as Unix seconds. Raises ValueError."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        moment = parsedate_to_datetime(text)
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return int(moment.timestamp())


class _Fields:
    """The raw envelope, read field by field with errors that name the event."""

    def __init__(
        self, *, envelope: Mapping[str, Any], detail: Mapping[str, Any], event_id: str, received_at: int
    ) -> None:
        self.detail = detail
        self.event_id = event_id
        self.region = str(envelope.get("region", ""))
        self.account = str(envelope.get("account", ""))
        self.resources = envelope.get("resources")
        self.at = self._time(envelope.get("time"), received_at)

    def _time(self, text: object, otherwise: int) -> int:
        if not isinstance(text, str) or not text:
            return otherwise
        return self.time_of(text, "time")

    def time_of(self, text: object, name: str) -> int:
        try:
            return unix_seconds(str(text))
        except (ValueError, TypeError) as error:
            raise MalformedEvent(f"{name} {text!r} is not a time", event_id=self.event_id) from error

    def text(self, name: str) -> str:
        value = self.detail.get(name)
        if not isinstance(value, str) or not value:
            raise MalformedEvent(f"detail.{name} is missing", event_id=self.event_id)
        return value

    def instance(self, name: str = "instance-id") -> str:
        value = self.text(name)
        if not ids.is_instance_id(value):
            raise MalformedEvent(f"detail.{name} {value!r} is not an instance id", event_id=self.event_id)
        return value

    @property
    def common(self) -> dict[str, Any]:
        return {"event_id": self.event_id, "region": self.region, "account": self.account, "at": self.at}


def _repair(envelope: Mapping[str, Any]) -> Repair | Ignored:
    run = envelope[REPAIR_FIELD]
    if not isinstance(run, str) or not ids.is_run_id(run):
        return Ignored(reason="repair of what is not a run id")
    return Repair(run=run, only_fills=envelope.get(ONLY_FIELD) == FILLS)


def _action(text: object) -> InterruptionAction:
    if isinstance(text, str) and text in set(InterruptionAction):
        return InterruptionAction(text)
    return InterruptionAction.UNKNOWN


def _interruption(fields: _Fields) -> Interruption:
    return Interruption(
        **fields.common,
        instance=fields.instance(),
        deadline_at=fields.at + NOTICE_S,
        action=_action(fields.detail.get("instance-action")),
    )


def _reservation_interruption(fields: _Fields) -> Interruption:
    ends = fields.detail.get("instance-termination-time")
    deadline = fields.time_of(ends, "instance-termination-time") if ends else fields.at + NOTICE_S
    action = _action(fields.detail.get("instance-action"))
    return Interruption(**fields.common, instance=fields.instance(), deadline_at=deadline, action=action)


def _block_expiry(fields: _Fields) -> BlockExpiry:
    ends_at = fields.time_of(fields.text("end-date"), "detail.end-date")
    return BlockExpiry(
        **fields.common, reservation=fields.text("capacity-reservation-id"), deadline_at=ends_at - BLOCK_LEAD_S
    )


def _rebalance(fields: _Fields) -> Rebalance:
    return Rebalance(**fields.common, instance=fields.instance())


def _health(fields: _Fields) -> ScheduledChange | Ignored:
    if (fields.detail.get("service"), fields.detail.get("eventTypeCategory")) != ("EC2", "scheduledChange"):
        return Ignored(reason="health event of another service or category", event_id=fields.event_id)
    entities = fields.detail.get("affectedEntities")
    if not isinstance(entities, list):
        raise MalformedEvent("detail.affectedEntities is missing", event_id=fields.event_id)
    named = [str(entity.get("entityValue", "")) for entity in entities if isinstance(entity, Mapping)]
    return ScheduledChange(
        **fields.common,
        instances=tuple(name for name in named if ids.is_instance_id(name)),
        starts_at=fields.time_of(fields.text("startTime"), "detail.startTime"),
        code=fields.text("eventTypeCode"),
    )


def _state_change(fields: _Fields) -> StateChange:
    return StateChange(**fields.common, instance=fields.instance(), state=fields.text("state"))


def _tag_change(fields: _Fields) -> TagChange | Ignored:
    named_by = [fields.resources] if isinstance(fields.resources, str) else fields.resources
    resources = named_by if isinstance(named_by, list) else []
    named = [str(arn).rpartition("/")[2] for arn in resources]
    instances = [name for name in named if ids.is_instance_id(name)]
    if not instances:
        return Ignored(reason="tag change of what is not an instance", event_id=fields.event_id)
    keys = fields.detail.get("changed-tag-keys")
    changed = tuple(str(key) for key in keys) if isinstance(keys, list) else ()
    return TagChange(**fields.common, instance=instances[0], changed=changed)


def _command_result(fields: _Fields) -> CommandResult:
    return CommandResult(
        **fields.common,
        instance=fields.instance(),
        command=fields.text("command-id"),
        document=fields.text("document-name"),
        status=fields.text("status"),
    )


def _drill(fields: _Fields) -> Drill:
    notice = fields.detail.get("notice-s", NOTICE_S)
    if isinstance(notice, bool) or not isinstance(notice, int) or not 1 <= notice <= DRILL_NOTICE_MAX_S:
        says = f"detail.notice-s {notice!r} is not a number of seconds from 1 to {DRILL_NOTICE_MAX_S}"
        raise MalformedEvent(says, event_id=fields.event_id)
    return Drill(**fields.common, instance=fields.instance(), notice_s=notice)


_PARSERS: Final[Mapping[EventKind, Callable[[_Fields], Message | Ignored]]] = {
    EventKind.SPOT_INTERRUPTION: _interruption,
    EventKind.RESERVATION_INTERRUPTION: _reservation_interruption,
    EventKind.BLOCK_EXPIRY: _block_expiry,
    EventKind.REBALANCE: _rebalance,
    EventKind.HEALTH: _health,
    EventKind.STATE_CHANGE: _state_change,
    EventKind.TAG_CHANGE: _tag_change,
    EventKind.COMMAND_RESULT: _command_result,
    EventKind.DRILL: _drill,
}

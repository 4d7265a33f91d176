"""Messages: events after parsing. Past this point there are no dicts from outside. Times are Unix seconds."""

from __future__ import annotations

from typing import TypeAlias

from spotproof.contract.frozen import dataclass
from spotproof.contract.states import InterruptionAction


@dataclass(frozen=True, slots=True, kw_only=True)
class Interruption:
    """EC2 will take the instance. `deadline_at` is the event's time + 120 s, or its own time where it has one."""

    event_id: str
    region: str
    account: str
    instance: str
    at: int
    deadline_at: int
    action: InterruptionAction


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockExpiry:
    """A capacity block ends; instances begin to go at `deadline_at` (its end - 30 min)."""

    event_id: str
    region: str
    account: str
    reservation: str
    at: int
    deadline_at: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Rebalance:
    """Elevated risk: worth a checkpoint, never a termination."""

    event_id: str
    region: str
    account: str
    instance: str
    at: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduledChange:
    """AWS Health plans something for these instances from `starts_at` on."""

    event_id: str
    region: str
    account: str
    instances: tuple[str, ...]
    at: int
    starts_at: int
    code: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StateChange:
    """EC2 says the instance has reached `state`."""

    event_id: str
    region: str
    account: str
    instance: str
    at: int
    state: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TagChange:
    """Tags of an instance changed; what they are now is read from EC2, never from the event."""

    event_id: str
    region: str
    account: str
    instance: str
    at: int
    changed: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandResult:
    """How a Run Command invocation ended: recorded, never proof of a flush."""

    event_id: str
    region: str
    account: str
    instance: str
    at: int
    command: str
    document: str
    status: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Drill:
    """An operator rehearses an interruption of `instance` with `notice_s` seconds."""

    event_id: str
    region: str
    account: str
    instance: str
    at: int
    notice_s: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Repair:
    """A run is due: the sweep says so, or a handler that left something for later. `only_fills`: open claims only."""

    run: str
    only_fills: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Ignored:
    """Input that means nothing to us, and why: counted, acknowledged, never retried."""

    reason: str
    event_id: str = ""


Message: TypeAlias = (
    Interruption | BlockExpiry | Rebalance | ScheduledChange | StateChange | TagChange | CommandResult | Drill | Repair
)

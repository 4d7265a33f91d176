"""Messages sorted by run: everything that a batch says of one run is one decision."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import assert_never

from lambdas.decisions.facts import Loss, Machine
from lambdas.decisions.losses import loss_of_notice, loss_of_state
from spotproof.contract.items import Member
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
from spotproof.contract.parse import NOT_BUILT

GONE = frozenset({"stopping", "stopped", "shutting-down", "terminated"})
NOT_OPTED_IN = "not-opted-in"
UNKNOWN_INSTANCE = "unknown instance"
IN_NO_SLOT = "launched by us and in no slot"


@dataclass(slots=True, kw_only=True)
class Work:
    """What a batch says of one run. `keys` are the records to fail if the work fails."""

    run: str
    keys: list[str] = field(default_factory=list)
    losses: list[Loss] = field(default_factory=list)
    advised: list[tuple[Rebalance, Member]] = field(default_factory=list)
    booted: list[tuple[StateChange, Member]] = field(default_factory=list)
    by_hand: list[Interruption] = field(default_factory=list)  # opted in by its tags, in no slot
    repair: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Sorted:
    """Work by run, and what means nothing to us."""

    work: tuple[Work, ...]
    ignored: tuple[Ignored, ...]


def instances_of(messages: Sequence[Message]) -> tuple[str, ...]:
    """The instances that the messages are about."""
    about = (Interruption, Rebalance, StateChange)
    return tuple(dict.fromkeys(message.instance for message in messages if isinstance(message, about)))


def unknown_notices(messages: Sequence[Message], members: Mapping[str, Member]) -> tuple[str, ...]:
    """Interrupted instances that the table does not know: their tags decide. A state change is not worth a call."""
    named = (message.instance for message in messages if isinstance(message, Interruption))
    return tuple(dict.fromkeys(instance for instance in named if instance not in members))


def notices_of(messages: Mapping[str, Message], instances: Sequence[str]) -> frozenset[str]:
    """The keys of the interruptions of these instances."""
    named = frozenset(instances)
    return frozenset(
        key for key, message in messages.items() if isinstance(message, Interruption) and message.instance in named
    )


def sort(messages: Mapping[str, Message], members: Mapping[str, Member], opted_in: Mapping[str, Machine]) -> Sorted:
    """Every message to its run, or ignored with its reason."""
    work: dict[str, Work] = {}
    ignored: list[Ignored] = []
    for key, message in messages.items():
        run = _run_of(message, members, opted_in)
        if run is None:
            ignored.append(_ignored(message, opted_in))
            continue
        mine = work.setdefault(run, Work(run=run))
        mine.keys.append(key)
        _add(mine, message, members)
    return Sorted(work=tuple(work.values()), ignored=tuple(ignored))


def _run_of(message: Message, members: Mapping[str, Member], opted_in: Mapping[str, Machine]) -> str | None:
    match message:
        case Repair():
            return message.run
        case Interruption() if message.instance in opted_in:
            machine = opted_in[message.instance]
            return machine.run if machine.launch is None else None  # ours has nothing to save before it has a place
        case Interruption() | Rebalance() | StateChange():
            member = members.get(message.instance)
            return None if member is None else member.run
        case BlockExpiry() | ScheduledChange() | TagChange() | CommandResult() | Drill():
            return None
        case _:
            assert_never(message)


def _ignored(message: Message, opted_in: Mapping[str, Machine]) -> Ignored:
    match message:
        case Interruption():
            reason = IN_NO_SLOT if message.instance in opted_in else NOT_OPTED_IN
            return Ignored(reason=reason, event_id=message.event_id)
        case Rebalance() | StateChange():
            return Ignored(reason=UNKNOWN_INSTANCE, event_id=message.event_id)
        case BlockExpiry() | ScheduledChange() | TagChange() | CommandResult() | Drill():
            return Ignored(reason=NOT_BUILT, event_id=message.event_id)
        case Repair():
            return Ignored(reason=NOT_BUILT)
        case _:
            assert_never(message)


def _add(work: Work, message: Message, members: Mapping[str, Member]) -> None:
    match message:
        case Repair():
            work.repair = True
        case Interruption():
            member = members.get(message.instance)
            if member is None:
                work.by_hand.append(message)
            else:
                work.losses.append(loss_of_notice(message, member))
        case Rebalance():
            work.advised.append((message, members[message.instance]))
        case StateChange() if message.state in GONE:
            work.losses.append(loss_of_state(message, members[message.instance]))
        case StateChange():
            work.booted.append((message, members[message.instance]))
        case _:
            return

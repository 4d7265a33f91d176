"""Messages sorted by run: everything that a batch says of one run is one decision.

One message can concern several runs (a Health event with many entities) or none. What it means for a run is a piece;
which pieces a message has follows from the table's members and from what EC2 says of instances now.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field
from typing import Final, TypeAlias, assert_never

from lambdas.decisions.facts import Loss, Machine
from lambdas.decisions.losses import loss_of_drill, loss_of_notice, loss_of_release, loss_of_state
from spotproof.contract import tags
from spotproof.contract.frozen import dataclass
from spotproof.contract.items import Member
from spotproof.contract.limits import UNKNOWN_TO_EC2_GRACE_S
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

GONE = frozenset({"stopping", "stopped", "shutting-down", "terminated"})
ENDS_OF_COMMANDS: Final = frozenset({"Success", "Failed", "TimedOut", "Cancelled"})
OUR_TAGS: Final = frozenset({tags.RUN, tags.STACK})
NOT_OPTED_IN = "not-opted-in"
UNKNOWN_INSTANCE = "unknown instance"
IN_NO_SLOT = "launched by us and in no slot"
NO_TAG_OF_OURS = "no tag of ours has changed"
NOT_SEEN = "EC2 does not show the instance"
AS_IT_WAS = "the tags say what the table says"
OTHER_DOCUMENT = "somebody else's command"
UNDER_WAY = "the command has not ended"
NOBODY_INSIDE = "no instance of ours in the reservation"


@dataclass(frozen=True, slots=True, kw_only=True)
class Advised:
    """EC2 thinks that the node is at risk."""

    message: Rebalance
    member: Member


@dataclass(frozen=True, slots=True, kw_only=True)
class Booted:
    """The node runs: it has just been launched, or it comes back."""

    message: StateChange
    member: Member


@dataclass(frozen=True, slots=True, kw_only=True)
class ByHand:
    """The end of an instance that its tags have opted in and that is in no slot."""

    message: Interruption | Drill | BlockExpiry
    instance: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Dated:
    """The node has to go at a date."""

    message: ScheduledChange | BlockExpiry
    member: Member


@dataclass(frozen=True, slots=True, kw_only=True)
class OptedIn:
    """A person has tagged the instance for the run."""

    machine: Machine


@dataclass(frozen=True, slots=True, kw_only=True)
class Answered:
    """How a command ended on the node."""

    message: CommandResult
    member: Member


Piece: TypeAlias = Loss | Advised | Booted | ByHand | Dated | OptedIn | Answered | Repair


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """What is known of the instances that a batch is about: our own entries, and EC2's word where it was asked for."""

    stack: str
    document: str
    members: Mapping[str, Member]
    machines: Mapping[str, Machine]


@dataclasses.dataclass(slots=True, kw_only=True)
class Work:
    """What a batch says of one run. `keys` are the records to fail if the work fails."""

    run: str
    keys: list[str] = field(default_factory=list)
    losses: list[Loss] = field(default_factory=list)
    advised: list[Advised] = field(default_factory=list)
    booted: list[Booted] = field(default_factory=list)
    by_hand: list[ByHand] = field(default_factory=list)
    dated: list[Dated] = field(default_factory=list)
    opted_in: list[OptedIn] = field(default_factory=list)
    answered: list[Answered] = field(default_factory=list)
    repair: bool = False
    fills: bool = False  # somebody put off launching for it


@dataclass(frozen=True, slots=True, kw_only=True)
class Sorted:
    """Work by run, and what means nothing to us."""

    work: tuple[Work, ...]
    ignored: tuple[Ignored, ...]


def instances_of(messages: Sequence[Message]) -> tuple[str, ...]:
    """The instances that the messages name."""
    return tuple(dict.fromkeys(instance for message in messages for instance in _named(message)))


def _named(message: Message) -> tuple[str, ...]:
    match message:
        case ScheduledChange():
            return message.instances
        case TagChange() if not _is_opt_in(message):
            return ()
        case Interruption() | Drill() | Rebalance() | StateChange() | TagChange() | CommandResult():
            return (message.instance,)
        case BlockExpiry() | Repair():
            return ()
        case _:
            assert_never(message)


def _is_opt_in(message: TagChange) -> bool:
    """Whether a person may have opted in or out: a launch of ours sets its own tag too, and costs no call here."""
    return bool(OUR_TAGS & set(message.changed)) and tags.LAUNCH not in message.changed


def asks_of(message: Message, members: Mapping[str, Member]) -> str:
    """The instance or reservation of which EC2 must be asked before the message means anything; '' for none.

    Notices of instances that the table does not know, because their tags decide; tags that have changed; and blocks,
    which name no instance. A state change of a stranger is not worth a call.
    """
    match message:
        case Interruption() | Drill():
            return "" if message.instance in members else message.instance
        case TagChange():
            return message.instance if _is_opt_in(message) else ""
        case BlockExpiry():
            return message.reservation
        case _:
            return ""


def sort(messages: Mapping[str, Message], known: Known) -> Sorted:
    """Every message to its runs, or ignored with its reason."""
    work: dict[str, Work] = {}
    ignored: list[Ignored] = []
    for key, message in messages.items():
        pieces = list(_pieces(message, known))
        if not pieces:
            event_id = "" if isinstance(message, Repair) else message.event_id
            ignored.append(Ignored(reason=_reason(message, known), event_id=event_id))
        for run, piece in pieces:
            mine = work.setdefault(run, Work(run=run))
            if key not in mine.keys:
                mine.keys.append(key)
            _add(mine, piece)
    return Sorted(work=tuple(work.values()), ignored=tuple(ignored))


def _pieces(message: Message, known: Known) -> Iterator[tuple[str, Piece]]:
    """What the message means, for which run; nothing where it is to be ignored."""
    match message:
        case Repair():
            yield message.run, message
        case Interruption() | Drill():
            yield from _of_notice(message, known)
        case BlockExpiry():
            yield from _of_block(message, known)
        case TagChange():
            yield from _of_tags(message, known)
        case ScheduledChange():
            found = (known.members.get(instance) for instance in message.instances)
            yield from ((member.run, Dated(message=message, member=member)) for member in found if member is not None)
        case Rebalance() | StateChange() | CommandResult():
            member = known.members.get(message.instance)
            if member is not None:
                yield from _of_member(message, member, known)
        case _:
            assert_never(message)


def _of_notice(message: Interruption | Drill, known: Known) -> Iterator[tuple[str, Piece]]:
    member = known.members.get(message.instance)
    machine = known.machines.get(message.instance)
    if member is not None:
        yield (
            member.run,
            loss_of_drill(message, member) if isinstance(message, Drill) else loss_of_notice(message, member),
        )
    elif machine is not None and is_by_hand(machine, known.stack):
        yield machine.run, ByHand(message=message, instance=message.instance)


def _of_block(message: BlockExpiry, known: Known) -> Iterator[tuple[str, Piece]]:
    for machine in known.machines.values():
        if machine.reservation != message.reservation or not machine.is_alive:
            continue
        member = known.members.get(machine.instance)
        if member is not None:
            yield member.run, Dated(message=message, member=member)
        elif is_by_hand(machine, known.stack):
            yield machine.run, ByHand(message=message, instance=machine.instance)


def _of_member(
    message: Rebalance | StateChange | CommandResult, member: Member, known: Known
) -> Iterator[tuple[str, Piece]]:
    match message:
        case Rebalance():
            yield member.run, Advised(message=message, member=member)
        case StateChange() if message.state in GONE:
            yield member.run, loss_of_state(message, member)
        case StateChange():
            yield member.run, Booted(message=message, member=member)
        case CommandResult():
            if message.document == known.document and message.status in ENDS_OF_COMMANDS:
                yield member.run, Answered(message=message, member=member)
        case _:
            assert_never(message)


def _of_tags(message: TagChange, known: Known) -> Iterator[tuple[str, Piece]]:
    """Tags are what EC2 says now, whatever the event says: they decide who may be flushed, replaced and adopted.

    What EC2 does not show yet is left to the sweep; of what we launched, tags may be visible late.
    """
    machine, member = known.machines.get(message.instance), known.members.get(message.instance)
    if machine is None:
        return
    is_there = member is not None and member.ended_at is None
    if member is not None and is_there:
        settled = member.launch is None or message.at - machine.launched_at > UNKNOWN_TO_EC2_GRACE_S
        if settled and (machine.stack, machine.run) != (known.stack, member.run):
            yield member.run, loss_of_release(message, member)
    elif is_by_hand(machine, known.stack) and machine.is_alive:
        yield machine.run, OptedIn(machine=machine)


def is_by_hand(machine: Machine, stack: str) -> bool:
    """Whether a person has opted it in: it carries our stack's tag and a run's, and no launch tag of ours."""
    return machine.stack == stack and bool(machine.run) and machine.launch is None


def _reason(message: Message, known: Known) -> str:
    """Why a message means nothing."""
    match message:
        case Interruption() | Drill():
            machine = known.machines.get(message.instance)
            is_ours = machine is not None and machine.stack == known.stack and machine.launch is not None
            return IN_NO_SLOT if is_ours else NOT_OPTED_IN
        case BlockExpiry():
            return NOBODY_INSIDE
        case TagChange():
            return _reason_of_tags(message, known)
        case CommandResult() if message.document != known.document:
            return OTHER_DOCUMENT
        case CommandResult() if message.instance in known.members:
            return UNDER_WAY
        case _:
            return UNKNOWN_INSTANCE


def _reason_of_tags(message: TagChange, known: Known) -> str:
    if not _is_opt_in(message):
        return NO_TAG_OF_OURS
    machine = known.machines.get(message.instance)
    if machine is None:
        return NOT_SEEN
    return AS_IT_WAS if message.instance in known.members or machine.launch is not None else NOT_OPTED_IN


def _add(work: Work, piece: Piece) -> None:
    match piece:
        case Repair():
            work.repair = work.repair or not piece.only_fills
            work.fills = work.fills or piece.only_fills
        case Loss():
            work.losses.append(piece)
        case Advised():
            work.advised.append(piece)
        case Booted():
            work.booted.append(piece)
        case ByHand():
            work.by_hand.append(piece)
        case Dated():
            work.dated.append(piece)
        case OptedIn():
            work.opted_in.append(piece)
        case Answered():
            work.answered.append(piece)
        case _:
            assert_never(piece)

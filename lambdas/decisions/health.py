"""Nodes that have to go at a date: maintenance that AWS plans, and capacity blocks that end.

The move begins long before the date (the successor gets ready while the node trains on) and the flush comes late, when
the successor is ready. Failing hardware, and a date that is near already, begin the move at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Final

from lambdas.decisions import parting
from lambdas.decisions.actions import Action, Guarded, Measure, Notify, PlanMove, Promote, Tell, Watch
from lambdas.decisions.facts import Facts
from lambdas.decisions.flush import extra_checkpoint
from lambdas.decisions.moves import Move, claim_ahead, signals_of
from lambdas.decisions.promotion import promoted, promotions
from lambdas.decisions.sorting import Dated
from spotproof.contract.history import HistoryKind
from spotproof.contract.items import NEVER, Slot
from spotproof.contract.limits import LATE_FLUSH_S
from spotproof.contract.messages import BlockExpiry, ScheduledChange
from spotproof.contract.metrics import Metric
from spotproof.contract.states import Cause, NoticeKind, RunStatus

# Words of an event type code (AWS_EC2_PERSISTENT_INSTANCE_RETIREMENT_SCHEDULED) that say: the host is failing.
FAILING: Final = frozenset({"RETIREMENT", "DEGRADED"})


def decide(facts: Facts, dated: Sequence[Dated]) -> tuple[Action, ...]:
    """The date goes into the slot, where the sweep finds it; a move that begins now is claimed at once.

    An extra checkpoint comes first where hardware is failing or maintenance is near. A run that wants no nodes now
    keeps the date: it may want them again before it.
    """
    if facts.head is None or not facts.head.status.is_live:
        return ()
    raised = promotions(facts)
    slots = promoted(facts, raised)
    held = [(one, slot) for one in dated if (slot := slots.get(one.member.slot)) is not None and _holds(slot, one)]
    if not held:
        return ()
    now = [one for one in held if _begins_now(facts, one[0])]
    begun = now if facts.head.status.wants_nodes else []
    extra = extra_checkpoint(facts, kind=NoticeKind.MAINTENANCE, cause=Cause.MAINTENANCE) if _is_risky(now) else ()
    return (
        *extra,
        *(Guarded(first=Promote(slot=slot)) for slot in raised),
        *(_planned(facts, one, slot) for one, slot in held),
        *(_begun(facts, one, slot) for one, slot in begun if slot.successor_instance is None),
        *_watched(facts, dated),
    )


def _watched(facts: Facts, dated: Sequence[Dated]) -> tuple[Action, ...]:
    """A run that is blocked rests; with a date near it is looked at each minute (decisions.parting)."""
    is_blocked = facts.head is not None and facts.head.status is RunStatus.BLOCKED
    is_near = any(starts_at(one) - facts.now <= parting.NEAR_S for one in dated)
    return (Watch(run=facts.run, due_at=facts.now),) if is_blocked and is_near else ()


def _holds(slot: Slot, one: Dated) -> bool:
    """Not a successor that has not joined yet, nor a node that has been replaced or is leaving anyway."""
    leaves = slot.successor_instance is not None and not slot.waits_for_notice
    return slot.holder_instance == one.member.instance and not leaves


def starts_at(one: Dated) -> int:
    """The moment after which the node may be gone."""
    return one.message.starts_at if isinstance(one.message, ScheduledChange) else one.message.deadline_at


def _begins_now(facts: Facts, one: Dated) -> bool:
    if isinstance(one.message, BlockExpiry):
        return True
    near = starts_at(one) - signals_of(facts).move_lead_s <= facts.now
    return signals_of(facts).moves and (near or is_failing(one.message.code))


def is_failing(code: str) -> bool:
    """Whether an event type code tells of hardware that may not last until the date."""
    return bool(FAILING & set(code.split("_")))


def _is_risky(now: Sequence[tuple[Dated, Slot]]) -> bool:
    """The end of a block is no risk before its time: the node trains on, and its flush comes late."""
    return any(isinstance(one.message, ScheduledChange) for one, _ in now)


def _begun(facts: Facts, one: Dated, slot: Slot) -> Guarded:
    move = Move(slot=slot.slot, instance=one.member.instance, cause=_cause(one), before=_before(facts, one))
    return claim_ahead(facts, slot, move)


def _cause(one: Dated) -> Cause:
    return Cause.BLOCK_EXPIRY if isinstance(one.message, BlockExpiry) else Cause.MAINTENANCE


def _before(facts: Facts, one: Dated) -> int:
    """The date; none for maintenance that may begin at any moment, or be over: then the successor's word counts.

    Where none comes, because the run is blocked, the date counts as long as it is to come.
    """
    at, is_moved = starts_at(one), facts.head is not None and facts.head.status.wants_nodes
    is_over = at <= facts.now + (LATE_FLUSH_S if is_moved else 0)
    return NEVER if _cause(one) is Cause.MAINTENANCE and is_over else at


def _planned(facts: Facts, one: Dated, slot: Slot) -> Guarded:
    """Not while the run does not want to be moved: then the date is only told."""
    at = facts.now if _begins_now(facts, one) else int(starts_at(one) - signals_of(facts).move_lead_s)
    if not (signals_of(facts).moves or isinstance(one.message, BlockExpiry)):
        at = NEVER
    plan = PlanMove(seen=slot, instance=one.member.instance, at=at, before=_before(facts, one), cause=_cause(one))
    promise = "It is not moved (signals.moves: false)" if at == NEVER else f"It is moved from {_clock(at)} on"
    return Guarded(first=plan, then=(Measure(metric=Metric.MOVES_PLANNED), *_said(facts, one, slot, promise)))


def _said(facts: Facts, one: Dated, slot: Slot, promise: str) -> tuple[Action, ...]:
    code = one.message.code if isinstance(one.message, ScheduledChange) else "the end of its capacity block"
    instance, at = one.member.instance, starts_at(one)
    told = Tell(
        run=facts.run,
        what=HistoryKind.MOVE_PLANNED,
        slot=slot.slot,
        incarnation=slot.holder_incarnation,
        instance=instance,
        cause=_cause(one),
        detail=f"{code} at {at}",
    )
    return (
        told,
        Notify(
            subject=f"spotproof: {instance} of run {facts.run} has to go",
            many=f"spotproof: {{count}} instances of run {facts.run} have to go",
            run=facts.run,
            text=f"AWS has announced {code} for {instance}, slot {slot.slot} of run {facts.run}, at {_clock(at)}. "
            f"{promise}.",
        ),
    )


def _clock(at: int) -> str:
    return datetime.fromtimestamp(at, tz=UTC).strftime("%Y-%m-%d %H:%M UTC")

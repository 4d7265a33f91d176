"""A run loses instances, with or without a notice: flush order, then one claim for each lost instance.

All losses of a batch that belong to one run are one decision: one order names all leavers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from enum import StrEnum

from lambdas.decisions import bursts, spares
from lambdas.decisions.actions import (
    Action,
    Claim,
    EndMember,
    Guarded,
    LiftBarrier,
    Measure,
    Notify,
    Promote,
    Release,
    Tell,
    Withdraw,
)
from lambdas.decisions.broken import mark_of
from lambdas.decisions.facts import FLUSHES_NO_MORE, Facts, Loss, occupant
from lambdas.decisions.flush import order_flush, standing_leavers
from lambdas.decisions.promotion import promoted, promotions
from spotproof.contract.frozen import dataclass
from spotproof.contract.history import HistoryKind
from spotproof.contract.items import NO_INSTANCE, Member, Node, Slot
from spotproof.contract.limits import NOTICE_S
from spotproof.contract.messages import Drill, Interruption, StateChange, TagChange
from spotproof.contract.metrics import Metric
from spotproof.contract.states import Cause, NoticeKind

NOTICED = frozenset({Cause.INTERRUPTION, Cause.BLOCK_EXPIRY, Cause.MAINTENANCE, Cause.DRILL})
UNTAGGED = "untagged"
TOLD = NOTICED | {Cause.USER}  # the node lives and is told to leave


class Place(StrEnum):
    """Where a lost instance stands in its slot."""

    HOLDER = "holder"  # and nobody has claimed it yet
    CLAIMED = "claimed"  # the holder, whose successor is on its way
    SUCCESSOR = "successor"
    NOWHERE = "nowhere"  # replaced already, or never bound


@dataclass(frozen=True, slots=True, kw_only=True)
class _Lost:
    """A loss beside the slot that it concerns, after promotion."""

    loss: Loss
    slot: Slot
    place: Place


def loss_of_notice(message: Interruption, member: Member) -> Loss:
    """The loss that an interruption warning announces."""
    return Loss(
        instance=message.instance,
        slot=member.slot,
        cause=Cause.INTERRUPTION,
        at=message.at,
        deadline_at=message.deadline_at,
        pool=pool_of(member),
        action=message.action.value,
        incarnation=member.incarnation,
    )


def loss_of_drill(message: Drill, member: Member) -> Loss:
    """A rehearsed interruption: the same as the real thing, but for the pool, which has done nothing."""
    return Loss(
        instance=message.instance,
        slot=member.slot,
        cause=Cause.DRILL,
        at=message.at,
        deadline_at=message.at + message.notice_s,
        action="drill",
        incarnation=member.incarnation,
    )


def loss_of_release(message: TagChange, member: Member) -> Loss:
    """A person has taken the run's tag off: the node saves, and its place is given to another one.

    Nobody ends it, so its time begins when that is heard of (`_one_each`), and the message may be of another change.
    """
    return Loss(
        instance=message.instance,
        slot=member.slot,
        cause=Cause.USER,
        at=message.at,
        deadline_at=message.at + NOTICE_S,
        action=UNTAGGED,
        incarnation=member.incarnation,
    )


def loss_of_state(message: StateChange, member: Member) -> Loss:
    """The loss that a state change tells after the fact."""
    return Loss(
        instance=message.instance,
        slot=member.slot,
        cause=Cause.DISAPPEARED,
        at=message.at,
        pool=pool_of(member),
        action=message.state,
        incarnation=member.incarnation,
    )


def pool_of(member: Member) -> str | None:
    """The pool that the member came from; None where nobody knows it."""
    return f"{member.instance_type}#{member.zone}#{member.market.value}" if member.instance_type else None


def decide(facts: Facts, losses: Sequence[Loss]) -> tuple[Action, ...]:
    """Flush order, promotions, claims, in this order; () when every loss has been dealt with."""
    raised = promotions(facts)
    slots = promoted(facts, raised)
    lost = [_placed(loss, slots[loss.slot]) for loss in _one_each(losses, now=facts.now) if loss.slot in slots]
    told = [notice for one in lost for notice in _noticed(facts, one)]
    ended = [action for loss in losses for action in _ended(facts, loss)]
    wanted = facts.head is not None and facts.head.status.wants_nodes
    claims = [action for one in lost if wanted for action in _claim(facts, one)]
    lifted = [action for loss in losses for action in _lifted(facts, lost, loss)]
    return (*_flush(facts, lost), *(_promotion(slot) for slot in raised), *claims, *lifted, *told, *ended)


def place_of(slot: Slot, instance: str) -> Place:
    """Where the instance stands in the slot."""
    if occupant(slot.successor_instance) == instance:
        return Place.SUCCESSOR
    if occupant(slot.holder_instance) == instance:
        return Place.HOLDER if slot.successor_instance is None else Place.CLAIMED
    return Place.NOWHERE


def claim_of(facts: Facts, slot: Slot, loss: Loss) -> Guarded:
    """The claim for a loss, and what follows from winning it."""
    told = Tell(
        run=facts.run,
        what=HistoryKind.CLAIMED,
        slot=slot.slot,
        incarnation=slot.incarnation + 1,
        instance=loss.instance,
        cause=loss.cause,
    )
    moved = slot.cause if slot.waits_for_notice else None  # the next successor waits for what this one waited for
    claim = Claim(
        seen=slot, instance=loss.instance, cause=moved or loss.cause, deadline_at=loss.deadline_at, lost_pool=loss.pool
    )
    return Guarded(
        first=claim,
        then=(told, Measure(metric=Metric.CLAIMS), *_consequences(facts, slot, loss)),
        otherwise=(*_overtaken(slot, loss), Measure(metric=Metric.CLAIMS_LOST)),
    )


def _overtaken(slot: Slot, loss: Loss) -> tuple[Action, ...]:
    """The claim that was faster may have been one for a holder that was well, a moment before this loss of it."""
    if loss.deadline_at is None or slot.successor_instance is not None:
        return ()
    theirs = replace(slot, successor_incarnation=slot.incarnation + 1)
    return (Guarded(first=Release(seen=theirs, deadline_at=loss.deadline_at, cause=loss.cause)),)


def release_of(facts: Facts, slot: Slot, loss: Loss) -> Guarded:
    """The holder goes, and its successor was claimed before: there is nothing to claim, it may take over."""
    deadline_at = facts.now if loss.deadline_at is None else loss.deadline_at
    return Guarded(
        first=Release(seen=slot, deadline_at=deadline_at, cause=loss.cause),
        then=_consequences(facts, slot, loss),
        otherwise=(Measure(metric=Metric.CLAIMS_LOST),),
    )


def lift_of(facts: Facts, slot: Slot) -> Guarded | None:
    """The end of the wait for a claimed holder that has ended before its deadline; None if there is no wait."""
    holder = occupant(slot.holder_instance)
    if holder is None or slot.successor_instance is None or (slot.deadline_at or 0) <= facts.now:
        return None
    return Guarded(first=LiftBarrier(seen=slot, instance=holder), then=mark_of(facts, slot, holder))


def _lifted(facts: Facts, lost: Sequence[_Lost], loss: Loss) -> tuple[Action, ...]:
    """A successor waits for its holder's deadline; the holder's end, told beside or after the notice, comes first.

    Not at `stopping` or `shutting-down`: until it is over, the node's last upload may still come through.
    """
    if loss.action not in FLUSHES_NO_MORE:
        return ()
    one = next((one for one in lost if one.loss.instance == loss.instance), None)
    if one is None:
        return ()
    if one.place is Place.HOLDER and (one.loss.deadline_at or 0) > facts.now:  # its claim is made in this decision
        return (Guarded(first=LiftBarrier(seen=one.slot, instance=loss.instance)),)
    lift = lift_of(facts, one.slot) if one.place is Place.CLAIMED else None
    return () if lift is None else (lift,)


def _one_each(losses: Sequence[Loss], *, now: int) -> list[Loss]:
    """One loss for each instance; a notice, with its deadline, says more than a state change."""
    best: dict[str, Loss] = {}
    for heard in losses:
        loss = replace(heard, deadline_at=now + NOTICE_S) if heard.action == UNTAGGED else heard
        known = best.get(loss.instance)
        if known is None or (known.deadline_at is None and loss.deadline_at is not None):
            best[loss.instance] = loss
    return list(best.values())


def _placed(loss: Loss, slot: Slot) -> _Lost:
    return _Lost(loss=loss, slot=slot, place=place_of(slot, loss.instance))


def _promotion(slot: Slot) -> Guarded:
    return Guarded(first=Promote(slot=slot))


def _flush(facts: Facts, lost: Sequence[_Lost]) -> tuple[Action, ...]:
    """One order for all leavers that still live. A claimed loss is ordered again only if no standing order names it."""
    standing = standing_leavers(facts.head, facts.now)
    leaving = [
        one
        for one in lost
        if one.loss.deadline_at is not None
        and one.loss.deadline_at > facts.now
        and spares.works(facts, one.slot, one.loss.instance)
        and (one.place is Place.HOLDER or (one.place is Place.CLAIMED and _may_save(facts, one, standing)))
    ]
    deadline_at = min((one.loss.deadline_at or 0 for one in leaving), default=0)
    # The next order of a burst finds leavers by their claims: who was claimed before it would not be among them.
    may_wait = all(one.place is Place.HOLDER for one in leaving)
    if not leaving or (may_wait and bursts.holds_order(facts, deadline_at=deadline_at)):
        return ()
    return order_flush(
        facts,
        kind=NoticeKind.MAINTENANCE if leaving[0].loss.cause is Cause.USER else NoticeKind.INTERRUPTION,
        cause=leaving[0].loss.cause,
        leavers=frozenset(one.slot.slot for one in leaving),
        deadline_at=deadline_at,
    )


def _may_save(facts: Facts, one: _Lost, standing: frozenset[int]) -> bool:
    """A holder that was claimed for another reason (silence, advice) and now gets its first notice may still flush."""
    is_first = bool(one.slot.waits_for_notice) or one.slot.cause not in TOLD
    return one.slot.slot not in standing and is_first and facts.head is not None


def _claim(facts: Facts, one: _Lost) -> tuple[Action, ...]:
    match one.place:
        case Place.NOWHERE:
            return ()
        case Place.CLAIMED if one.slot.waits_for_notice:
            return () if has_last_word(facts, one.slot, one.loss.instance) else (release_of(facts, one.slot, one.loss),)
        case Place.CLAIMED:
            return (Measure(metric=Metric.CLAIMS_LOST),)
        case Place.SUCCESSOR if one.slot.waits_for_notice and one.slot.cause is Cause.REBALANCE:
            return (Guarded(first=Withdraw(seen=one.slot)),)  # an extra that goes by itself is not launched again
        case Place.HOLDER | Place.SUCCESSOR:
            return () if has_last_word(facts, one.slot, one.loss.instance) else (claim_of(facts, one.slot, one.loss),)


def has_last_word(facts: Facts, slot: Slot, instance: str) -> bool:
    """A node that wrote `done` or `failed` before it goes is no loss: repair reads what it wrote."""
    node = node_in(facts, slot, instance)
    return node is not None and node.phase.is_final


def node_in(facts: Facts, slot: Slot, instance: str) -> Node | None:
    """The newest beat of the instance in the place that it has in the slot."""
    is_successor = occupant(slot.successor_instance) == instance
    incarnation = slot.successor_incarnation if is_successor else slot.holder_incarnation
    return facts.node_of(slot.slot, incarnation, instance)


def _consequences(facts: Facts, slot: Slot, loss: Loss) -> tuple[Action, ...]:
    if loss.cause not in NOTICED:
        unnoticed = loss.cause in {Cause.DISAPPEARED, Cause.SILENCE}
        counted = Measure(metric=Metric.LOSSES_WITHOUT_NOTICE, cause=loss.cause.value, pool=loss.pool or "")
        news = (*_lost_news(facts, slot, loss), counted) if unnoticed else ()
        return (*mark_of(facts, slot, loss.instance), *news)
    taken: list[Action] = [
        Measure(metric=Metric.INTERRUPTIONS, cause=loss.cause.value, pool=loss.pool or ""),
        Measure(metric=Metric.NOTICE_TO_CLAIM, value=max(0, facts.now - loss.at)),
    ]
    missed = loss.deadline_at is not None and loss.deadline_at <= facts.now
    return (*taken, *((*mark_of(facts, slot, loss.instance), *_missed(facts, slot, loss)) if missed else ()))


def _missed(facts: Facts, slot: Slot, loss: Loss) -> tuple[Action, ...]:
    """The notice came after its deadline: nothing to flush, the run goes on from the last commit (EV-16)."""
    step = None if facts.pointer is None else facts.pointer.step
    told = Tell(
        run=facts.run,
        what=HistoryKind.LOST,
        slot=slot.slot,
        incarnation=_incarnation(slot, loss),
        instance=loss.instance,
        cause=loss.cause,
        step=step,
        detail="flush: missed",
    )
    return (told, Measure(metric=Metric.FLUSHES_FAILED))


def _lost_news(facts: Facts, slot: Slot, loss: Loss) -> tuple[Action, ...]:
    step = None if facts.pointer is None else facts.pointer.step
    told = Tell(
        run=facts.run,
        what=HistoryKind.LOST,
        slot=slot.slot,
        incarnation=_incarnation(slot, loss),
        instance=loss.instance,
        cause=loss.cause,
        step=step,
        detail=loss.action,
    )
    since = "from the start" if step is None else f"from step {step}"
    said = Notify(
        subject=f"spotproof: run {facts.run} lost a node without notice",
        many=f"spotproof: run {facts.run} lost {{count}} nodes without notice",
        text=f"Slot {slot.slot} of run {facts.run} lost {loss.instance} ({loss.cause}). It goes on {since}.",
        run=facts.run,
    )
    return (told, said)


def _incarnation(slot: Slot, loss: Loss) -> int | None:
    """The incarnation of the slot that the lost instance is."""
    is_successor = occupant(slot.successor_instance) == loss.instance
    return slot.successor_incarnation if is_successor else slot.holder_incarnation


def _noticed(facts: Facts, one: _Lost) -> tuple[Action, ...]:
    is_known = one.place is Place.CLAIMED and one.slot.cause in NOTICED  # told with the claim: this is a duplicate
    if one.loss.cause not in TOLD or one.place is Place.NOWHERE or is_known:
        return ()
    return (
        Tell(
            run=facts.run,
            what=HistoryKind.NOTICE,
            slot=one.slot.slot,
            incarnation=_incarnation(one.slot, one.loss),
            instance=one.loss.instance,
            cause=one.loss.cause,
            detail=one.loss.action,
            at=one.loss.at,
        ),
    )


def _ended(facts: Facts, loss: Loss) -> tuple[Action, ...]:
    if loss.action == UNTAGGED:
        return (_let_go(facts, loss),)
    if loss.action not in {"shutting-down", "terminated"}:
        return ()
    told = Tell(run=facts.run, what=HistoryKind.ENDED, slot=loss.slot, instance=loss.instance, at=loss.at)
    return (Guarded(first=EndMember(instance=loss.instance), then=(told,)),)


def _let_go(facts: Facts, loss: Loss) -> Guarded:
    """The entry ends, so that the instance may be tagged again; who took the tag off hears of it once."""
    told = Tell(run=facts.run, what=HistoryKind.RELEASED, slot=loss.slot, instance=loss.instance, at=loss.at)
    text = (
        f"{loss.instance} carries the tag of run {facts.run} no more. It was told to save and leave slot {loss.slot}, "
        "which is given to another node. It is not terminated: it is yours."
    )
    said = Notify(
        subject=f"spotproof: {loss.instance} is released from run {facts.run}",
        many=f"spotproof: {{count}} instances are released from run {facts.run}",
        text=text,
        do="End it when it has saved, if nothing else uses it.",
        run=facts.run,
    )
    return Guarded(first=EndMember(instance=loss.instance), then=(told, said))


def may_be_open(facts: Facts, actions: Sequence[Action]) -> bool:
    """Whether the launcher has something to look for: a claim was made just now, or one was seen open."""
    claimed = any(claims(action) for action in actions)
    return claimed or any(slot.successor_instance == NO_INSTANCE for slot in facts.slots)


def claims(action: Action) -> bool:
    """Whether the action is a claim, or has one behind its condition."""
    return isinstance(action, Guarded) and (isinstance(action.first, Claim) or any(map(claims, action.then)))

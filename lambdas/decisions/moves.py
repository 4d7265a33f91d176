"""Moves of nodes that are well: the successor gets ready first, then the holder is told to leave.

    1. `ahead`   claims the holder's place; the successor boots, prepares, and parks while the slot's flag stands.
    2. `decide`  (each look of the sweep) begins moves that are due, orders the flush of holders whose successor is
                 ready or whose date is near, and releases their successors.
    3. The holder flushes, the successor seals; on its promotion the old node is ended, if it is ours.

A prewarmed node, claimed for advice alone, waits for the real notice (`losses` releases it) and is withdrawn without.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Final

from lambdas.decisions.actions import (
    Action,
    Claim,
    Guarded,
    Measure,
    Promote,
    Release,
    Tell,
    Terminate,
    Withdraw,
)
from lambdas.decisions.facts import Facts, Machine, occupant
from lambdas.decisions.flush import order_flush, standing_leavers, until
from lambdas.decisions.promotion import promoted, promotions
from spotproof.contract import limits
from spotproof.contract.frozen import dataclass
from spotproof.contract.history import AHEAD, HistoryKind
from spotproof.contract.items import NEVER, Head, Slot
from spotproof.contract.metrics import Metric
from spotproof.contract.runspec import Signals
from spotproof.contract.states import Cause, NodePhase, NoticeKind

# Who replaces a node for one of these ends it: nobody else will.
ENDED_BY_US: Final = frozenset({Cause.MAINTENANCE, Cause.FAILBACK, Cause.DRILL, Cause.CAPACITY})
TOGETHER: Final = frozenset({Cause.BLOCK_EXPIRY, Cause.CAPACITY})  # all nodes go: one flush and one new membership
KINDS: Final = {Cause.BLOCK_EXPIRY: NoticeKind.BLOCK_EXPIRY}


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """A holder that is well and has to be moved, and the moment after which it may be gone."""

    slot: int
    instance: str
    cause: Cause
    before: int = NEVER


def signals_of(facts: Facts) -> Signals:
    """The run's settings for early signs."""
    return Signals() if facts.spec is None else facts.spec.signals


def ahead(facts: Facts, moves: Iterable[Move]) -> tuple[Action, ...]:
    """The claims that begin these moves, after the promotions that they need; none for a place that is claimed."""
    raised = promotions(facts)
    slots = promoted(facts, raised)
    claims = [claim_ahead(facts, slots[move.slot], move) for move in moves if may_begin(slots.get(move.slot), move)]
    return (*(Guarded(first=Promote(slot=slot)) for slot in raised), *claims) if claims else ()


def may_begin(slot: Slot | None, move: Move) -> bool:
    """Whether the instance holds the slot and nobody succeeds it yet."""
    return slot is not None and slot.holder_instance == move.instance and slot.successor_instance is None


def claim_ahead(facts: Facts, slot: Slot, move: Move) -> Guarded:
    """The claim for a holder that goes on working."""
    told = Tell(
        run=facts.run,
        what=HistoryKind.CLAIMED,
        slot=slot.slot,
        incarnation=slot.incarnation + 1,
        instance=move.instance,
        cause=move.cause,
        detail=f"{AHEAD}: its successor gets ready first",
    )
    claim = Claim(seen=slot, instance=move.instance, cause=move.cause, deadline_at=move.before, waits_for_notice=True)
    return Guarded(first=claim, then=(told, Measure(metric=Metric.CLAIMS)))


def decide(facts: Facts, slots: dict[int, Slot]) -> tuple[Action, ...]:
    """Everything that is due for moves of this run now. `slots` are as they stand after promotions."""
    if facts.head is None or not facts.head.status.wants_nodes:
        return ()
    waiting = [_as_planned(facts, one) for one in slots.values() if one.waits_for_notice and not _is_alone(facts, one)]
    return (*_due(facts, slots), *_released(facts, facts.head, waiting), *_withdrawn(facts, waiting))


def _as_planned(facts: Facts, slot: Slot) -> Slot:
    """A holder whose date is near goes by its date, also where its successor was claimed for a lesser reason before.

    Nodes that go together are claimed together, so one of them goes alone only when there is no time left for that.
    """
    is_due = slot.move_instance == slot.holder_instance and slot.move_at is not None and slot.move_at <= facts.now
    if slot.cause not in {Cause.REBALANCE, Cause.FAILBACK} or not is_due:
        return slot
    planned = replace(slot, cause=slot.move_cause or Cause.MAINTENANCE, deadline_at=_date(facts, slot))
    return slot if planned.cause in TOGETHER and not _is_late(facts, planned) else planned


def _date(facts: Facts, slot: Slot) -> int:
    """The planned date. A node that is there after it (the run was blocked meanwhile) has outlived it: NEVER."""
    return NEVER if slot.move_before is None or slot.move_before <= facts.now else slot.move_before


def _is_alone(facts: Facts, slot: Slot) -> bool:
    """Whether the successor has nobody to wait for: there is no holder, or EC2 has ended it (a loss, not a move)."""
    holder = occupant(slot.holder_instance)
    machine = None if holder is None else facts.machine(holder)
    return holder is None or (machine is not None and not machine.is_alive)


def ended_by_us(facts: Facts, slot: Slot) -> tuple[Action, ...]:
    """What follows from the promotion of the successor in `slot`: the node before it ends, unless EC2 ends it.

    Its membership is over, so it can save nothing any more.
    """
    machine = facts.machine(slot.holder_instance or "")
    if slot.cause not in ENDED_BY_US or machine is None or not is_ours(facts, machine) or machine.has_ended:
        return ()
    told = Tell(
        run=facts.run,
        what=HistoryKind.ENDED,
        slot=slot.slot,
        incarnation=slot.holder_incarnation,
        instance=machine.instance,
        cause=slot.cause,
        detail="its successor has taken over",
    )
    return (Terminate(instances=(machine.instance,)), told)


def is_ours(facts: Facts, machine: Machine) -> bool:
    """Whether we may end it: it carries our stack's tag and a launch tag. Hand-tagged ones never."""
    return machine.launch is not None and machine.stack == facts.stack


def _due(facts: Facts, slots: dict[int, Slot]) -> tuple[Action, ...]:
    """Moves that were planned for a date, when it is near."""
    planned = [
        Move(
            slot=slot.slot,
            instance=slot.move_instance,
            cause=slot.move_cause or Cause.MAINTENANCE,
            before=_date(facts, slot),
        )
        for slot in slots.values()
        if slot.move_instance is not None and slot.move_at is not None and slot.move_at <= facts.now
    ]
    return tuple(claim_ahead(facts, slots[move.slot], move) for move in planned if may_begin(slots[move.slot], move))


def _released(facts: Facts, head: Head, waiting: Sequence[Slot]) -> tuple[Action, ...]:
    """One order for the holders whose successors are ready, or whose date is near; then their successors may go on.

    The order names its leavers in HEAD before any successor is released. A look that was cut off between the two finds
    the order standing and releases by its deadline.
    """
    going = [slot for slot in waiting if slot.cause is not Cause.REBALANCE and _goes(facts, slot, waiting)]
    actions: list[Action] = []
    for cause in dict.fromkeys(slot.cause for slot in going if slot.cause is not None):
        same = [slot for slot in going if slot.cause is cause]
        leavers = frozenset(slot.slot for slot in same)
        deadline_at = _deadline(facts, same)
        since = max(slot.claimed_at or 0 for slot in same)  # an older order meant the node that was there before
        if leavers <= standing_leavers(head, facts.now) and head.order_at >= since:
            deadline_at = head.order_deadline_at or deadline_at
        elif deadline_at > facts.now:
            kind = KINDS.get(cause, NoticeKind.MAINTENANCE)
            deadline_at = until(facts, deadline_at)
            actions += order_flush(facts, kind=kind, cause=cause, leavers=leavers, deadline_at=deadline_at)
        actions += [_release(facts, slot, deadline_at) for slot in same]
        if actions:
            break  # another order in the same look would be made from a HEAD that this one has changed
    return tuple(actions)


def _goes(facts: Facts, slot: Slot, waiting: Sequence[Slot]) -> bool:
    """Whether the holder is told to leave now."""
    if _is_late(facts, slot):
        return True
    if slot.cause not in TOGETHER:
        return _is_ready(facts, slot)
    return all(_is_ready(facts, one) for one in waiting if one.cause is slot.cause)


def _is_late(facts: Facts, slot: Slot) -> bool:
    return slot.deadline_at is not None and slot.deadline_at - facts.now <= limits.LATE_FLUSH_S


def _is_ready(facts: Facts, slot: Slot) -> bool:
    node = facts.node_of(slot.slot, slot.successor_incarnation, occupant(slot.successor_instance))
    return node is not None and node.phase is NodePhase.PARKED


def _deadline(facts: Facts, slots: Sequence[Slot]) -> int:
    """A notice's time where the successors are ready; the whole time that is left where a date is near."""
    given = min((slot.deadline_at for slot in slots if slot.deadline_at is not None), default=NEVER)
    return given if any(_is_late(facts, slot) for slot in slots) else min(given, facts.now + limits.NOTICE_S)


def _release(facts: Facts, slot: Slot, deadline_at: int) -> Guarded:
    told = Tell(
        run=facts.run,
        what=HistoryKind.NOTICE,
        slot=slot.slot,
        incarnation=slot.holder_incarnation,
        instance=slot.holder_instance,
        cause=slot.cause,
        detail=f"moved: leaves until {deadline_at}",
    )
    return Guarded(first=Release(seen=slot, deadline_at=deadline_at, cause=slot.cause), then=(told,))


def _withdrawn(facts: Facts, waiting: Sequence[Slot]) -> tuple[Action, ...]:
    """Nodes that were started for advice alone, and no notice came."""
    keep_s = signals_of(facts).prewarm_keep_s
    over = [
        slot
        for slot in waiting
        if slot.cause is Cause.REBALANCE and facts.now - (slot.claimed_at or facts.now) >= keep_s
    ]
    return tuple(withdrawn(facts, slot, "no notice has come") for slot in over)


def withdrawn(facts: Facts, slot: Slot, why: str) -> Guarded:
    """Take the claim back; the node that was prewarmed for it is a declared extra and ends."""
    instance = occupant(slot.successor_instance)
    machine = None if instance is None else facts.machine(instance)
    told = Tell(
        run=facts.run,
        what=HistoryKind.SURPLUS_ENDED,
        slot=slot.slot,
        incarnation=slot.successor_incarnation,
        instance=instance,
        cause=slot.cause,
        detail=f"prewarmed: {why}",
    )
    ends: tuple[Action, ...] = ()
    if instance is not None and machine is not None and is_ours(facts, machine) and not machine.has_ended:
        ends = (Terminate(instances=(instance,)), Measure(metric=Metric.SURPLUS_ENDED))
    return Guarded(first=Withdraw(seen=slot), then=(*ends, told))

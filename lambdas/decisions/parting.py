"""A run that is blocked keeps its nodes, and some of them have a date: they are told to save before it, as all others.

Nobody replaces them while the run is blocked. Such a run rests, so it is watched again when a date comes near.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from lambdas.decisions.actions import Action
from lambdas.decisions.facts import Facts, occupant
from lambdas.decisions.flush import order_flush, standing_leavers
from spotproof.contract.items import NEVER, Slot
from spotproof.contract.limits import LATE_FLUSH_S, RESTING_PERIOD_S, SWEEP_PERIOD_S
from spotproof.contract.states import Cause, NoticeKind, RunStatus

NEAR_S: Final = LATE_FLUSH_S + RESTING_PERIOD_S + SWEEP_PERIOD_S  # a resting run is looked at before it is too late


def is_near(facts: Facts) -> bool:
    """Whether the run is blocked and has a node that must be told to save before a resting run is looked at again."""
    is_blocked = facts.head is not None and facts.head.status is RunStatus.BLOCKED
    return is_blocked and any(0 < _left_s(facts, slot) <= NEAR_S for slot in facts.slots)


def orders(facts: Facts, slots: Iterable[Slot]) -> tuple[Action, ...]:
    """The order for holders whose date is near, with the time that is left; () where it stands, or for other runs."""
    if facts.head is None or facts.head.status is not RunStatus.BLOCKED:
        return ()
    going = [slot for slot in slots if 0 < _left_s(facts, slot) <= LATE_FLUSH_S]
    leavers = frozenset(slot.slot for slot in going)
    if leavers <= standing_leavers(facts.head, facts.now):
        return ()
    is_block = any(slot.move_cause is Cause.BLOCK_EXPIRY or slot.cause is Cause.BLOCK_EXPIRY for slot in going)
    return order_flush(
        facts,
        kind=NoticeKind.BLOCK_EXPIRY if is_block else NoticeKind.MAINTENANCE,
        cause=Cause.BLOCK_EXPIRY if is_block else Cause.MAINTENANCE,
        leavers=leavers,
        deadline_at=facts.now + min(_left_s(facts, slot) for slot in going),
    )


def _left_s(facts: Facts, slot: Slot) -> int:
    """How long the slot's holder still has; for ever without a date."""
    if occupant(slot.holder_instance) is None:
        return NEVER
    planned = slot.move_before if slot.move_instance == slot.holder_instance else None
    claimed = slot.deadline_at if slot.waits_for_notice else None
    dates = [at for at in (planned, claimed) if at is not None and at < NEVER]
    return min(dates) - facts.now if dates else NEVER

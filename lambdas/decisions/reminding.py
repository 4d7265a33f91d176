"""A holder that is claimed on its notice and trains on has not been told: its order was never given, or got lost.

A handler can die between the claims of a burst and the order that names them, or before somebody was asked to come for
it. Metadata tells of an interruption all the same, but not of a drill, a block's end or a released node.
"""

from __future__ import annotations

from typing import Final

from lambdas.decisions.actions import Action
from lambdas.decisions.facts import Facts, occupant
from lambdas.decisions.flush import HEARD_S, order_flush, standing_leavers
from spotproof.contract.items import Slot
from spotproof.contract.limits import HEARTBEAT_S
from spotproof.contract.states import Cause, NodePhase, NoticeKind

TOLD: Final = frozenset({Cause.INTERRUPTION, Cause.BLOCK_EXPIRY, Cause.MAINTENANCE, Cause.DRILL, Cause.USER})
NO_USE_S: Final = HEARTBEAT_S  # who has less time than this is not told any more


def orders(facts: Facts, slots: dict[int, Slot]) -> tuple[Action, ...]:
    """The order that names them; () where there are none. `slots` are as they stand after promotions."""
    if facts.head is None or not facts.head.status.wants_nodes:
        return ()
    standing = standing_leavers(facts.head, facts.now)
    left = [slot for slot in slots.values() if slot.slot not in standing and _trains_on(facts, slot)]
    if not left:
        return ()
    return order_flush(
        facts,
        kind=NoticeKind.INTERRUPTION,
        cause=left[0].cause or Cause.INTERRUPTION,
        leavers=frozenset(slot.slot for slot in left),
        deadline_at=min(slot.deadline_at or 0 for slot in left),
    )


def _trains_on(facts: Facts, slot: Slot) -> bool:
    """By a beat that is younger than an order that it would have heard."""
    leaves = slot.successor_instance is not None and slot.cause in TOLD and not slot.waits_for_notice
    if not leaves or occupant(slot.holder_instance) is None or (slot.deadline_at or 0) - facts.now < NO_USE_S:
        return False
    node = facts.node_of(slot.slot, slot.holder_incarnation, slot.holder_instance)
    is_training = node is not None and node.phase is NodePhase.TRAINING and node.flush is None
    return node is not None and is_training and node.beat_at >= (slot.claimed_at or 0) + HEARD_S

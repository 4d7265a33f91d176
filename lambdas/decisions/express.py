"""The short way of the common loss: one node of a run on which nothing else is going on.

Its claim, the flush order, the launch record and the hour's count are one write, and CreateFleet follows it. It is the
same two decisions as ever, losses and launching, made over the same facts at once: the launch as it will be when the
claim stands. Whatever is not plainly that case goes the ordinary way, as does one whose write is lost.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from lambdas.decisions import bursts, launching, losses
from lambdas.decisions.actions import (
    Action,
    Claim,
    EndMember,
    Guarded,
    Intend,
    LiftBarrier,
    Measure,
    Notify,
    OrderFlush,
    Replace,
    Tell,
)
from lambdas.decisions.facts import Facts, Loss
from spotproof.contract.frozen import dataclass
from spotproof.contract.items import NO_INSTANCE, Slot
from spotproof.contract.states import Market


@dataclass(frozen=True, slots=True, kw_only=True)
class Express:
    """`first` is the one write; once it is won everything else follows in this order, the call to EC2 among it."""

    first: Replace
    then: tuple[Action, ...]
    after: tuple[Action, ...]  # what the loss means besides


def decide(facts: Facts, lost: Sequence[Loss]) -> Express | None:
    """The short way, or None where the ordinary one has to be gone."""
    if not _is_plain(facts, lost):
        return None
    order: OrderFlush | None = None
    claimed: Guarded | None = None
    others: list[Action] = []
    for action in losses.decide(facts, lost):
        match action:
            case OrderFlush() if claimed is None:
                order = action
            case Guarded(first=Claim()) if claimed is None:
                claimed = action
            case Guarded(first=EndMember() | LiftBarrier()) | Tell() | Measure() | Notify() if claimed is not None:
                others.append(action)
            case _:
                return None
    if claimed is None or not isinstance(claimed.first, Claim) or facts.head is None:
        return None
    if order is not None and order.order.order == facts.head.order:
        return None  # it has been given, and who gave it sends it
    launched = _launch(facts, claimed.first)
    if launched is None or not isinstance(launched.first, Intend):
        return None
    told = () if order is None else order.then
    return Express(
        first=Replace(
            head=facts.head,
            claim=claimed.first,
            intend=launched.first,
            order=None if order is None else order.order,
        ),
        then=(*told, *launched.then),
        after=(*claimed.then, *others),
    )


def _is_plain(facts: Facts, lost: Sequence[Loss]) -> bool:
    """One place of a run of like nodes, no burst, and nothing else that anybody waits for."""
    head, spec = facts.head, facts.spec
    if head is None or spec is None or len({loss.instance for loss in lost}) != 1 or len(facts.slots) != 1:
        return False
    plain = not (spec.pools.gang or head.standby or facts.slots[0].waits_for_notice)
    return plain and not facts.crowded and not bursts.holds_launch(facts)


def _launch(facts: Facts, claim: Claim) -> Guarded | None:
    """The launch that follows, where the run has no unfinished one; the write looks whether that is so."""
    step = launching.next_step(replace(facts, slots=(_claimed(facts, claim),), launches=()))
    if len(step) != 1 or not isinstance(step[0], Guarded) or not isinstance(step[0].first, Intend):
        return None
    on_spot = step[0].first.launch.market is Market.SPOT
    return step[0] if on_spot or not facts.only_spot else None


def _claimed(facts: Facts, claim: Claim) -> Slot:
    """The slot as its claim leaves it (store.slots)."""
    seen, incarnation = claim.seen, claim.seen.incarnation + 1
    deadline_at = facts.now if claim.deadline_at is None else claim.deadline_at
    is_holder = seen.successor_instance is None
    return replace(
        seen,
        incarnation=incarnation,
        successor_instance=NO_INSTANCE,
        successor_incarnation=incarnation,
        successor_launch=None,
        successor_bound_at=None,
        claimed_at=facts.now,
        cause=claim.cause,
        lost_pool=claim.lost_pool or seen.lost_pool,
        deadline_at=deadline_at if is_holder else seen.deadline_at,
        lost_deadline_at=seen.lost_deadline_at if is_holder else deadline_at,
    )

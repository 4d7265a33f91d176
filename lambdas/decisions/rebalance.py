"""Rebalance advice: an extra checkpoint for the whole run, never a termination (EV-10).

Where the run wants it a successor is prewarmed for each advised holder. Advice for many nodes within minutes is a
storm: a whole pool is shaky, most of the nodes will live on, and no more successors are started for advice alone.
"""

from __future__ import annotations

from collections.abc import Sequence

from lambdas.decisions.actions import Action, Guarded, Measure, NoteStorm, Notify, Promote, SpendPrewarm, Tell
from lambdas.decisions.facts import Facts
from lambdas.decisions.flush import extra_checkpoint
from lambdas.decisions.moves import Move, claim_ahead, may_begin, signals_of
from lambdas.decisions.promotion import promoted, promotions
from lambdas.decisions.sorting import Advised
from spotproof.contract import limits
from spotproof.contract.history import HistoryKind
from spotproof.contract.metrics import Metric
from spotproof.contract.states import Cause, NoticeKind


def decide(facts: Facts, advised: Sequence[Advised]) -> tuple[Action, ...]:
    """One order without leavers for all advice of the batch, and successors that boot and park for the real notice."""
    if facts.head is None or not facts.head.status.wants_nodes:
        return ()
    extra = extra_checkpoint(facts, kind=NoticeKind.REBALANCE, cause=Cause.REBALANCE)
    told = tuple(_told(facts, one) for one in advised)
    counted = Measure(metric=Metric.ADVICE, value=len(advised))
    return (*extra, *told, counted, *(_prewarmed(facts, advised) if signals_of(facts).prewarm else ()))


def _prewarmed(facts: Facts, advised: Sequence[Advised]) -> tuple[Action, ...]:
    raised = promotions(facts)
    slots = promoted(facts, raised)
    moves = {
        one.message.instance: Move(slot=one.member.slot, instance=one.message.instance, cause=Cause.REBALANCE)
        for one in advised
    }
    claims = [
        _spent(facts, claim_ahead(facts, slots[move.slot], move))
        for move in moves.values()
        if may_begin(slots.get(move.slot), move)
    ]
    return (*(Guarded(first=Promote(slot=slot)) for slot in raised), *claims) if claims else ()


def _spent(facts: Facts, claim: Guarded) -> Guarded:
    """The claim, if the stack's share of prewarmed nodes is not used up."""
    limit = signals_of(facts).storm_after
    spend = SpendPrewarm(region=facts.region, window=facts.now // limits.STORM_WINDOW_S, limit=limit)
    minutes = limits.STORM_WINDOW_S // 60
    said = Notify(
        subject=f"spotproof: a storm of rebalance advice in {facts.region}",
        text=f"The stack has started {limit} nodes within {minutes} minutes for rebalance recommendations alone, and "
        "more are recommended: none is started for advice until it calms down. Every run saves an extra checkpoint, "
        "and real notices are answered as always.",
    )
    storm = Guarded(first=NoteStorm(region=facts.region), then=(said, Measure(metric=Metric.ADVICE_STORMS)))
    return Guarded(first=spend, then=(claim, Measure(metric=Metric.PREWARMED)), otherwise=(storm,))


def _told(facts: Facts, one: Advised) -> Tell:
    return Tell(
        run=facts.run,
        what=HistoryKind.NOTICE,
        slot=one.member.slot,
        incarnation=one.member.incarnation,
        instance=one.message.instance,
        cause=Cause.REBALANCE,
        at=one.message.at,
    )

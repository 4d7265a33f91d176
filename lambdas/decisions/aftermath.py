"""What is told and measured of a holder when its work is another node's, and what ends it."""

from __future__ import annotations

from lambdas.decisions import moves, phases
from lambdas.decisions.actions import Action, Measure, Tell
from lambdas.decisions.facts import Facts
from lambdas.decisions.losses import TOLD
from spotproof.contract.history import HistoryKind, flushed_detail
from spotproof.contract.items import Slot
from spotproof.contract.metrics import Metric
from spotproof.contract.states import FlushOutcome

_FLUSHED = frozenset({*TOLD, *moves.ENDED_BY_US})  # causes with a notice, or an order to leave


def of_holder(facts: Facts, slot: Slot) -> tuple[Action, ...]:
    """The slot's holder has left, with its flush done or not."""
    return (*_flush_outcome(facts, slot), *phases.waste(facts, slot), *moves.ended_by_us(facts, slot))


def _flush_outcome(facts: Facts, slot: Slot) -> tuple[Action, ...]:
    before = facts.node_of(slot.slot, slot.holder_incarnation, slot.holder_instance)
    if before is None or before.flush is None or slot.cause not in _FLUSHED:
        return ()
    whole = phases.went_on_whole(facts, before)  # an upload may outlive what its agent could still say of it
    durable = whole or before.flush is FlushOutcome.COMMITTED
    told = Tell(
        run=facts.run,
        what=HistoryKind.FLUSHED,
        slot=slot.slot,
        incarnation=slot.holder_incarnation,
        instance=slot.holder_instance,
        step=before.step if whole else before.flush_step,
        detail=flushed_detail(FlushOutcome.COMMITTED if durable else before.flush, before.flush_why or ""),
        at=before.beat_at or None,
    )
    if not durable:
        return (told, Measure(metric=Metric.FLUSHES_FAILED))
    took = Measure(metric=Metric.FLUSH, value=phases.flush_seconds(facts, slot, before))
    return (told, Measure(metric=Metric.FLUSHES_COMMITTED), took)

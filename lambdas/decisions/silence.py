"""Silence of running nodes, and the breaker that keeps an outage of ours from being taken for their death."""

from __future__ import annotations

import math
from typing import Final

from lambdas.decisions.actions import Action, ComeBack, Measure, NoteMassSilence, Tell
from lambdas.decisions.facts import Facts, Silence, occupant
from spotproof.contract import limits
from spotproof.contract.history import HistoryKind
from spotproof.contract.items import Slot
from spotproof.contract.metrics import Metric
from spotproof.contract.runspec import Liveness
from spotproof.contract.states import Cause

HELD_UP_S: Final = 8
SETTLES_S: Final = 2 * limits.SWEEP_PERIOD_S
OVERDUE_S: Final = limits.SWEEP_PERIOD_S + 15  # a look comes within a minute of its time, and the queue takes seconds


def silent(facts: Facts, slots: tuple[Slot, ...]) -> frozenset[str]:
    """The instances that have beaten once and not for `silence_s`; final phases are no silence.

    Only time that was watched counts: a node must have been late at the look before too, with the same beat, and have
    had the time for another one since. Between two looks the table may have been out, for the nodes as well as for us;
    and nobody is silent if this look itself is overdue, because then it was out, or the queue. A look that was held up
    while it read knows beats that are younger than its own clock, and would find only those silent who beat last.
    """
    if facts.live is None or facts.now - facts.live.due_at > OVERDUE_S or facts.took_s > HELD_UP_S:
        return frozenset()
    liveness, looked_at = _liveness(facts), facts.live.looked_at
    if facts.now - looked_at < liveness.heartbeat_s + limits.BEAT_LATE_S:
        return frozenset()
    return _mute(facts, slots, now=facts.now, for_s=liveness.silence_s) & late(facts, slots, now=looked_at)


def look_again(facts: Facts) -> tuple[Action, ...]:
    """Nodes are late that were not at the look before: look when they must have beaten, or be silent for good."""
    if facts.live is None:
        return ()
    late_now = late(facts, facts.slots, now=facts.now)
    fresh = late_now - late(facts, facts.slots, now=facts.live.looked_at)
    if not fresh:
        return ()
    liveness = _liveness(facts)
    ages = [facts.now - node.beat_at for node in facts.nodes if node.instance in fresh]
    wait_s = max(liveness.heartbeat_s + limits.BEAT_LATE_S + 1, liveness.silence_s - max(ages) + 1)
    return (ComeBack(run=facts.run, after_s=math.ceil(wait_s)),)


def late(facts: Facts, slots: tuple[Slot, ...], *, now: int) -> frozenset[str]:
    """The instances that were late at `now`, by two beats: what counts for the breaker.

    When everybody falls silent at once, the last beats are spread over a heartbeat and the clocks over seconds: a look
    in that moment would find a few silent ones and the others not yet.
    """
    liveness = _liveness(facts)
    for_s = max(2 * liveness.heartbeat_s, liveness.silence_s - 2 * liveness.heartbeat_s)
    return _mute(facts, slots, now=now, for_s=for_s)


def _liveness(facts: Facts) -> Liveness:
    return Liveness() if facts.spec is None else facts.spec.liveness


def _mute(facts: Facts, slots: tuple[Slot, ...], *, now: int, for_s: float) -> frozenset[str]:
    charged = {one for slot in slots for one in _in_charge(slot)}
    return frozenset(
        node.instance
        for node in facts.nodes
        if (node.slot, node.incarnation, node.instance) in charged
        and not node.phase.is_final
        and node.beat_at
        and now - node.beat_at > for_s
    )


def is_mass(stack: Silence) -> bool:
    """At least 5 slots and over 20 % of the stack's slots are silent: that is our outage, not theirs."""
    return stack.silent >= limits.MASS_SILENCE_MIN_SLOTS and stack.silent > limits.MASS_SILENCE_SHARE * stack.slots


def is_settling(stack: Silence, *, now: int) -> bool:
    """Whether a mass silence has just ended: beats return over a heartbeat, and a look must not catch the last ones."""
    return stack.mass_at > 0 and now - stack.mass_at < SETTLES_S


def alarm(facts: Facts) -> tuple[Action, ...]:
    """Nothing is replaced for silence until beats return; the metric's alarm tells people."""
    if not is_mass(facts.silence):
        return ()
    counted = f"{facts.silence.silent} of {facts.silence.slots} slots"
    return (
        Measure(metric=Metric.MASS_SILENCE),
        Tell(run=facts.run, what=HistoryKind.MASS_SILENCE, cause=Cause.SILENCE, detail=counted),
    )


def noted(facts: Facts) -> tuple[Action, ...]:
    """Many are late, silent or not yet: noted, or a look that is held up while beats return would find only a few.

    Such a look has an old `now` and reads the beats of those who are back already; the others are silent by its clock.
    """
    return (NoteMassSilence(region=facts.region),) if is_mass(facts.silence) else ()


def _in_charge(slot: Slot) -> list[tuple[int, int | None, str | None]]:
    """The nodes whose loss means something: the newest of its slot, and a holder that goes on beside its successor."""
    holder = (slot.slot, slot.holder_incarnation, occupant(slot.holder_instance))
    if slot.successor_instance is None:
        return [holder]
    successor = (slot.slot, slot.successor_incarnation, occupant(slot.successor_instance))
    return [successor, holder] if slot.waits_for_notice else [successor]

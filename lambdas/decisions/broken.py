"""A run of many nodes has lost one for good: its membership is marked, so that the survivors form the next at once.

Without the mark they wait until a collective times out, where the node vanished without a word. A node that was given
time to flush is not lost yet: it leaves by itself.
"""

from __future__ import annotations

from lambdas.decisions.actions import Action, MarkBad
from lambdas.decisions.facts import Facts
from spotproof.contract.items import Slot


def mark_of(facts: Facts, slot: Slot, instance: str | None) -> tuple[Action, ...]:
    """The mark on the newest membership, if it is one of many nodes and names this holder."""
    sealed = facts.sealed
    if sealed is None or instance is None or len(sealed.members) < 2:
        return ()
    named = f"{slot.slot}:{slot.holder_incarnation}:{instance}"
    return (MarkBad(run=facts.run, generation=sealed.generation),) if named in sealed.members else ()

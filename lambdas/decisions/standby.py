"""Places beside the slots: a run with `standby: k` keeps k nodes more than work, and none of them is special.

Every place is claimed, launched for and lost in the same way. Who works is what the newest membership says: when a
member is lost, its survivors seal the next one with a node that stands by, at once and without us
(spotproof.rendezvous); the node that is launched for the lost one's place then stands by instead. So one loss is one
launch here too, and the `k` nodes more are declared by the spec.

    holder, no successor     it works, or has worked and was left out of the newest membership while it lived
    successor, no holder     it stands by
    holder and successor     the holder is lost; when a membership without it is sealed, its place is taken from it
"""

from __future__ import annotations

from lambdas.decisions.actions import Action, Guarded, Vacate
from lambdas.decisions.aftermath import of_holder
from lambdas.decisions.facts import Facts, occupant
from lambdas.decisions.spares import is_spare
from spotproof.contract.items import Slot


def displaced(facts: Facts, slots: dict[int, Slot]) -> tuple[Action, ...]:
    """Lost holders whose work a node that stood by has taken over: their places are their successors' now.

    What follows is what would follow if the successor had joined: nobody will promote it, and the old node must end.
    """
    lost = [slot for slot in slots.values() if _is_displaced(facts, slot)]
    return tuple(
        Guarded(first=Vacate(seen=slot, instance=str(slot.holder_instance)), then=of_holder(facts, slot))
        for slot in lost
    )


def _is_displaced(facts: Facts, slot: Slot) -> bool:
    is_lost = occupant(slot.holder_instance) is not None and slot.successor_instance is not None
    return is_lost and is_spare(facts, slot)

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

from typing import Final

from lambdas.decisions.actions import Action, Guarded, Tell, Vacate
from lambdas.decisions.aftermath import of_holder
from lambdas.decisions.facts import Facts, occupant
from lambdas.decisions.spares import is_spare
from spotproof.contract.history import HistoryKind
from spotproof.contract.items import Slot
from spotproof.contract.times import Moment, times_of

CLOCKS_S: Final = 10  # a node's clock beside the sealer's


def displaced(facts: Facts, slots: dict[int, Slot]) -> tuple[Action, ...]:
    """Lost holders whose work a node that stood by has taken over: their places are their successors' now.

    What follows is what would follow if the successor had joined: nobody will promote it, and the old node must end.
    """
    lost = [slot for slot in slots.values() if _is_displaced(facts, slot)]
    takers = _takers(facts) if lost else []
    told = [*([_told(facts, slot, taker)] for slot, taker in zip(lost, takers, strict=False)), *([] for _ in lost)]
    return tuple(
        Guarded(first=Vacate(seen=slot, instance=str(slot.holder_instance)), then=(*took_over, *of_holder(facts, slot)))
        for slot, took_over in zip(lost, told, strict=False)
    )


def _takers(facts: Facts) -> list[str]:
    """The members (`slot:incarnation`) that joined with the newest membership, as far as their beats say so: for the
    timeline alone."""
    sealed = facts.sealed
    found = []
    for member in () if sealed is None else sealed.members:
        slot, incarnation, instance = member.split(":", 2)
        node = facts.node_of(int(slot), int(incarnation), instance)
        joined_ms = times_of(node.times or "").of(Moment.JOINED) if node is not None else None
        if sealed is not None and joined_ms is not None and joined_ms / 1000 > sealed.sealed_at - CLOCKS_S:
            found.append(f"{slot}:{incarnation}")
    return found


def _told(facts: Facts, slot: Slot, taker: str) -> Tell:
    return Tell(
        run=facts.run,
        what=HistoryKind.TAKEN_OVER,
        slot=slot.slot,
        incarnation=slot.incarnation,
        cause=slot.cause,
        detail=taker,
        at=None if facts.sealed is None else facts.sealed.sealed_at,
    )


def _is_displaced(facts: Facts, slot: Slot) -> bool:
    is_lost = occupant(slot.holder_instance) is not None and slot.successor_instance is not None
    return is_lost and is_spare(facts, slot)

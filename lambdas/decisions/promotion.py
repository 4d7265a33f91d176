"""Promotion: where the newest sealed membership names the successor, it is the holder. Every claim looks first."""

from __future__ import annotations

from dataclasses import replace

from lambdas.decisions.facts import Facts, occupant
from spotproof.contract.items import Slot


def promotions(facts: Facts) -> tuple[Slot, ...]:
    """The slots, as they were seen, whose successor has joined."""
    members = frozenset() if facts.sealed is None else frozenset(facts.sealed.members)
    return tuple(slot for slot in facts.slots if member_of(slot) in members)


def promoted(facts: Facts, raised: tuple[Slot, ...]) -> dict[int, Slot]:
    """All slots by number, as they stand after the promotions."""
    after = {slot.slot: _after(slot) for slot in raised}
    return {slot.slot: after.get(slot.slot, slot) for slot in facts.slots}


def member_of(slot: Slot) -> str | None:
    """The successor as a membership names it; None without one."""
    instance = occupant(slot.successor_instance)
    return None if instance is None else f"{slot.slot}:{slot.successor_incarnation}:{instance}"


def _after(slot: Slot) -> Slot:
    return replace(
        slot,
        holder_instance=slot.successor_instance,
        holder_incarnation=slot.successor_incarnation,
        successor_instance=None,
        successor_incarnation=None,
        successor_launch=None,
        successor_bound_at=None,
        claimed_at=None,
        cause=None,
        deadline_at=None,
        lost_pool=None,
        waits_for_notice=None,
        lost_deadline_at=None,
        move_instance=None,
        move_at=None,
        move_before=None,
        move_cause=None,
    )

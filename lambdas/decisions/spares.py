"""Which places a run does without now: only the newest membership tells, where there are more places than members."""

from __future__ import annotations

from lambdas.decisions.facts import Facts
from spotproof.contract.items import Slot


def has_spares(facts: Facts) -> bool:
    """Whether the run has more places than members, and it is known who they are. An elastic run may have fewer
    members than slots."""
    return facts.head is not None and (facts.head.standby > 0 or facts.head.least > 0) and facts.sealed is not None


def works(facts: Facts, slot: Slot, instance: str) -> bool:
    """Whether the instance is a member: only then has it anything to save. Without spares every holder is one."""
    if not has_spares(facts) or facts.sealed is None:
        return True
    return f"{slot.slot}:{slot.holder_incarnation}:{instance}" in facts.sealed.members


def is_spare(facts: Facts, slot: Slot) -> bool:
    """Whether the run does without this place now."""
    if not has_spares(facts) or facts.sealed is None:
        return False
    return all(int(member.partition(":")[0]) != slot.slot for member in facts.sealed.members)


def members_of(facts: Facts, slots: dict[int, Slot]) -> list[Slot]:
    """The slots whose nodes work."""
    return [slot for slot in slots.values() if not is_spare(facts, slot)]

"""Gangs: nodes that work only together, close to each other. All of them at once or none; what is lost comes back near.

start, and after a move    every place is open: one request, one zone, all or nothing
a node is lost             its place is asked for in the zone of the others
nothing there for long     flush order, then a claim for every place: the whole gang starts elsewhere
one of those dies          its place is asked for where the rest of the new gang is; nothing there for long: all anew
"""

from __future__ import annotations

from collections import Counter

from lambdas.decisions.actions import Action, Claim, Guarded, Tell, Terminate
from lambdas.decisions.facts import Facts, occupant, pool_name, want_of
from lambdas.decisions.moves import Move, claim_ahead, is_ours, may_begin
from lambdas.decisions.spares import is_spare, members_of
from spotproof.contract.history import HistoryKind
from spotproof.contract.items import NO_INSTANCE, Slot
from spotproof.contract.states import Cause, LaunchState


def is_gang(facts: Facts) -> bool:
    """Whether the run's nodes are a gang."""
    return facts.spec is not None and facts.spec.pools.gang


def zone_of(facts: Facts) -> str:
    """The zone in which most of the gang's nodes are; '' when every place is open: any will do.

    While it moves those count that have come for the new gang, and not the holders, which leave their zone.
    """
    zones = _zones(facts)
    seat = _arrived if any(_is_moving(slot) for slot in facts.slots) else _seated
    seated = (zones.get(instance, "") for instance in (seat(slot) for slot in facts.slots) if instance)
    counted = Counter(zone for zone in seated if zone)
    return min(counted, key=lambda zone: (-counted[zone], zone)) if counted else ""


def leaving(facts: Facts) -> frozenset[str]:
    """The pools that the gang moves away from: asked last."""
    machines = (facts.machine(slot.holder_instance or "") for slot in facts.slots if _is_moving(slot))
    return frozenset(
        pool_name(machine.instance_type, machine.zone, machine.market) for machine in machines if machine is not None
    )


def move(facts: Facts, slots: dict[int, Slot]) -> tuple[Action, ...]:
    """Move the whole gang when its zone has not given what it lacks for `gang_patience_s`; () while it may.

    Ahead: the others keep their places until a whole new gang is ready (decisions.moves). A move whose own zone cannot
    replace what it has lost again begins anew.
    """
    members = members_of(facts, slots)
    waited = [slot for slot in members if is_gang(facts) and _has_waited(facts, slot)]
    has_come = any(_newcomer(slot) for slot in members)
    if not waited or (all(_is_moving(slot) for slot in waited) and not has_come):
        return ()
    going = (
        Move(slot=slot.slot, instance=slot.holder_instance or NO_INSTANCE, cause=Cause.CAPACITY)
        for slot in slots.values()
        if occupant(slot.holder_instance) is not None
    )
    ahead = (claim_ahead(facts, slots[one.slot], one) for one in going if may_begin(slots[one.slot], one))
    return (*ahead, *(_called_off(facts, slot) for slot in members if _newcomer(slot)))


def strays(facts: Facts, slots: dict[int, Slot]) -> tuple[Action, ...]:
    """Nodes that stand by where the gang is no more: of no use to it, so their places are claimed anew."""
    home = zone_of(facts) if is_gang(facts) and not any(_is_moving(slot) for slot in slots.values()) else ""
    beside = [slot for slot in slots.values() if home and is_spare(facts, slot) and _newcomer(slot)]
    zones = _zones(facts) if beside else {}
    return tuple(_called_off(facts, slot) for slot in beside if zones.get(_newcomer(slot) or "", home) != home)


def _arrived(slot: Slot) -> str | None:
    """Who has come for the new gang: one that waits for the others, or one that took a lost node's place already."""
    return occupant(slot.holder_instance) if slot.successor_instance is None else _newcomer(slot)


def _newcomer(slot: Slot) -> str | None:
    """The successor of a lost node, or of one that moves with its gang: it has come and has not joined."""
    return None if slot.waits_for_notice and not _is_moving(slot) else occupant(slot.successor_instance)


def _called_off(facts: Facts, slot: Slot) -> Guarded:
    """A successor that came where its gang leaves: its place is claimed anew, and it is ended."""
    instance = occupant(slot.successor_instance) or NO_INSTANCE
    machine = facts.machine(instance)
    claim = Claim(seen=slot, instance=instance, cause=Cause.CAPACITY, deadline_at=facts.now)
    told = Tell(
        run=facts.run,
        what=HistoryKind.SURPLUS_ENDED,
        slot=slot.slot,
        incarnation=slot.successor_incarnation,
        instance=instance,
        cause=Cause.CAPACITY,
        detail="the gang moves",
    )
    ends = (Terminate(instances=(instance,)),) if machine is not None and is_ours(facts, machine) else ()
    return Guarded(first=claim, then=(*ends, told))


def _is_moving(slot: Slot) -> bool:
    return bool(slot.waits_for_notice) and slot.cause is Cause.CAPACITY


def _seated(slot: Slot) -> str | None:
    """The node on which the place counts: its successor if there is one, else a holder that nobody is replacing."""
    if slot.successor_instance is None or slot.waits_for_notice:
        return occupant(slot.holder_instance)
    return occupant(slot.successor_instance)


def _zones(facts: Facts) -> dict[str, str]:
    """Zones by instance: what the launches answered, and what EC2 shows of those that live."""
    answered = {
        instance: pool.split("#")[1]
        for launch in facts.launches
        for instance, pool in zip(launch.instances, launch.pools, strict=False)
        if pool.count("#") == 2
    }
    ended = {machine.instance for machine in facts.machines if not machine.is_alive}
    shown = {machine.instance: machine.zone for machine in facts.machines if machine.is_alive}
    return {instance: zone for instance, zone in {**answered, **shown}.items() if instance not in ended}


def _has_waited(facts: Facts, slot: Slot) -> bool:
    patience_s = 0.0 if facts.spec is None else facts.spec.pools.gang_patience_s
    # A launch that is under way may still bring it, and where the others are: its request is written.
    under_way = any(want_of(slot) in one.wants for one in facts.launches if one.state is not LaunchState.CLOSED)
    is_missed = not slot.waits_for_notice or _is_moving(slot)
    is_open = slot.successor_instance == NO_INSTANCE and is_missed and not under_way
    return is_open and slot.claimed_at is not None and facts.now - slot.claimed_at > patience_s

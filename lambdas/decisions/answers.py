"""Reads a whole CreateFleet answer: keeps every instance, learns from every error (lessons), then closes the launch.

Instances and wants are paired by their place in the record, which only grows: whoever reads it, and however often,
comes to the same pairs.
"""

from __future__ import annotations

from collections.abc import Iterator

from lambdas.decisions import lessons
from lambdas.decisions.actions import (
    Action,
    Bind,
    CloseLaunch,
    EnterMember,
    GiveUpLaunch,
    Guarded,
    Measure,
    Tell,
    Terminate,
)
from lambdas.decisions.facts import Facts, parse_pool, places
from lambdas.decisions.phases import bound_detail
from lambdas.decisions.pools import candidates
from spotproof.contract.history import HistoryKind
from spotproof.contract.items import NO_INSTANCE, Launch, Member, Slot
from spotproof.contract.metrics import Metric
from spotproof.contract.states import Market


def settle(facts: Facts, launch: Launch) -> tuple[Action, ...]:
    """Bind what is still open; when nothing is, end the surplus, learn, and close.

    Two steps on purpose: an instance is surplus only by facts read after its want was seen closed, so that a handler
    with old facts never ends a node that another one has bound.
    """
    if not launch.released and 0 < len(launch.instances) < launch.minimum:
        return (Guarded(first=GiveUpLaunch(launch=launch)),)  # a gang's: fewer than all of it cannot work
    placed = places(facts.slots)
    pairs = [] if launch.released else list(_pairs(facts, launch))
    wanted = facts.head is not None and facts.head.status.wants_nodes
    dead = frozenset(machine.instance for machine in facts.machines if machine.has_ended)
    open_pairs = [
        pair for pair in pairs if wanted and pair[0].successor_instance == NO_INSTANCE and pair[1] not in dead
    ]
    entered = [
        _member(facts, launch, slot, instance) for slot, instance in pairs if slot.successor_instance == instance
    ]
    if open_pairs:
        return (_told(launch), *entered, *(_bound(facts, launch, slot, instance) for slot, instance in open_pairs))
    return (
        *entered,
        *_surplus(launch, placed | dead),
        *lessons.of_pools(facts, launch),
        *lessons.of_attempt(facts, launch),
        *(() if launch.instances else (_told(launch),)),
        CloseLaunch(run=launch.run, launch=launch.launch),
    )


def _pairs(facts: Facts, launch: Launch) -> Iterator[tuple[Slot, str]]:
    """The launch's instances with the slots they are meant for, where that claim still stands."""
    for want, instance in zip(launch.wants, launch.instances, strict=False):
        number, incarnation = (int(part) for part in want.split(":"))
        slot = facts.slot(number)
        if slot is not None and slot.successor_incarnation == incarnation:
            yield slot, instance


def _bound(facts: Facts, launch: Launch, slot: Slot, instance: str) -> Guarded:
    incarnation = slot.incarnation if slot.successor_incarnation is None else slot.successor_incarnation
    bind = Bind(run=launch.run, slot=slot.slot, incarnation=incarnation, instance=instance, launch=launch.launch)
    waited = facts.now - (facts.now if slot.claimed_at is None else slot.claimed_at)
    told = Tell(
        run=launch.run,
        what=HistoryKind.BOUND,
        slot=slot.slot,
        incarnation=incarnation,
        instance=instance,
        cause=slot.cause,
        detail=bound_detail(facts, _pool_of(launch, instance)),
    )
    return Guarded(
        first=bind,
        then=(
            _member(facts, launch, slot, instance),
            told,
            Measure(metric=Metric.INSTANCES_LAUNCHED, pool=_pool_of(launch, instance)),
            Measure(metric=Metric.CLAIM_TO_INSTANCE, value=waited),
        ),
    )


def _member(facts: Facts, launch: Launch, slot: Slot, instance: str) -> EnterMember:
    pool = parse_pool(_pool_of(launch, instance)) or _described(facts, instance)
    instance_type, zone, market = pool or ("", "", launch.market)
    return EnterMember(
        member=Member(
            instance=instance,
            run=launch.run,
            slot=slot.slot,
            incarnation=slot.incarnation if slot.successor_incarnation is None else slot.successor_incarnation,
            launch=launch.launch,
            instance_type=instance_type,
            zone=zone,
            market=market,
            launched_at=launch.answered_at or facts.now,
            types=() if facts.spec is None else facts.spec.pools.types,
            zones=_zones(facts),
        )
    )


def _zones(facts: Facts) -> tuple[str, ...]:
    """The zones in which the run may be: a notice of the member reads its pools there beside the run."""
    if facts.spec is None or facts.spec.placement is None:
        return ()
    pools = candidates(facts.spec, facts.spec.placement, Market.SPOT)
    return tuple(dict.fromkeys(one.zone for one in pools))


def _described(facts: Facts, instance: str) -> tuple[str, str, Market] | None:
    machine = facts.machine(instance)
    return None if machine is None else (machine.instance_type, machine.zone, machine.market)


def _pool_of(launch: Launch, instance: str) -> str:
    pools = dict(zip(launch.instances, launch.pools, strict=False))
    return pools.get(instance, "")


def _surplus(launch: Launch, placed: frozenset[str]) -> list[Action]:
    """What the launch made and no slot has: ended at once, because nobody will ever use it."""
    homeless = tuple(instance for instance in launch.instances if instance not in placed)
    if not homeless:
        return []
    told = [Tell(run=launch.run, what=HistoryKind.SURPLUS_ENDED, instance=instance) for instance in homeless]
    return [Terminate(instances=homeless), *told, Measure(metric=Metric.SURPLUS_ENDED, value=len(homeless))]


def _told(launch: Launch) -> Tell:
    errors = ", ".join(launch.errors) or "no errors"
    return Tell(
        run=launch.run,
        what=HistoryKind.LAUNCH_ANSWERED,
        entry=str(launch.launch),
        detail=f"launch {launch.launch}: {len(launch.instances)} of {len(launch.wants)} instances, {errors}"[:400],
    )

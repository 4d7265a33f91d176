"""Reads a whole CreateFleet answer: keeps every instance, learns from every error, then closes the launch.

Instances and wants are paired by their place in the record, which only grows: whoever reads it, and however often,
comes to the same pairs.
"""

from __future__ import annotations

from collections.abc import Iterator

from lambdas.decisions.actions import (
    Action,
    Bind,
    CloseLaunch,
    CoolPool,
    CountRun,
    EnterMember,
    Guarded,
    Measure,
    MoveRun,
    NoteAttempt,
    Notify,
    Tell,
    Terminate,
)
from lambdas.decisions.facts import Facts, parse_pool, places
from lambdas.decisions.pools import candidates, cooled, quota_class
from lambdas.decisions.verdicts import Verdict, advice_on, cause_of, verdict_of
from spotproof.contract import limits
from spotproof.contract.history import HistoryKind
from spotproof.contract.items import NO_INSTANCE, Launch, Member, Slot
from spotproof.contract.metrics import Metric
from spotproof.contract.states import Market, RunStatus

ANY_POOL = "*"  # in an error: the whole request was refused
BLOCKING = frozenset({Verdict.CONFIGURATION, Verdict.NO_ROLE})
OF_THE_POOL = frozenset({Verdict.CAPACITY, Verdict.UNKNOWN, Verdict.NOT_OFFERED, Verdict.DENIED, Verdict.PRICE})
BACKOFF_S = 10  # a throttled request is asked again at the next sweep after this


def settle(facts: Facts, launch: Launch) -> tuple[Action, ...]:
    """Bind what is still open; when nothing is, end the surplus, learn, and close.

    Two steps on purpose: an instance is surplus only by facts read after its want was seen closed, so that a handler
    with old facts never ends a node that another one has bound.
    """
    placed = places(facts.slots)
    pairs = list(_pairs(facts, launch))
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
        *_learned(facts, launch),
        *_attempted(facts, launch),
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
        detail=_pool_of(launch, instance),
    )
    return Guarded(
        first=bind,
        then=(
            _member(facts, launch, slot, instance),
            told,
            Measure(metric=Metric.INSTANCES_LAUNCHED),
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
        )
    )


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


def _learned(facts: Facts, launch: Launch) -> list[Action]:
    """Cool-downs and counts from every error; one for each pool, the last error of a pool counts."""
    verdicts = dict(_verdicts(launch))
    actions: list[Action] = []
    for name, verdict in verdicts.items():
        actions.append(Measure(metric=Metric.LAUNCH_ERRORS, cause=cause_of(verdict).value))
        pool = parse_pool(name)
        if pool is not None and verdict in OF_THE_POOL:
            seen, to = cooled(facts, pool, verdict)
            actions.append(CoolPool(seen=seen, to=to))
    actions += _quota_stops(facts, launch, verdicts)
    return actions


def _verdicts(launch: Launch) -> Iterator[tuple[str, Verdict]]:
    for error in launch.errors:
        name, _, code = error.rpartition(":")
        yield name, verdict_of(code)


def _quota_stops(facts: Facts, launch: Launch, verdicts: dict[str, Verdict]) -> list[Action]:
    """A spent quota stops every pool of its class in that market, not only the one that told."""
    pools = [parse_pool(name) for name, verdict in verdicts.items() if verdict is Verdict.QUOTA]
    classes = {(quota_class(pool[0]), pool[2]) for pool in pools if pool is not None}
    stopped = [one for one in _requested(facts, launch) if (quota_class(one[0]), one[2]) in classes]
    return [CoolPool(seen=seen, to=to) for seen, to in (cooled(facts, one, Verdict.QUOTA) for one in stopped)]


def _requested(facts: Facts, launch: Launch) -> list[tuple[str, str, Market]]:
    if facts.spec is None or facts.spec.placement is None:
        return []
    pools = candidates(facts.spec, facts.spec.placement, launch.market)
    return [(one.instance_type, one.zone, one.market) for one in pools]


def _attempted(facts: Facts, launch: Launch) -> list[Action]:
    """What the attempt means for the run: capacity found, another try, or blocked."""
    if launch.instances:
        recovered = any(not want.endswith(":1") for want in launch.wants)
        found: list[Action] = [NoteAttempt(run=launch.run, next_launch_at=0)]
        return [*found, CountRun(run=launch.run, recoveries=1)] if recovered else found
    verdicts = {verdict for _, verdict in _verdicts(launch)}
    if verdicts & BLOCKING or (ANY_POOL, Verdict.DENIED) in set(_verdicts(launch)):
        return _blocked(facts, launch, min(verdicts & BLOCKING or {Verdict.DENIED}))
    if verdicts & {Verdict.THROTTLED, Verdict.FLEET_QUOTA, Verdict.MISMATCH}:
        wait_s = BACKOFF_S if Verdict.FLEET_QUOTA not in verdicts else limits.LAUNCH_RETRY_S
        return [NoteAttempt(run=launch.run, next_launch_at=facts.now + wait_s)]
    # The pools that were named cool down now, so others are asked at once; where none was named, nothing was learned.
    wait_s = 0 if any(parse_pool(name) for name, _ in _verdicts(launch)) else limits.LAUNCH_RETRY_S
    return [NoteAttempt(run=launch.run, next_launch_at=facts.now + wait_s, spot=launch.market is Market.SPOT)]


def _blocked(facts: Facts, launch: Launch, verdict: Verdict) -> list[Action]:
    if facts.head is None:
        return []
    cause, codes = cause_of(verdict), ", ".join(sorted({error.rpartition(":")[2] for error in launch.errors}))
    reason = f"{advice_on(verdict)} ({codes})"
    told = (
        Tell(run=launch.run, what=HistoryKind.STATUS, cause=cause, detail=f"blocked: {reason}"),
        Measure(metric=Metric.RUNS_BLOCKED),
        Notify(
            subject=f"spotproof: run {launch.run} is blocked", text=f"Run {launch.run} is blocked ({cause}): {reason}."
        ),
    )
    move = MoveRun(seen=facts.head, to=RunStatus.BLOCKED, cause=cause, reason=reason)
    return [Guarded(first=move, then=told)] if facts.head.status is RunStatus.ACTIVE else []


def _told(launch: Launch) -> Tell:
    errors = ", ".join(launch.errors) or "no errors"
    return Tell(
        run=launch.run,
        what=HistoryKind.LAUNCH_ANSWERED,
        entry=str(launch.launch),
        detail=f"launch {launch.launch}: {len(launch.instances)} of {len(launch.wants)} instances, {errors}"[:400],
    )

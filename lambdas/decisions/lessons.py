"""What an answer of CreateFleet teaches: of its pools, of the next attempt, of requests that nobody can fill."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from lambdas.decisions import budgets
from lambdas.decisions.actions import (
    Action,
    CoolPool,
    Guarded,
    LaunchFailed,
    LaunchFound,
    LosePool,
    Measure,
    MoveRun,
    Notify,
    Tell,
)
from lambdas.decisions.facts import Facts, is_failback, parse_pool, want_of
from lambdas.decisions.pools import candidates, cooled, known_pool, quota_class
from lambdas.decisions.verdicts import Verdict, advice_on, cause_of, verdict_of
from spotproof.contract import limits
from spotproof.contract.history import HistoryKind
from spotproof.contract.items import Launch, Slot
from spotproof.contract.metrics import Metric
from spotproof.contract.states import Cause, Market, RunStatus

ANY_POOL = "*"  # in an error: the whole request was refused
BLOCKING = frozenset({Verdict.CONFIGURATION, Verdict.NO_ROLE})
OF_THE_POOL = frozenset(
    {
        Verdict.CAPACITY,
        Verdict.UNKNOWN,
        Verdict.NOT_OFFERED,
        Verdict.DENIED,
        Verdict.PRICE,
        Verdict.CONFIGURATION,
        Verdict.NO_ROLE,
    }
)
PASSING = frozenset({Verdict.THROTTLED, Verdict.FLEET_QUOTA, Verdict.MISMATCH})  # nothing was learned of pools
BACKOFF_S = 10  # a throttled request is asked again at the next sweep after this


def of_pools(facts: Facts, launch: Launch) -> list[Action]:
    """Losses that led to this launch, and cool-downs from every error; one for each pool, the last error counts."""
    verdicts = dict(_verdicts(launch))
    actions: list[Action] = _losses(facts, launch)
    for name, verdict in verdicts.items():
        actions.append(Measure(metric=Metric.LAUNCH_ERRORS, cause=cause_of(verdict).value, pool=name))
        pool = parse_pool(name)
        if pool is not None and verdict in OF_THE_POOL:
            seen, to = cooled(facts, pool, verdict)
            actions.append(CoolPool(seen=seen, to=to))
    return [*actions, *_wider_stops(facts, launch, verdicts), *_rests(facts, launch, verdicts)]


def of_attempt(facts: Facts, launch: Launch) -> list[Action]:
    """What the attempt means for the run: capacity found, another try, or blocked."""
    if launch.instances and not launch.released:
        recovered = any(_is_recovery(facts, want) for want in launch.wants)
        noted = () if facts.head is None else budgets.commit_noted(facts, facts.head)
        return [*noted, LaunchFound(run=launch.run, launch=launch.launch, recovered=recovered)]
    found = list(_verdicts(launch))
    planned = _is_planned(facts, launch)
    hopeless = None if planned else _hopeless(facts, launch, found)
    if hopeless is not None:
        return [*_blocked(facts, launch, hopeless), _failed(facts, launch, wait_s=limits.LAUNCH_RETRY_S)]
    verdicts = {verdict for _, verdict in found}
    if verdicts & PASSING:
        return [_failed(facts, launch, wait_s=limits.LAUNCH_RETRY_S if Verdict.FLEET_QUOTA in verdicts else BACKOFF_S)]
    # The pools that were named cool down now, so others are asked at once; where none was named, nothing was learned.
    wait_s = 0 if any(parse_pool(name) for name, _ in found) else limits.LAUNCH_RETRY_S
    spot = launch.market is Market.SPOT and not planned
    return [_failed(facts, launch, wait_s=0 if planned else wait_s, spot=spot)]


def _verdicts(launch: Launch) -> Iterator[tuple[str, Verdict]]:
    for error in launch.errors:
        name, _, code = error.rpartition(":")
        yield name, verdict_of(code)


def _losses(facts: Facts, launch: Launch) -> list[Action]:
    """What Spot has taken: one count for each pool, at the first launch for the places that it left empty."""
    earlier = {want for one in facts.launches if one.launch < launch.launch for want in one.wants}
    wanted = [slot for slot in _slots_of(facts, launch) if want_of(slot) not in earlier]
    lost = Counter(slot.lost_pool for slot in wanted if slot.lost_pool and slot.cause is Cause.INTERRUPTION)
    pools = [(parse_pool(name or ""), losses) for name, losses in lost.items()]
    return [
        LosePool(pool=known_pool(facts, pool), losses=losses, counted_for=f"{launch.run}#{launch.launch}")
        for pool, losses in pools
        if pool is not None and pool[2] is Market.SPOT
    ]


def _slots_of(facts: Facts, launch: Launch) -> list[Slot]:
    """The slots whose claims the launch lists, where these claims still stand."""
    slots = ((want, facts.slot(int(want.partition(":")[0]))) for want in launch.wants)
    return [slot for want, slot in slots if slot is not None and want_of(slot) == want]


def _is_recovery(facts: Facts, want: str) -> bool:
    """Whether the place had been filled before and was lost; a planned move leaves a node that still works."""
    number, _, incarnation = want.partition(":")
    slot = facts.slot(int(number))
    planned = slot is not None and want_of(slot) == want and bool(slot.waits_for_notice)
    return incarnation != "1" and not planned


def _is_planned(facts: Facts, launch: Launch) -> bool:
    slots = _slots_of(facts, launch)
    return bool(slots) and all(is_failback(slot) for slot in slots)


def _wider_stops(facts: Facts, launch: Launch, verdicts: dict[str, Verdict]) -> list[Action]:
    """A spent quota stops every pool of its class in that market, a policy every pool of the type that it forbids."""
    named = [(parse_pool(name), verdict) for name, verdict in verdicts.items()]
    classes = {(quota_class(pool[0]), pool[2]) for pool, verdict in named if pool and verdict is Verdict.QUOTA}
    types = {(pool[0], pool[2]) for pool, verdict in named if pool and verdict is Verdict.DENIED}
    stops = [
        (pool, Verdict.QUOTA if (quota_class(pool[0]), pool[2]) in classes else Verdict.DENIED)
        for pool in _requested(facts, launch)
        if (quota_class(pool[0]), pool[2]) in classes or (pool[0], pool[2]) in types
    ]
    return [CoolPool(seen=seen, to=to) for seen, to in (cooled(facts, pool, verdict) for pool, verdict in stops)]


def _rests(facts: Facts, launch: Launch, verdicts: dict[str, Verdict]) -> list[Action]:
    """A way back to Spot that brought nothing, and no pool said why: they all rest, and the run, which has its nodes,
    goes on.
    """
    verdict = verdicts.get(ANY_POOL) if verdicts or launch.instances else Verdict.CAPACITY
    if verdict is None or verdict in PASSING or not _is_planned(facts, launch):
        return []
    pools = _requested(facts, launch)
    return [CoolPool(seen=seen, to=to) for seen, to in (cooled(facts, pool, verdict) for pool in pools)]


def _requested(facts: Facts, launch: Launch) -> list[tuple[str, str, Market]]:
    if facts.spec is None or facts.spec.placement is None:
        return []
    pools = candidates(facts.spec, facts.spec.placement, launch.market)
    return [(one.instance_type, one.zone, one.market) for one in pools]


def _hopeless(facts: Facts, launch: Launch, found: list[tuple[str, Verdict]]) -> Verdict | None:
    """Why no further try can help: at once where EC2 names the request itself, later where it says the same for ever.

    One pool with a fault (a subnet that is gone, say) rests for a day; only when all of them have one is it the run's.
    """
    whole = {verdict for name, verdict in found if name == ANY_POOL}
    if whole & {*BLOCKING, Verdict.DENIED}:
        return min(whole & {*BLOCKING, Verdict.DENIED})
    verdicts = {verdict for _, verdict in found}
    if verdicts and verdicts <= BLOCKING:
        return min(verdicts)
    refused, refusals = _refusals(facts, launch)
    return Verdict.REFUSED if refused and refusals >= limits.IDENTICAL_REFUSALS else None


def _refusals(facts: Facts, launch: Launch) -> tuple[str, int]:
    """The code that nobody knows and with which EC2 refused the whole request, and how often in a row it has."""
    codes = [error.rpartition(":")[2] for error in launch.errors if error.startswith(f"{ANY_POOL}:")]
    unknown = next((code for code in codes if verdict_of(code) is Verdict.UNKNOWN), "")
    if not unknown or facts.head is None:
        return unknown, 1 if unknown else 0
    already = facts.head.counted_launch >= launch.launch
    before = facts.head.refusals if facts.head.refused == unknown else 0
    return unknown, before if already else before + 1


def _failed(facts: Facts, launch: Launch, *, wait_s: int, spot: bool = False) -> LaunchFailed:
    refused, refusals = _refusals(facts, launch)
    return LaunchFailed(
        run=launch.run,
        launch=launch.launch,
        next_launch_at=facts.now + wait_s,
        spot=spot,
        refused=refused,
        refusals=refusals,
    )


def _blocked(facts: Facts, launch: Launch, verdict: Verdict) -> list[Action]:
    if facts.head is None:
        return []
    cause, codes = cause_of(verdict), ", ".join(sorted({error.rpartition(":")[2] for error in launch.errors}))
    reason = f"{advice_on(verdict)} ({codes})"
    told = (
        Tell(run=launch.run, what=HistoryKind.STATUS, cause=cause, detail=f"blocked: {reason}"),
        Measure(metric=Metric.RUNS_BLOCKED, cause=cause.value),
        Notify(
            subject=f"spotproof: run {launch.run} is blocked",
            text=f"Run {launch.run} is blocked ({cause}, {codes}).",
            do=f"What to do: {advice_on(verdict)}.",
            run=launch.run,
        ),
    )
    move = MoveRun(seen=facts.head, to=RunStatus.BLOCKED, cause=cause, reason=reason)
    return [Guarded(first=move, then=told)] if facts.head.status is RunStatus.ACTIVE else []

"""The launcher's next step for a run: finish what was begun, else launch what is still open, else nothing.

The launcher calls this again and again, each time with facts read anew, until it returns nothing; then it lets its
lease go and looks once more. Every step can be repeated: the launch record and the slots carry the state.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import assert_never

from lambdas.decisions import budgets, failback, gangs
from lambdas.decisions.actions import (
    Action,
    Adopt,
    Amend,
    Ask,
    Guarded,
    Intend,
    Measure,
    MoveRun,
    RetryAt,
    SpendLaunch,
    Tell,
)
from lambdas.decisions.answers import settle
from lambdas.decisions.facts import Facts, Machine, is_failback, want_of
from lambdas.decisions.pools import Asked, Choice, Hopeless, Need, Waiting, choose, markets
from lambdas.decisions.request import Together, fleet_request, tags_of, token_of
from lambdas.decisions.verdicts import Verdict, advice_on, cause_of
from spotproof.contract import limits
from spotproof.contract.frozen import dataclass
from spotproof.contract.history import HistoryKind
from spotproof.contract.items import NO_INSTANCE, Head, Launch, Slot
from spotproof.contract.metrics import Metric
from spotproof.contract.runspec import Placement, RunSpec
from spotproof.contract.states import LaunchState, Market, RunStatus


@dataclass(frozen=True, slots=True, kw_only=True)
class _Order:
    """What is to be launched: a run that wants nodes, with everything that a launch needs."""

    head: Head
    spec: RunSpec
    placement: Placement
    claims: tuple[Slot, ...]

    @property
    def is_failback(self) -> bool:
        """Whether it is for moves back to Spot: then only Spot is asked."""
        return all(is_failback(slot) for slot in self.claims)


def next_step(facts: Facts) -> tuple[Action, ...]:
    """The actions that bring the run one step nearer to having no open claim; () when there is nothing to do now."""
    unfinished = [launch for launch in facts.launches if launch.state is not LaunchState.CLOSED]
    if unfinished:
        return _finish(facts, unfinished[0])
    claims = _together(open_claims(facts), facts.spec)
    if not claims or facts.head is None or facts.spec is None or not facts.head.status.wants_nodes:
        return ()
    if facts.spec.placement is None:
        return _blocked(facts.head, Verdict.CONFIGURATION, "the run has no launch template: submit it again")
    return _start(facts, _Order(head=facts.head, spec=facts.spec, placement=facts.spec.placement, claims=claims))


def intended(actions: Sequence[Action]) -> Iterator[int]:
    """The numbers of the launches that these actions intend."""
    for action in actions:
        if isinstance(action, Guarded):
            if isinstance(action.first, Intend):
                yield action.first.launch.launch
            yield from intended(action.then)


def open_claims(facts: Facts) -> tuple[Slot, ...]:
    """The slots whose successor has no instance and is in no unfinished launch."""
    listed = {want for launch in facts.launches if launch.state is not LaunchState.CLOSED for want in launch.wants}
    return tuple(slot for slot in facts.slots if slot.successor_instance == NO_INSTANCE and want_of(slot) not in listed)


def _together(claims: tuple[Slot, ...], spec: RunSpec | None) -> tuple[Slot, ...]:
    """What one launch is for: empty places come before those beside the slots, which no gang at its start must wait
    for, and these before moves back to Spot, whose holders still work."""
    empty = tuple(slot for slot in claims if not is_failback(slot))
    first = tuple(slot for slot in empty if spec is None or slot.slot < spec.slots)
    return first or empty or claims


def _finish(facts: Facts, launch: Launch) -> tuple[Action, ...]:
    tagged = _tagged(facts, launch)
    if launch.state is LaunchState.INTENDED:
        adopted = tuple((one.instance, _pool(one)) for one in tagged)
        if len(adopted) >= len(launch.wants):
            return (Adopt(launch=launch, adopted=adopted),)  # nothing to ask for, and EC2 may have forgotten the token
        if facts.head is not None and facts.head.status.wants_nodes:
            return (Ask(launch=launch, zones=_zones(facts), adopted=adopted),)
        if facts.now - launch.made_at < limits.UNKNOWN_TO_EC2_GRACE_S:
            return ()  # DescribeInstances may not show yet what the launch made
        return (Adopt(launch=launch, adopted=adopted),)
    missing = tuple(one.instance for one in tagged if one.instance not in launch.instances)
    if missing:
        return (Amend(launch=launch, instances=missing),)
    return settle(facts, launch)


def _start(facts: Facts, order: _Order) -> tuple[Action, ...]:
    if facts.now < order.head.next_launch_at:
        return ()
    reason = budgets.without_commit(facts, order.head, order.spec)
    if reason:
        return _not_now(facts, order, reason)
    choice: Choice = choose(facts, order.spec, order.placement, _need(facts, order))
    match choice:
        case Asked():
            spent = _hour_is_spent(facts, order)
            return _not_now(facts, order, spent) if spent else _launched(facts, order, choice)
        case Waiting() | Hopeless() if order.is_failback:
            return failback.withdrawn(facts, order.claims)
        case Waiting():
            return (RetryAt(run=facts.run, next_launch_at=choice.until),)
        case Hopeless():
            return _blocked(order.head, choice.verdict, advice_on(choice.verdict))
        case _:
            assert_never(choice)


def _need(facts: Facts, order: _Order) -> Need:
    is_gang = order.spec.pools.gang
    lost = frozenset(slot.lost_pool for slot in order.claims if slot.lost_pool)
    return Need(
        markets=(Market.SPOT,) if order.is_failback else markets(facts, order.spec),
        lost=lost | gangs.leaving(facts) if is_gang else lost,
        zone=gangs.zone_of(facts) if is_gang else "",
    )


def _launched(facts: Facts, order: _Order, asked: Asked) -> tuple[Action, ...]:
    newest = facts.launches[-1].launch if facts.launches else order.head.counted_launch
    number = newest + 1
    request = fleet_request(
        asked,
        order.placement,
        wants=len(order.claims),
        launch_tags=tags_of(stack=facts.stack, run=facts.run, launch=number),
        together=Together(one_type=order.spec.pools.efa) if order.spec.pools.gang else None,
    )
    launch = Launch(
        run=facts.run,
        launch=number,
        state=LaunchState.INTENDED,
        wants=tuple(want_of(slot) for slot in order.claims),
        request=request,
        token=token_of(request),
        market=asked.market,
        made_at=facts.now,
        minimum=len(order.claims) if order.spec.pools.gang else 0,
    )
    pools = sorted({candidate.name for candidate in asked.candidates})
    intended = Tell(
        run=facts.run,
        what=HistoryKind.LAUNCH_INTENDED,
        entry=str(number),
        detail=f"launch {number} for {', '.join(launch.wants)} in {len(pools)} pools: {', '.join(pools)}"[:400],
    )
    ask = Ask(launch=launch, zones=order.placement.subnets)
    counted = Intend(launch=launch, spend=_spend(facts, order))
    return (Guarded(first=counted, then=(intended, Measure(metric=Metric.LAUNCHES), ask)),)


def _spend(facts: Facts, order: _Order) -> SpendLaunch | None:
    if facts.launches_per_hour == 0 or budgets.are_ec2s(order.claims):
        return None
    begun = facts.launches_made is not None
    return SpendLaunch(region=facts.region, hour=facts.now // 3600, limit=facts.launches_per_hour, begun=begun)


def _hour_is_spent(facts: Facts, order: _Order) -> str:
    """Why the stack launches nothing more in this hour; '' while it may, and for what EC2 has taken."""
    if not budgets.hour_is_spent(facts) or budgets.are_ec2s(order.claims):
        return ""
    made = facts.launches_per_hour
    return f"the stack has made {made} launches in this hour: find out what consumes them, then resume the run"


def _not_now(facts: Facts, order: _Order, reason: str) -> tuple[Action, ...]:
    """A budget is spent: the run pauses, but not for a way back to Spot, which can wait while its nodes work."""
    if order.is_failback:
        return failback.withdrawn(facts, order.claims)
    return budgets.paused(order.head, reason)


def _blocked(head: Head, verdict: Verdict, reason: str) -> tuple[Action, ...]:
    cause = cause_of(verdict)
    move = MoveRun(seen=head, to=RunStatus.BLOCKED, cause=cause, reason=reason)
    told = (
        *budgets.announced(head, "blocked", cause=cause, reason=reason),
        Measure(metric=Metric.RUNS_BLOCKED, cause=cause.value),
    )
    return (Guarded(first=move, then=told),)


def _tagged(facts: Facts, launch: Launch) -> tuple[Machine, ...]:
    ours = [one for one in facts.machines if one.launch == launch.launch and not one.has_ended]
    return tuple(sorted(ours, key=lambda machine: machine.instance))


def _pool(machine: Machine) -> str:
    return f"{machine.instance_type}#{machine.zone}#{machine.market.value}"


def _zones(facts: Facts) -> tuple[str, ...]:
    placement = None if facts.spec is None else facts.spec.placement
    return () if placement is None else placement.subnets

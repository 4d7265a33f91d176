"""A run's budgets: when one is spent the run pauses with its cause, nothing is deleted. Resuming grants them anew."""

from __future__ import annotations

from collections.abc import Iterable

from lambdas.decisions.actions import Action, Guarded, Measure, MoveRun, NoteCommit, NoteSpend, Notify, Tell
from lambdas.decisions.facts import Facts, Machine, occupant
from spotproof.contract import limits
from spotproof.contract.history import HistoryKind
from spotproof.contract.items import Head, Slot
from spotproof.contract.metrics import Metric
from spotproof.contract.runspec import RunSpec
from spotproof.contract.states import Cause, Market, RunStatus
from spotproof.plan.cost import Rented, prices_of, spent_usd


def over(facts: Facts, head: Head, spec: RunSpec) -> tuple[Action, ...]:
    """The move to `paused` when the run's time or money is spent; () otherwise."""
    allowed_s, since = spec.budgets.wall_clock_s, head.budgets_at or head.submitted_at
    if allowed_s and since and facts.now - since >= allowed_s:
        return paused(head, f"the run has had its {allowed_s:g} s: resume it to grant as many again")
    usd = head.spent_usd + _newly_spent(facts, head, spec)
    if spec.budgets.dollars and usd >= spec.budgets.dollars:
        reason = f"about ${usd:.2f} of ${spec.budgets.dollars:g} are spent: resume the run to grant as many again"
        return paused(head, reason)
    return ()


def without_commit(facts: Facts, head: Head, spec: RunSpec) -> str:
    """Why no further recovery may begin; '' while the budget lasts."""
    fresh = facts.pointer is not None and facts.pointer.step > head.committed_step
    if fresh or head.recoveries < spec.budgets.recoveries:
        return ""
    return f"{spec.budgets.recoveries} recoveries without a new commit: find out why none succeeds, then resume the run"


def commit_noted(facts: Facts, head: Head) -> tuple[Action, ...]:
    """Take note of a commit that HEAD does not know: the budgets for recoveries and trainer failures begin anew.

    Whoever counts a recovery notes first what was committed before it; else a commit that nobody has noted yet would
    let any number of them through, and its note wipe them out.
    """
    pointer = facts.pointer
    if pointer is None or pointer.step <= head.committed_step:
        return ()
    told = Tell(run=facts.run, what=HistoryKind.COMMITTED, step=pointer.step, at=pointer.committed_at or None)
    return (NoteCommit(run=facts.run, step=pointer.step), told)


def hour_is_spent(facts: Facts) -> bool:
    """Whether the stack has made all the launches of this hour."""
    return bool(facts.launches_per_hour) and (facts.launches_made or 0) >= facts.launches_per_hour


def are_ec2s(claims: Iterable[Slot]) -> bool:
    """Whether all of these places are open because EC2 took their nodes: that is no budget of launches to spend.

    The stack's launches of an hour are limited so that a fault of ours, or of a trainer, cannot go on buying nodes. EC2
    takes nodes by thousands in minutes, and the limit would stop just the recovery that the stack is there for. A node
    that ended without a word counts as taken only if it had joined: one that ends itself while it boots is our loop.
    """
    return all(_is_ec2s(slot) for slot in claims)


def _is_ec2s(slot: Slot) -> bool:
    if slot.cause in {Cause.INTERRUPTION, Cause.BLOCK_EXPIRY}:
        return True
    had_joined = occupant(slot.holder_instance) is not None and slot.lost_deadline_at is None
    return slot.cause is Cause.DISAPPEARED and had_joined


def estimate(facts: Facts, head: Head, spec: RunSpec) -> tuple[Action, ...]:
    """Bring the estimate of what the run has cost up to date, every five minutes."""
    if facts.now - _counted_until(head) < limits.SPEND_LOOK_S:
        return ()
    return (NoteSpend(seen=head, usd=round(head.spent_usd + _newly_spent(facts, head, spec), 6)),)


def paused(head: Head, reason: str) -> tuple[Action, ...]:
    """Pause the run because a budget is spent, and say so."""
    move = MoveRun(seen=head, to=RunStatus.PAUSED, cause=Cause.BUDGET, reason=reason)
    counted = Measure(metric=Metric.RUNS_PAUSED, cause=Cause.BUDGET.value)
    return (Guarded(first=move, then=(*announced(head, "paused", cause=Cause.BUDGET, reason=reason), counted)),)


def announced(head: Head, status: str, *, cause: Cause, reason: str) -> tuple[Action, ...]:
    """Word of a new status, for the timeline and for people."""
    return (
        Tell(run=head.run, what=HistoryKind.STATUS, cause=cause, detail=f"{status}: {reason}"),
        Notify(
            subject=f"spotproof: run {head.run} is {status}",
            text=f"Run {head.run} is {status} ({cause}).",
            do=f"What to do: {reason}.",
            run=head.run,
        ),
    )


def _counted_until(head: Head) -> int:
    return max(head.spent_at, head.budgets_at, head.submitted_at)


def _newly_spent(facts: Facts, head: Head, spec: RunSpec) -> float:
    """What our machines have cost since the last estimate, at the prices that are known."""
    rented = [_rented(machine) for machine in facts.machines if machine.launch is not None and machine.is_alive]
    spot = {(pool.instance_type, pool.zone): pool.price_usd for pool in facts.pools if pool.market is Market.SPOT}
    prices = prices_of(spec.pools.on_demand_usd, {name: usd for name, usd in spot.items() if usd is not None})
    return spent_usd(rented, prices, since=_counted_until(head), now=facts.now)


def _rented(machine: Machine) -> Rented:
    return Rented(
        instance_type=machine.instance_type,
        zone=machine.zone,
        market=machine.market,
        since=machine.launched_at,
    )

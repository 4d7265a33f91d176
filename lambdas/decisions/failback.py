"""Back to Spot: a planned move of one on-demand node at a time, when Spot has been calm for long enough.

The claim waits for its holder (decisions.moves finishes it at a checkpoint); its launch asks Spot only. When Spot has
nothing after all the claim is withdrawn, the holder goes on, and the pools' cool-down is all that it cost.
"""

from __future__ import annotations

from collections.abc import Sequence

from lambdas.decisions import budgets, gangs
from lambdas.decisions.actions import Action, Guarded, Tell, Withdraw
from lambdas.decisions.facts import Facts, Machine, occupant
from lambdas.decisions.flush import standing_leavers
from lambdas.decisions.moves import Move, claim_ahead, is_ours
from lambdas.decisions.pools import Candidate, candidates, is_beginning, is_free, misses_deadline, outlook
from spotproof.contract.history import HistoryKind
from spotproof.contract.items import NO_INSTANCE, Head, Slot
from spotproof.contract.runspec import MarketPolicy, RunSpec
from spotproof.contract.states import Cause, Market, NodePhase


def due(facts: Facts, slots: dict[int, Slot]) -> tuple[Action, ...]:
    """The claim for one move back to Spot, or ().

    Nothing while anything else moves: another claim, a standing flush order, a node that does not train.
    """
    head, spec = facts.head, facts.spec
    if head is None or spec is None or not _is_wanted(facts, spec) or _is_busy(facts, head, slots):
        return ()
    if budgets.without_commit(facts, head, spec) or budgets.hour_is_spent(facts):
        return ()  # its launch would pause a run that has its nodes, or be taken back each minute
    ready = [slot for slot in slots.values() if _is_ready(facts, head, spec, slot)]
    if not ready or not any(_is_calm(facts, spec, pool) for pool in _spot_pools(facts, spec)):
        return ()
    move = Move(slot=ready[0].slot, instance=occupant(ready[0].holder_instance) or NO_INSTANCE, cause=Cause.FAILBACK)
    return (claim_ahead(facts, ready[0], move),)


def withdrawn(facts: Facts, claims: Sequence[Slot]) -> tuple[Action, ...]:
    """Spot has nothing after all, or no launch is left in the budgets: the holders go on."""
    return tuple(
        Guarded(
            first=Withdraw(seen=slot),
            then=(
                Tell(
                    run=facts.run,
                    what=HistoryKind.STATUS,
                    slot=slot.slot,
                    incarnation=slot.incarnation,
                    cause=Cause.FAILBACK,
                    detail="no Spot node now: the on-demand node goes on",
                ),
            ),
        )
        for slot in claims
    )


def _is_wanted(facts: Facts, spec: RunSpec) -> bool:
    mixed = spec.pools.market is MarketPolicy.SPOT_THEN_ON_DEMAND
    return mixed and spec.pools.failback_after_s > 0 and not misses_deadline(facts, spec)


def _is_busy(facts: Facts, head: Head, slots: dict[int, Slot]) -> bool:
    moving = any(slot.successor_instance is not None for slot in slots.values())
    return moving or any(_was_told(facts, head, slots.get(one)) for one in standing_leavers(head, facts.now))


def _was_told(facts: Facts, head: Head, slot: Slot | None) -> bool:
    """Whether the slot still has the node that the standing order means: its successor is younger than the order."""
    machine = None if slot is None else facts.machine(slot.holder_instance or NO_INSTANCE)
    return machine is None or not head.order_at or machine.launched_at < head.order_at


def _is_ready(facts: Facts, head: Head, spec: RunSpec, slot: Slot) -> bool:
    """Whether the slot's node is ours, on-demand for long enough, and trains."""
    holder = occupant(slot.holder_instance)
    machine = None if holder is None else facts.machine(holder)
    if holder is None or machine is None or not _is_on_demand_of_ours(facts, machine):
        return False
    node = facts.node_of(slot.slot, slot.holder_incarnation, holder)
    trains = node is not None and node.phase is NodePhase.TRAINING
    return trains and facts.now >= _until(head, spec, machine)


def _is_on_demand_of_ours(facts: Facts, machine: Machine) -> bool:
    return is_ours(facts, machine) and machine.is_alive and machine.market is Market.ON_DEMAND


def _until(head: Head, spec: RunSpec, machine: Machine) -> float:
    """How long the node stays on-demand: for the first minutes of the run, or until a fallback has cooled."""
    if is_beginning(head, spec, at=machine.launched_at):
        return head.submitted_at + spec.pools.first_on_demand_s
    return machine.launched_at + spec.pools.failback_after_s


def _spot_pools(facts: Facts, spec: RunSpec) -> tuple[Candidate, ...]:
    if spec.placement is None:
        return ()
    zone = gangs.zone_of(facts) if spec.pools.gang else ""
    return tuple(pool for pool in candidates(spec, spec.placement, Market.SPOT) if not zone or pool.zone == zone)


def _is_calm(facts: Facts, spec: RunSpec, pool: Candidate) -> bool:
    since_loss_s = outlook(facts, pool).since_loss_s
    return is_free(facts, pool) and (since_loss_s is None or since_loss_s >= spec.pools.failback_after_s)

"""What ends nodes: a run that is over, and instances that no slot knows. Only what carries our launch tag.

A node is ended when nothing can be gained from it: it said its last word, its flush is final, or 10 minutes have passed
since the run stopped wanting it.
"""

from __future__ import annotations

from collections.abc import Iterator

from lambdas.decisions.actions import Action, Forget, Guarded, Measure, MoveRun, Tell, Terminate, Vacate
from lambdas.decisions.facts import Facts, Machine, places
from lambdas.decisions.flush import HEARD_S, order_flush
from spotproof.contract import limits
from spotproof.contract.history import HistoryKind
from spotproof.contract.items import Head, Node, Slot
from spotproof.contract.metrics import Metric
from spotproof.contract.states import Cause, LaunchState, NodePhase, NoticeKind, RunStatus

NOTHING_TO_SAVE = frozenset({NodePhase.BOOTING, NodePhase.PREPARING, NodePhase.PARKED, NodePhase.SUPERSEDED})
KEEPS_NODES = frozenset({RunStatus.ACTIVE, RunStatus.BLOCKED})


def decide(facts: Facts, head: Head, slots: dict[int, Slot]) -> tuple[Action, ...]:
    """Bring a run that wants no nodes to its end: flush, end the nodes, then forget it if it is over for good."""
    if head.status in KEEPS_NODES:
        return orphans(facts, slots)
    left = tuple(machine for machine in facts.machines if _may_end(facts, machine))
    if not left:
        return _closed(facts, head)
    ready = [machine for machine in left if _has_nothing_to_give(facts, head, machine)]
    ends = tuple(action for machine in ready for action in _end(facts, machine, slots))
    return ends if len(ready) == len(left) else (*_last_order(facts, head, slots), *ends)


def orphans(facts: Facts, slots: dict[int, Slot]) -> tuple[Action, ...]:
    """Instances of closed launches in no slot, 10 minutes old, and replaced for 10 minutes if they had a place."""
    placed = places((*facts.slots, *slots.values()))
    drilled = frozenset(_drilled(facts, slots))
    unfinished = {launch.launch for launch in facts.launches if launch.state is not LaunchState.CLOSED}
    found = tuple(
        machine.instance
        for machine in facts.machines
        if _may_end(facts, machine)
        and machine.instance not in placed
        and machine.launch not in unfinished
        and (machine.instance in drilled or _is_old(facts, machine))
    )
    if not found:
        return ()
    told = [Tell(run=facts.run, what=HistoryKind.ORPHAN_ENDED, instance=instance) for instance in found]
    return (Terminate(instances=found), *told, Measure(metric=Metric.ORPHANS_ENDED, value=len(found)))


def _drilled(facts: Facts, slots: dict[int, Slot]) -> Iterator[str]:
    """Successors that a drill has taken before they joined: EC2 will not end them, and they have nothing to save."""
    named = {
        want: instance
        for launch in facts.launches
        for want, instance in zip(launch.wants, launch.instances, strict=False)
    }
    members = () if facts.sealed is None else facts.sealed.members
    for slot in slots.values():
        instance = named.get(f"{slot.slot}:{slot.incarnation - 1}", "")
        joined = any(member.endswith(f":{instance}") for member in members)
        was_successor = slot.cause is Cause.DRILL and slot.lost_deadline_at is not None
        if was_successor and not joined and facts.now - (slot.claimed_at or facts.now) >= HEARD_S:
            yield instance


def _is_old(facts: Facts, machine: Machine) -> bool:
    return facts.now - machine.launched_at >= limits.ORPHAN_AGE_S and not _is_leaving(facts, machine)


def _is_leaving(facts: Facts, machine: Machine) -> bool:
    """Whether the node that came after it in its slot was launched less than 10 minutes ago.

    That leaves the end of an interrupted node to EC2, which does not bill its first hour then. What counts is the next
    one of its own slot, once: a run whose members change every few minutes would never end an orphan otherwise.
    """
    node = _node(facts, machine.instance)
    if node is None:
        return False
    later = [one for one in facts.nodes if one.slot == node.slot and one.incarnation > node.incarnation]
    after = facts.machine(min(later, key=lambda one: one.incarnation).instance) if later else None
    return after is not None and facts.now - after.launched_at < limits.ORPHAN_AGE_S


def _may_end(facts: Facts, machine: Machine) -> bool:
    return machine.launch is not None and machine.stack == facts.stack and not machine.has_ended


def _has_nothing_to_give(facts: Facts, head: Head, machine: Machine) -> bool:
    if head.status is RunStatus.DONE or facts.now - head.status_at >= limits.LAST_COMMIT_WAIT_S:
        return True
    node = _node(facts, machine.instance)
    if node is None or node.phase.is_final or node.phase in NOTHING_TO_SAVE:
        return True
    return node.phase is NodePhase.DRAINING and node.flush is not None and node.flush.is_final


def _node(facts: Facts, instance: str) -> Node | None:
    return next((node for node in reversed(facts.nodes) if node.instance == instance), None)


def _end(facts: Facts, machine: Machine, slots: dict[int, Slot]) -> tuple[Action, ...]:
    """Win the slot's condition first, then terminate; what is in no slot is terminated at once."""
    told = Tell(run=facts.run, what=HistoryKind.ENDED, instance=machine.instance, detail="the run wants no nodes")
    end: tuple[Action, ...] = (Terminate(instances=(machine.instance,)), told)
    for slot in slots.values():
        if machine.instance in (slot.holder_instance, slot.successor_instance):
            return (Guarded(first=Vacate(seen=slot, instance=machine.instance), then=end),)
    return end


def _last_order(facts: Facts, head: Head, slots: dict[int, Slot]) -> tuple[Action, ...]:
    """Everybody saves and leaves; ordered once for each time that the run stopped wanting nodes."""
    deadline_at = head.status_at + limits.LAST_COMMIT_WAIT_S
    if head.order_kind is NoticeKind.MAINTENANCE and head.order_deadline_at == deadline_at:
        return ()
    return order_flush(
        facts,
        kind=NoticeKind.MAINTENANCE,
        cause=head.cause or Cause.USER,
        leavers=frozenset(slots),
        deadline_at=deadline_at,
    )


def _closed(facts: Facts, head: Head) -> tuple[Action, ...]:
    """No instance is left. An ended run is forgotten when DescribeInstances cannot hide a late one any more."""
    if any(launch.state is not LaunchState.CLOSED for launch in facts.launches):
        return ()
    if head.status is RunStatus.STOPPING:
        move = MoveRun(seen=head, to=RunStatus.STOPPED, cause=head.cause or Cause.USER, reason="stopped as asked")
        return (Guarded(first=move, then=(Tell(run=facts.run, what=HistoryKind.STATUS, detail="stopped"),)),)
    over = not head.status.is_live and facts.now - head.status_at >= 2 * limits.UNKNOWN_TO_EC2_GRACE_S
    return (Forget(run=facts.run),) if over else ()

"""Elastic runs: how many nodes there are or may come. Only EC2's answer tells, so the rendezvous is told by HEAD.

While a place may still be filled the survivors wait for it, as they do in a run of fixed size. A place for which EC2
had nothing for `elastic_after_s` is not waited for any more: the sealer goes on with those who are within reach. It is
asked for all the same, again and again, and who comes is within reach at once; the running generation grows when it
may (spotproof.rendezvous.decide.may_grow).
"""

from __future__ import annotations

from lambdas.decisions.actions import Action, Reach
from lambdas.decisions.facts import Facts, want_of
from spotproof.contract.items import NO_INSTANCE, Head, Slot
from spotproof.contract.runspec import RunSpec
from spotproof.contract.states import LaunchState


def decide(facts: Facts, head: Head, slots: dict[int, Slot]) -> tuple[Action, ...]:
    """The word for the sealer, where it is not what stands in HEAD."""
    spec = facts.spec
    if spec is None or not spec.elastic:
        return ()
    nodes = _within_reach(facts, spec, slots)
    return () if nodes == head.reach else (Reach(run=facts.run, nodes=nodes),)


def _within_reach(facts: Facts, spec: RunSpec, slots: dict[int, Slot]) -> int:
    lacking = sum(_is_out_of_reach(facts, spec, slot) for slot in slots.values())
    nodes = max(spec.least, len(slots) - lacking)
    return 0 if nodes >= spec.slots else nodes


def _is_out_of_reach(facts: Facts, spec: RunSpec, slot: Slot) -> bool:
    """Whether EC2 has had nothing for the place: all the time that it is waited for, and by an answer."""
    if slot.successor_instance != NO_INSTANCE or slot.waits_for_notice or slot.claimed_at is None:
        return False
    if facts.now - slot.claimed_at < spec.elastic_after_s:
        return False
    asked = [launch for launch in facts.launches if want_of(slot) in launch.wants]
    if any(launch.state is not LaunchState.CLOSED for launch in asked):
        return False
    cools = facts.head is not None and facts.head.next_launch_at > facts.now  # no pool could be asked since
    return bool(asked) or cools

"""Instances that run: a node that boots, or one that comes back after its place was given away.

A stopped or hibernated instance can run again, with everything that it knew. It never becomes a second writer: its
membership is over, so its commits lose, and its agent parks. Ours is ended. A hand-tagged one is still offered by its
tag: its entry ends, so that the sweep gives it the next free place (decisions.adoption), and people are told.
"""

from __future__ import annotations

from collections.abc import Sequence

from lambdas.decisions.actions import Action, EndMember, Guarded, Notify, Tell, Terminate
from lambdas.decisions.facts import Facts
from lambdas.decisions.losses import Place, place_of
from lambdas.decisions.sorting import Answered, Booted
from spotproof.contract.history import HistoryKind


def decide(facts: Facts, booted: Sequence[Booted]) -> tuple[Action, ...]:
    """Every node that runs is told of; those whose slot has gone on without them come back to nothing."""
    return tuple(action for one in booted for action in _of(facts, one))


def answered(run: str, one: Answered) -> Tell:
    """How a command ended on a node, for the timeline: a hint. What is durable says the pointer (SSM-04)."""
    return Tell(
        run=run,
        what=HistoryKind.COMMAND,
        slot=one.member.slot,
        incarnation=one.member.incarnation,
        instance=one.member.instance,
        detail=f"{one.message.command}: {one.message.status}",
        at=one.message.at,
        entry=one.message.command,
    )


def _of(facts: Facts, one: Booted) -> tuple[Action, ...]:
    member, slot = one.member, facts.slot(one.member.slot)
    is_over = slot is not None and place_of(slot, member.instance) is Place.NOWHERE
    told = Tell(
        run=facts.run,
        what=HistoryKind.COMEBACK if is_over else HistoryKind.BOOTED,
        slot=member.slot,
        incarnation=member.incarnation,
        instance=member.instance,
        at=one.message.at,
    )
    if not is_over or slot is None or slot.incarnation <= member.incarnation:
        return (told,)
    if member.launch is not None:
        return (told, Terminate(instances=(member.instance,)))
    text = (
        f"{member.instance}, hand-tagged for run {facts.run}, runs again. Slot {member.slot} has gone on without it: "
        "nothing of what it did there is written any more. While it carries the run's tag it gets the next place that "
        "is free, for which its agent has to be started anew."
    )
    said = Notify(
        subject=f"spotproof: {member.instance} came back and has no place",
        many=f"spotproof: {{count}} instances of run {facts.run} came back and have no place",
        text=text,
        do="Start its agent anew; or end it, or take its tag off.",
        run=facts.run,
    )
    return (told, Guarded(first=EndMember(instance=member.instance), then=(said,)))

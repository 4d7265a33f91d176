"""Instances that people tagged themselves: a notice gets a flush and a notification, never a replacement."""

from __future__ import annotations

from collections.abc import Sequence
from typing import assert_never

from lambdas.decisions.actions import Action, Notify, Tell
from lambdas.decisions.facts import Facts
from lambdas.decisions.flush import order_flush
from lambdas.decisions.sorting import ByHand
from spotproof.contract.history import HistoryKind
from spotproof.contract.messages import BlockExpiry, Drill, Interruption
from spotproof.contract.states import Cause, NoticeKind


def decide(facts: Facts, noticed: Sequence[ByHand]) -> tuple[Action, ...]:
    """One order for the run's nodes, and word to its people.

    Nobody leaves by its slot: the table knows no slot of these instances, so everybody saves.
    """
    told = tuple(_told(facts, one) for one in noticed)
    living = [deadline for one in noticed if (deadline := deadline_of(one)) > facts.now]
    flush = (
        order_flush(
            facts,
            kind=NoticeKind.INTERRUPTION,
            cause=_cause(noticed[0]),
            leavers=frozenset(),
            deadline_at=min(living),
        )
        if living
        else ()
    )
    return (*flush, *told, *(_word(facts, one, flushed=bool(flush)) for one in noticed))


def deadline_of(one: ByHand) -> int:
    """The moment after which the instance may be gone."""
    return one.message.at + one.message.notice_s if isinstance(one.message, Drill) else one.message.deadline_at


def _cause(one: ByHand) -> Cause:
    match one.message:
        case Interruption():
            return Cause.INTERRUPTION
        case BlockExpiry():
            return Cause.BLOCK_EXPIRY
        case Drill():
            return Cause.DRILL
        case _:
            assert_never(one.message)


def _does(one: ByHand) -> str:
    match one.message:
        case Interruption():
            return f"EC2 will {one.message.action.value}"
        case BlockExpiry():
            return "The capacity block ends of"
        case Drill():
            return "A drill pretends the end of"
        case _:
            assert_never(one.message)


def _told(facts: Facts, one: ByHand) -> Tell:
    action = one.message.action.value if isinstance(one.message, Interruption) else ""
    return Tell(
        run=facts.run,
        what=HistoryKind.NOTICE,
        instance=one.instance,
        cause=_cause(one),
        detail=action,
        at=one.message.at,
    )


def _word(facts: Facts, one: ByHand, *, flushed: bool) -> Notify:
    saved = "It was told to flush." if flushed else "It was too late to flush."
    return Notify(
        subject=f"spotproof: {one.instance} is interrupted",
        many=f"spotproof: {{count}} hand-tagged instances of run {facts.run} are interrupted",
        run=facts.run,
        do="Start another one yourself and tag it, or submit the run.",
        text=f"{_does(one)} {one.instance}, tagged by hand for run {facts.run}. {saved} "
        "It is in no slot, so it is not replaced.",
    )

"""Instances that people tagged themselves: a notice gets a flush and a notification, never a replacement."""

from __future__ import annotations

from collections.abc import Sequence

from lambdas.decisions.actions import Action, Notify, Tell
from lambdas.decisions.facts import Facts
from lambdas.decisions.flush import order_flush
from spotproof.contract.history import HistoryKind
from spotproof.contract.messages import Interruption
from spotproof.contract.states import Cause, NoticeKind


def decide(facts: Facts, noticed: Sequence[Interruption]) -> tuple[Action, ...]:
    """One order for the run's nodes, and word to its people.

    Nobody leaves by its slot: the table knows no slot of these instances, so everybody saves.
    """
    told = tuple(_told(facts, message) for message in noticed)
    living = [message.deadline_at for message in noticed if message.deadline_at > facts.now]
    flush = (
        order_flush(
            facts,
            kind=NoticeKind.INTERRUPTION,
            cause=Cause.INTERRUPTION,
            leavers=frozenset(),
            deadline_at=min(living),
        )
        if living
        else ()
    )
    return (*flush, *told, *(_word(facts, message, flushed=bool(flush)) for message in noticed))


def _told(facts: Facts, message: Interruption) -> Tell:
    return Tell(
        run=facts.run,
        what=HistoryKind.NOTICE,
        instance=message.instance,
        cause=Cause.INTERRUPTION,
        detail=message.action.value,
        at=message.at,
    )


def _word(facts: Facts, message: Interruption, *, flushed: bool) -> Notify:
    saved = "It was told to flush." if flushed else "It was too late to flush."
    return Notify(
        subject=f"spotproof: {message.instance} is interrupted",
        text=f"EC2 will {message.action.value} {message.instance}, tagged by hand for run {facts.run}. {saved} "
        "It is in no slot, so it is not replaced: start another one yourself, or submit the run.",
    )

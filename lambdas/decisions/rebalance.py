"""Rebalance advice: an extra checkpoint for the whole run, never a termination (EV-10)."""

from __future__ import annotations

from collections.abc import Sequence

from lambdas.decisions.actions import Action, Tell
from lambdas.decisions.facts import Facts
from lambdas.decisions.flush import order_flush
from spotproof.contract.history import HistoryKind
from spotproof.contract.items import Member
from spotproof.contract.limits import NOTICE_S
from spotproof.contract.messages import Rebalance
from spotproof.contract.states import Cause, NoticeKind


def decide(facts: Facts, advised: Sequence[tuple[Rebalance, Member]]) -> tuple[Action, ...]:
    """One order without leavers for all advice of the batch; none while an order stands, whose flush saves as well."""
    if facts.head is None or not facts.head.status.wants_nodes:
        return ()
    told = tuple(_told(facts, message, member) for message, member in advised)
    if facts.head.order is not None and (facts.head.order_deadline_at or 0) > facts.now:
        return told
    return (
        *order_flush(
            facts,
            kind=NoticeKind.REBALANCE,
            cause=Cause.REBALANCE,
            leavers=frozenset(),
            deadline_at=facts.now + NOTICE_S,
        ),
        *told,
    )


def _told(facts: Facts, message: Rebalance, member: Member) -> Tell:
    return Tell(
        run=facts.run,
        what=HistoryKind.NOTICE,
        slot=member.slot,
        incarnation=member.incarnation,
        instance=message.instance,
        cause=Cause.REBALANCE,
        at=message.at,
    )

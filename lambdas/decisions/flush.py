"""The flush order: who leaves, until when. It comes first, before any claim."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Final

from lambdas.decisions.actions import Action, Measure, OrderFlush, SendFlush, Tell
from lambdas.decisions.facts import Facts
from spotproof.contract.history import HistoryKind
from spotproof.contract.items import Head
from spotproof.contract.limits import HEAD_POLL_S, NOTICE_S
from spotproof.contract.metrics import Metric
from spotproof.contract.orders import FlushOrder, slots_of
from spotproof.contract.states import Cause, NoticeKind

HEARD_S: Final = 3 * HEAD_POLL_S  # by then every agent that reaches the table has read an order


def order_flush(
    facts: Facts, *, kind: NoticeKind, cause: Cause, leavers: frozenset[int], deadline_at: int
) -> tuple[Action, ...]:
    """The actions that tell the run to flush. The same facts give the same order id, so that a repetition is no news.

    Leavers of an order that not every agent may have read yet stay leavers, and the later deadline counts: an earlier
    one would take seconds from a flush, and one that passes before it is read means nobody. (Whoever is interrupted has
    its own from its metadata.) Older leavers are not named again: they leave already, and where one of them has been
    replaced since, its slot's number would mean the node that has just come.
    """
    deadline_at = until(facts, deadline_at)
    everybody = leavers | _unheard_leavers(facts.head, facts.now)
    order = FlushOrder(
        order=order_id(facts.run, kind, deadline_at, everybody),
        kind=kind,
        deadline_at=deadline_at,
        leavers=everybody,
        generation=0 if facts.sealed is None else facts.sealed.generation,
    )
    who = ", ".join(str(slot) for slot in sorted(everybody)) or "nobody"
    told = Tell(
        run=facts.run,
        what=HistoryKind.FLUSH_ORDERED,
        cause=cause,
        detail=f"order {order.order}: leaving {who}, until {deadline_at}"[:400],
    )
    sent = (SendFlush(run=facts.run, order=order), told, Measure(metric=Metric.FLUSH_ORDERS))
    return sent if facts.head is None else (OrderFlush(seen=facts.head, order=order, then=sent),)


def extra_checkpoint(facts: Facts, *, kind: NoticeKind, cause: Cause) -> tuple[Action, ...]:
    """An order without leavers; none while an order stands, whose flush saves as well."""
    if facts.head is None or (facts.head.order is not None and (facts.head.order_deadline_at or 0) > facts.now):
        return ()
    return order_flush(facts, kind=kind, cause=cause, leavers=frozenset(), deadline_at=facts.now + NOTICE_S)


def until(facts: Facts, deadline_at: int) -> int:
    """The deadline of an order that is given now for this one."""
    unheard = _unheard_leavers(facts.head, facts.now)
    return max(deadline_at, (facts.head.order_deadline_at or 0) if unheard and facts.head is not None else 0)


def standing_leavers(head: Head | None, now: int) -> frozenset[int]:
    """Who leaves by the order in HEAD, while its deadline is to come."""
    if head is None or head.order_leavers is None or (head.order_deadline_at or 0) <= now:
        return frozenset()
    return slots_of(head.order_leavers)


def _unheard_leavers(head: Head | None, now: int) -> frozenset[int]:
    is_old = head is not None and 0 < head.order_at <= now - HEARD_S
    return frozenset() if is_old else standing_leavers(head, now)


def order_id(run: str, kind: NoticeKind, deadline_at: int, leavers: Iterable[int]) -> str:
    """A name for the order that follows from what it says: lower-case hex, safe in a file name."""
    text = f"{run}|{kind.value}|{deadline_at}|{','.join(str(slot) for slot in sorted(leavers))}"
    return hashlib.sha256(text.encode()).hexdigest()[:24]

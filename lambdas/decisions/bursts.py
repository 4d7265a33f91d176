"""Many notices at once: orders and launches of one run wait for each other, so that a burst is a few of each.

A pool dies together, so a burst is the normal case. Ordered and launched one by one, a run of a thousand nodes would
be told to flush a thousand times and would spend EC2's rate limit on fleets of one. In a burst the first order of a
run goes out at once, and everybody saves; who else leaves is said by the next order, seconds later, and its claims
are filled together. What was put off is written in HEAD and stands in the repair queue; the sweep looks for it too.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from typing import Final

from lambdas.decisions.actions import Action, ComeBack, Expect, Guarded
from lambdas.decisions.facts import Facts, occupant
from lambdas.decisions.flush import order_flush, standing_leavers
from lambdas.decisions.promotion import promoted, promotions
from spotproof.contract.items import Head, Slot
from spotproof.contract.states import Cause, NoticeKind

CROWD: Final = 8  # slots of one run that leave by one order: more of it will follow
CALM_S: Final = 60  # a burst is over when nothing was put off for so long
WAIT_S: Final = 6  # what the first wait takes at least: a burst of ten thousand notices passes the queue in seconds
SPREAD_S: Final = 7  # and up to as much more, by run: EC2 takes few CreateFleet requests a second
LONGEST_WAIT_S: Final = 24  # each further wait in one burst is twice as long
SLACK_S: Final = 2  # between a claim and the note in HEAD that somebody comes for it
URGENT_S: Final = 60  # who has less time than this is named in an order at once
NOTICED: Final = frozenset({Cause.INTERRUPTION, Cause.BLOCK_EXPIRY, Cause.DRILL, Cause.USER})


def holds_order(facts: Facts, *, deadline_at: int) -> bool:
    """Whether leavers are named by the next order: the run was told to save seconds ago, and there is time."""
    head = facts.head
    if head is None or not head.status.wants_nodes or not _is_burst(facts, head):
        return False
    stands = head.order is not None and (head.order_deadline_at or 0) > facts.now
    return stands and facts.now - head.order_at < CALM_S and deadline_at - facts.now >= URGENT_S


def holds_launch(facts: Facts) -> bool:
    """Whether more claims of the run are to be expected in this moment, so that they are better filled together."""
    head = facts.head
    if head is None or not head.status.wants_nodes:
        return False
    return head.wake_at > facts.now or (_is_burst(facts, head) and _may_lose_more(facts, head))


def put_off(facts: Facts) -> tuple[Action, ...]:
    """See to it that somebody comes for the claims that are left open; () where somebody comes already."""
    if facts.head is None or facts.head.wake_at > facts.now:
        return ()
    return _come_back(facts.head, facts.now, wait_s=_wait_s(facts.head, facts.now))


def back_off(facts: Facts) -> tuple[Action, ...]:
    """Come back for a launch that EC2 was too busy for: later, and not all runs in the same second."""
    if facts.head is None or facts.head.wake_at > facts.now:
        return ()
    return _come_back(facts.head, facts.now, wait_s=WAIT_S + _spread(facts.head.run, facts.now) * 2)


def late_order(facts: Facts) -> tuple[Action, ...]:
    """The order that names the leavers who were put off for this look; () where there is none.

    Those of earlier looks have been named by then, and are not named again.
    """
    if facts.head is None or not facts.head.status.wants_nodes:
        return ()
    named, since = standing_leavers(facts.head, facts.now), facts.head.wake_at - facts.head.wake_s - SLACK_S
    slots = promoted(facts, promotions(facts)).values()  # who has been replaced is not meant, but the node there now is
    put_off_since = [slot for slot in slots if (slot.claimed_at or 0) >= since and slot.slot not in named]
    left_out = [slot for slot in put_off_since if _may_flush(slot, facts.now)]
    if not left_out:
        return ()
    return order_flush(
        facts,
        kind=NoticeKind.INTERRUPTION,
        cause=left_out[0].cause or Cause.INTERRUPTION,
        leavers=frozenset(slot.slot for slot in left_out),
        deadline_at=min(slot.deadline_at or 0 for slot in left_out),
    )


def _is_burst(facts: Facts, head: Head) -> bool:
    is_fresh = facts.now - head.order_at < CALM_S
    return facts.crowded or (is_fresh and len(standing_leavers(head, facts.now)) >= CROWD)


def _may_lose_more(facts: Facts, head: Head) -> bool:
    """A run whose every slot leaves is filled at once: nothing more can come."""
    return len(standing_leavers(head, facts.now) | _numbers(facts.slots)) < head.slots


def _numbers(slots: Iterable[Slot]) -> frozenset[int]:
    return frozenset(slot.slot for slot in slots)


def _may_flush(slot: Slot, now: int) -> bool:
    """A holder that was claimed on its notice and is not gone yet."""
    leaves = slot.successor_instance is not None and slot.cause in NOTICED and not slot.waits_for_notice
    return leaves and occupant(slot.holder_instance) is not None and (slot.deadline_at or 0) > now


def _wait_s(head: Head, now: int) -> int:
    goes_on = now - head.wake_at < CALM_S
    return min(2 * head.wake_s, LONGEST_WAIT_S) if goes_on else WAIT_S + _spread(head.run, 0)


def _spread(run: str, salt: int) -> int:
    return zlib.crc32(f"{run}|{salt}".encode()) % SPREAD_S


def _come_back(head: Head, now: int, *, wait_s: int) -> tuple[Action, ...]:
    expect = Expect(seen=head, wake_at=now + wait_s, wake_s=wait_s)
    # A second later than it says, because a whole second is what the clocks here know.
    return (Guarded(first=expect, then=(ComeBack(run=head.run, after_s=wait_s + 1, only_fills=True),)),)

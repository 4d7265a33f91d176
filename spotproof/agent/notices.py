"""Everything that announces a node's end, merged: each notice acts once, and the earliest deadline wins.

Sources: the instance's own metadata, request files of the SSM document, the run's HEAD. They tell of one event in
three ways, late or twice or not at all; the agent acts on whichever comes first.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from spotproof.contract.orders import FlushOrder
from spotproof.contract.states import InterruptionAction, NoticeKind


class Source(StrEnum):
    """Where a notice was heard."""

    METADATA = "metadata"
    REQUEST = "request"
    HEAD = "head"
    PERSON = "person"  # a signal to `spotproof run`

    @property
    def is_about_the_slot(self) -> bool:
        """Whether the notice names a slot, not this instance: before this node has joined it means its predecessor."""
        return self in (Source.REQUEST, Source.HEAD)


@dataclass(frozen=True, slots=True, kw_only=True)
class Heard:
    """A notice from one source. `leave`: this node will go; else it only saves an extra checkpoint."""

    key: str  # equal for the same notice at every poll of every source that knows its id
    source: Source
    kind: NoticeKind
    deadline_at: float
    leave: bool
    action: InterruptionAction | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class News:
    """What changed. `is_new_leaving` once per node: the interruption counts once however often it is heard (EV-08)."""

    heard: Heard
    deadline_at: float
    is_new_leaving: bool = False
    is_earlier: bool = False
    is_extra: bool = False


def of_order(order: FlushOrder, *, source: Source, slot: int, joined_in: int = 0) -> Heard:
    """A flush order as the node in this slot hears it, which joined in that generation (0: unknown).

    Whoever joined after the leavers were named was not meant: the order may have come late.
    """
    is_older = 0 < order.generation < joined_in
    return Heard(
        key=order.order,
        source=source,
        kind=order.kind,
        deadline_at=float(order.deadline_at),
        leave=slot in order.leavers and not is_older,
    )


@dataclass(slots=True)
class Notices:
    """What has been heard so far. `leaving` is the notice that made this node a leaver, with the earliest deadline."""

    leaving: Heard | None = None
    deadline_at: float = float("inf")
    heard: set[str] = field(default_factory=set)

    def forget_before_joining(self, key: str) -> None:
        """Note an order that concerns the node whose place this one takes: it is old when this one joins."""
        self.heard.add(key)

    def hear(self, notice: Heard, *, now: float) -> News | None:
        """Merge a notice; None: nothing changes."""
        if notice.leave:
            return self._hear_leaving(notice, now)
        if notice.key in self.heard:
            return None
        self.heard.add(notice.key)
        if self.leaving is not None or notice.deadline_at <= now:
            return None  # the flush saves more than the extra checkpoint would, or nobody needs it any more
        return News(heard=notice, deadline_at=notice.deadline_at, is_extra=True)

    def _hear_leaving(self, notice: Heard, now: float) -> News | None:
        if self.leaving is None:
            is_stale = notice.source.is_about_the_slot and notice.deadline_at <= now
            if notice.key in self.heard or is_stale:
                return None
            self.heard.add(notice.key)
            self.leaving, self.deadline_at = notice, notice.deadline_at
            return News(heard=notice, deadline_at=notice.deadline_at, is_new_leaving=True)
        self.heard.add(notice.key)
        if notice.deadline_at >= self.deadline_at:
            return None
        self.deadline_at = notice.deadline_at
        return News(heard=notice, deadline_at=notice.deadline_at, is_earlier=True)

"""What the agent asks the table for while training goes on: the run's HEAD, and whether it is still a member.

One thread, because the table may take seconds to answer and the loop may not. A table that is silent changes nothing:
the node trains on, and the pointer's own transaction keeps a superseded one from committing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from spotproof.contract.items import Generation, Head, Newest, PointerItem
from spotproof.contract.orders import FlushOrder, slots_of
from spotproof.contract.states import NoticeKind
from spotproof.errors import StoreError


class ReadsHead(Protocol):
    """The part of `store.head.Heads` that is needed here."""

    def read(self, run: str) -> Head | None:
        """Return the head, or None."""


class ReadsNewest(Protocol):
    """The part of `store.members.Memberships` that is needed here."""

    def newest(self, run: str) -> Newest | None:
        """Return the newest sealed generation, or None."""

    def generation(self, run: str, number: int) -> Generation | None:
        """Return one sealed membership, or None."""

    def mark_bad(self, run: str, generation: int) -> Newest:
        """Say that a generation is broken."""


class ReadsPointer(Protocol):
    """The part of `store.pointer.Pointers` that is needed here."""

    def read(self, run: str) -> PointerItem | None:
        """Return the pointer, or None."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableSays:
    """One look at the table. None: there is no such item; `error` tells of a look that failed.

    `sealed` and `pointer` are read only for a run of many nodes. `began_at`: what was written before it is in here.
    """

    head: Head | None = None
    newest: Newest | None = None
    sealed: Generation | None = None
    pointer: PointerItem | None = None
    began_at: float = 0.0
    error: str = ""


def look(run: str, *, heads: ReadsHead, memberships: ReadsNewest) -> TableSays:
    """Read HEAD and NEWEST; a failure is a value, because the next look is two seconds away."""
    try:
        return TableSays(head=heads.read(run), newest=memberships.newest(run))
    except StoreError as error:
        return TableSays(error=str(error))


@dataclass(slots=True, kw_only=True)
class WiderLook:
    """The look of one of many nodes: the newest membership, read once, and what is committed, since the last part of a
    checkpoint may be another node's."""

    run: str
    heads: ReadsHead
    memberships: ReadsNewest
    pointers: ReadsPointer
    now: Callable[[], float]
    _sealed: Generation | None = None

    def __call__(self) -> TableSays:
        """Look once; a failure is a value."""
        began_at = self.now()
        try:
            newest = self.memberships.newest(self.run)
            if newest is not None and (self._sealed is None or self._sealed.generation != newest.generation):
                self._sealed = self.memberships.generation(self.run, newest.generation)
            head = self.heads.read(self.run)
            pointer = self.pointers.read(self.run)
            if newest is not None and head is not None and newest.bad < newest.generation == head.bad:
                # The control plane's word stands in HEAD, since what memberships say is the nodes' alone.
                newest = self.memberships.mark_bad(self.run, newest.generation)
            return TableSays(head=head, newest=newest, sealed=self._sealed, pointer=pointer, began_at=began_at)
        except StoreError as error:
            return TableSays(error=str(error))


def order_of(head: Head) -> FlushOrder | None:
    """The flush order that stands in HEAD, or None."""
    if head.order is None or head.order_deadline_at is None:
        return None
    return FlushOrder(
        order=head.order,
        kind=head.order_kind or NoticeKind.INTERRUPTION,
        deadline_at=head.order_deadline_at,
        leavers=slots_of(head.order_leavers or "0"),
        generation=head.order_generation,
    )


def is_superseded(newest: Newest | None, *, generation: int) -> bool:
    """Whether the membership of `generation` is over: a newer one is sealed, or it has been marked as broken."""
    if newest is None or generation == 0:
        return False
    return newest.generation > generation or newest.bad >= generation


Say = Callable[[TableSays], None]

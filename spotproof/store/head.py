"""HEAD: a run's status, its flush order and its counters. What agents poll, so it stays under 1 KB."""

from __future__ import annotations

from spotproof.contract import keys
from spotproof.contract.items import Head, from_item, to_item
from spotproof.contract.orders import FlushOrder, bitmap_of
from spotproof.contract.states import Cause, RunStatus, may_move
from spotproof.errors import Lost, StoreError
from spotproof.store.table import Absent, AllOf, AnyOf, Condition, Eq, Exists, Lt, Put, Table, Update

__all__ = ["Heads"]

_REASON_CHARACTERS = 200


class Heads:
    """Status moves are conditional on the status that was seen; counters only add."""

    def __init__(self, table: Table) -> None:
        self._table = table

    def create(self, head: Head) -> None:
        """Make the run. Raises Lost if a run of this id exists: it is another submit's, choose another id."""
        self._table.write(Put(key=keys.head(head.run), item=to_item(head), when=Absent("pk")))

    def read(self, run: str) -> Head | None:
        """Return the head, or None if there is no such run."""
        item = self._table.get(keys.head(run))
        return None if item is None else from_item(Head, item)

    def move(self, seen: Head, to: RunStatus, *, cause: Cause | None = None, reason: str = "", now: int) -> Head:
        """Move the run from the status that was seen to `to`; having been moved there already is success.

        Raises Lost if it has left that status for another one: read again and decide again. Raises StoreError for a
        move that contract.states does not allow.
        """
        if seen.status is not to and not may_move(seen.status, to):
            raise StoreError(f"run {seen.run}: {seen.status} does not become {to}", next_step="start a new run")
        change = Update(
            key=keys.head(seen.run),
            set={"status": to.value, "reason": reason[:_REASON_CHARACTERS], "status_at": now}
            | ({"cause": cause.value} if cause else {}),
            remove=() if cause else ("cause",),
            when=Eq("status", seen.status.value),
        )
        try:
            return from_item(Head, self._table.write(change))
        except Lost as lost:
            if lost.current is None or lost.current.get("status") != to.value:
                raise
            return from_item(Head, lost.current)

    def order_flush(self, seen: Head, order: FlushOrder) -> Head:
        """Put the flush order where agents look; the same order again is success.

        It replaces the order that was seen, so it must also name those of its leavers who have not left yet. Raises
        Lost if another order was put meanwhile: read it, join the leavers, order again.
        """
        stands: Condition = Absent("order") if seen.order is None else Eq("order", seen.order)
        change = Update(
            key=keys.head(seen.run),
            set={
                "order": order.order,
                "order_kind": order.kind.value,
                "order_deadline_at": order.deadline_at,
                "order_leavers": bitmap_of(order.leavers),
            },
            when=AllOf(Exists("pk"), AnyOf(stands, Eq("order", order.order))),
        )
        return from_item(Head, self._table.write(change))

    def count(
        self, run: str, *, recoveries: int = 0, trainer_failures: int = 0, launches: int = 0, spot_attempts: int = 0
    ) -> Head:
        """Add to counters. Not idempotent: call it once per won condition. Raises Lost if there is no such run."""
        added = {
            "recoveries": recoveries,
            "trainer_failures": trainer_failures,
            "launches": launches,
            "spot_attempts": spot_attempts,
        }
        change = Update(key=keys.head(run), increment={name: by for name, by in added.items() if by}, when=Exists("pk"))
        return from_item(Head, self._table.write(change))

    def committed(self, run: str, step: int) -> Head:
        """Take note of a newer commit: the budgets for recoveries and trainer failures begin anew.

        A commit that is not newer changes nothing. Raises Lost if there is no such run.
        """
        change = Update(
            key=keys.head(run),
            set={"committed_step": step, "recoveries": 0, "trainer_failures": 0},
            when=AllOf(Exists("pk"), AnyOf(Absent("committed_step"), Lt("committed_step", step))),
        )
        return self._unless_done(change)

    def attempt_failed(self, run: str, *, next_launch_at: int, spot: bool) -> Head:
        """Record that a launch brought nothing: when to try again, and one more failed Spot attempt in a row."""
        change = Update(
            key=keys.head(run),
            set={"next_launch_at": next_launch_at},
            increment={"spot_attempts": 1} if spot else {},
            when=Exists("pk"),
        )
        return from_item(Head, self._table.write(change))

    def attempt_succeeded(self, run: str) -> Head:
        """Record that a launch brought capacity: failed Spot attempts are counted from zero again."""
        change = Update(key=keys.head(run), set={"spot_attempts": 0, "next_launch_at": 0}, when=Exists("pk"))
        return from_item(Head, self._table.write(change))

    def _unless_done(self, change: Update) -> Head:
        try:
            return from_item(Head, self._table.write(change))
        except Lost as lost:
            if lost.current is None:
                raise
            return from_item(Head, lost.current)

"""HEAD: a run's status, its flush order and its counters. What agents poll, so it stays under 1 KB."""

from __future__ import annotations

from contextlib import suppress

from spotproof.contract import keys
from spotproof.contract.items import Head, from_item, to_item
from spotproof.contract.orders import FlushOrder, bitmap_of
from spotproof.contract.states import Cause, RunStatus, may_move
from spotproof.errors import Lost, StoreError
from spotproof.store.table import Absent, AllOf, AnyOf, Condition, Eq, Exists, Item, Lt, Ne, Put, Table, Update

__all__ = ["Heads"]

_REASON_CHARACTERS = 200


class Heads:
    """Status moves are conditional on the status that was seen; what is counted names what it was counted for."""

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

        A run that becomes active again has all of its budgets anew, and launches at once.

        Raises Lost if it has left that status for another one: read again and decide again. Raises StoreError for a
        move that contract.states does not allow.
        """
        if seen.status is not to and not may_move(seen.status, to):
            raise StoreError(f"run {seen.run}: {seen.status} does not become {to}", next_step="start a new run")
        resumed = to is RunStatus.ACTIVE and seen.status is not to
        change = Update(
            key=keys.head(seen.run),
            set={
                "status": to.value,
                "reason": reason[:_REASON_CHARACTERS],
                "status_at": now,
                **({"cause": cause.value} if cause else {}),
                **(_budgets_anew(now) if resumed else {}),
            },
            remove=(*(() if cause else ("cause",)), *(("node_faults",) if resumed else ())),
            when=Eq("status", seen.status.value),
        )
        try:
            return from_item(Head, self._table.write(change))
        except Lost as lost:
            if lost.current is None or lost.current.get("status") != to.value:
                raise
            return from_item(Head, lost.current)

    def order_flush(self, seen: Head, order: FlushOrder, *, now: int = 0) -> Head | None:
        """Put the flush order where agents look, given at `now`; None if the same order stands there already.

        Of many who put one order at once, one gets the head: he sends it. It replaces the order that was seen, so it
        must also name those of its leavers who have not left yet. Raises Lost if another order was put meanwhile: read
        it, join the leavers, order again.
        """
        change = self.ordering(seen, order, now=now)
        try:
            return from_item(Head, self._table.write(change))
        except Lost as lost:
            if lost.current is None or lost.current.get("order") != order.order:
                raise
            return None

    def ordering(self, seen: Head, order: FlushOrder, *, now: int) -> Update:
        """The write that puts the order in place of the one that was seen, for a transaction."""
        stands: Condition = Absent("order") if seen.order is None else Eq("order", seen.order)
        return Update(
            key=keys.head(seen.run),
            set={
                "order": order.order,
                "order_kind": order.kind.value,
                "order_deadline_at": order.deadline_at,
                "order_leavers": bitmap_of(order.leavers),
                "order_at": now,
                "order_generation": order.generation,
            },
            when=AllOf(Exists("pk"), stands, Ne("order", order.order)),
        )

    def mark_bad(self, run: str, generation: int) -> None:
        """Say that this membership has lost a node; its agents pass it on. It only rises, and twice changes nothing."""
        rises = AllOf(Exists("pk"), AnyOf(Absent("bad"), Lt("bad", generation)))
        with suppress(Lost):
            self._table.write(Update(key=keys.head(run), set={"bad": generation}, when=rises))

    def within_reach(self, run: str, nodes: int) -> None:
        """Say how many nodes an elastic run has or gets, as far as EC2 answered; 0: as many as it has slots.

        The last word counts. Raises Lost if there is no such run.
        """
        self._table.write(Update(key=keys.head(run), set={"reach": nodes}, when=Exists("pk")))

    def launched(self, run: str, launch: int, *, recovered: bool) -> Head:
        """Count a launch that brought capacity: failed attempts and refusals begin anew, a recovery is one more.

        Each launch counts once, in the order of their numbers; a second time is success. Raises Lost if there is no
        such run.
        """
        found: Item = {
            "counted_launch": launch,
            "spot_attempts": 0,
            "next_launch_at": 0,
            "refused": "",
            "refusals": 0,
        }
        more = {"recoveries": 1} if recovered else {}
        return self._counted(Update(key=keys.head(run), set=found, increment=more, when=_uncounted(launch)))

    def launch_failed(
        self, run: str, launch: int, *, next_launch_at: int, spot: bool, refused: str = "", refusals: int = 0
    ) -> Head:
        """Count a launch that brought nothing: when to try again, and one more failed Spot attempt in a row (`spot`).

        `refused` is the code with which EC2 refused the whole request, now `refusals` times in a row. Each launch
        counts once; a second time is success. Raises Lost if there is no such run.
        """
        said: Item = {
            "counted_launch": launch,
            "next_launch_at": next_launch_at,
            "refused": refused,
            "refusals": refusals,
        }
        more = {"spot_attempts": 1} if spot else {}
        return self._counted(Update(key=keys.head(run), set=said, increment=more, when=_uncounted(launch)))

    def retry_at(self, run: str, next_launch_at: int) -> Head:
        """Say when a launch may be tried again. Raises Lost if there is no such run."""
        change = Update(key=keys.head(run), set={"next_launch_at": next_launch_at}, when=Exists("pk"))
        return from_item(Head, self._table.write(change))

    def node_fault(self, run: str, node: str) -> Head:
        """Note that a node (`slot:incarnation`) failed before it joined; saying it twice changes nothing."""
        change = Update(key=keys.head(run), include={"node_faults": frozenset({node})}, when=Exists("pk"))
        return from_item(Head, self._table.write(change))

    def spent(self, seen: Head, *, usd: float, now: int) -> Head:
        """Write the estimate of what the run has cost up to now. Raises Lost if somebody else did: as good."""
        unchanged = AnyOf(Absent("spent_at"), Eq("spent_at", seen.spent_at))
        change = Update(
            key=keys.head(seen.run), set={"spent_usd": usd, "spent_at": now}, when=AllOf(Exists("pk"), unchanged)
        )
        return from_item(Head, self._table.write(change))

    def committed(self, run: str, step: int) -> Head:
        """Take note of a newer commit: the budgets for recoveries and node faults begin anew.

        A commit that is not newer changes nothing. Raises Lost if there is no such run.
        """
        change = Update(
            key=keys.head(run),
            set={"committed_step": step, "recoveries": 0},
            remove=("node_faults",),
            when=AllOf(Exists("pk"), AnyOf(Absent("committed_step"), Lt("committed_step", step))),
        )
        return self._counted(change)

    def expect(self, seen: Head, *, wake_at: int, wake_s: int) -> Head:
        """Say that somebody comes at `wake_at` for the claims that are open then.

        Raises Lost if somebody else has said so meanwhile: he comes.
        """
        unchanged = (
            AnyOf(Absent("wake_at"), Eq("wake_at", seen.wake_at)) if seen.wake_at == 0 else Eq("wake_at", seen.wake_at)
        )
        change = Update(
            key=keys.head(seen.run), set={"wake_at": wake_at, "wake_s": wake_s}, when=AllOf(Exists("pk"), unchanged)
        )
        return from_item(Head, self._table.write(change))

    def measured(self, seen: Head, *, upto: int) -> Head:
        """Say that recoveries that ended up to then are measured. Raises Lost if somebody else has: they are his."""
        unchanged = AnyOf(Absent("measured_at"), Eq("measured_at", seen.measured_at))
        change = Update(key=keys.head(seen.run), set={"measured_at": upto}, when=AllOf(Exists("pk"), unchanged))
        return from_item(Head, self._table.write(change))

    def _counted(self, change: Update) -> Head:
        try:
            return from_item(Head, self._table.write(change))
        except Lost as lost:
            if lost.current is None:
                raise
            return from_item(Head, lost.current)


def _uncounted(launch: int) -> Condition:
    return AllOf(Exists("pk"), AnyOf(Absent("counted_launch"), Lt("counted_launch", launch)))


def _budgets_anew(now: int) -> Item:
    return {
        "budgets_at": now,
        "next_launch_at": 0,
        "recoveries": 0,
        "refused": "",
        "refusals": 0,
        "spent_at": now,
        "spent_usd": 0.0,
        "spot_attempts": 0,
    }

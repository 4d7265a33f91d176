"""LIVE#0..15: the sweep's index of runs that somebody must look at, and when."""

from __future__ import annotations

from spotproof.contract import keys
from spotproof.contract.items import Live, from_item, to_item
from spotproof.contract.limits import LIVE_SHARDS
from spotproof.errors import Lost
from spotproof.store.table import Absent, AnyOf, Delete, Eq, Gt, Put, Table, Update

__all__ = ["LiveIndex"]


class LiveIndex:
    """One entry per live run, spread over 16 partitions."""

    def __init__(self, table: Table) -> None:
        self._table = table

    def due(self, *, now: int) -> tuple[Live, ...]:
        """Return the runs whose time has come, over all shards."""
        entries = (entry for shard in range(LIVE_SHARDS) for entry in self.shard(shard))
        return tuple(entry for entry in entries if entry.due_at <= now)

    def shard(self, shard: int) -> tuple[Live, ...]:
        """Return all entries of one shard."""
        return tuple(from_item(Live, item) for item in self._table.query(keys.live_partition(shard)))

    def read(self, run: str) -> Live | None:
        """Return the run's entry, or None if the sweep does not look at it."""
        item = self._table.get(keys.live(run))
        return None if item is None else from_item(Live, item)

    def hasten(self, run: str, *, due_at: int) -> None:
        """Enter the run, or bring its time forward; an earlier time that stands stays."""
        entry = Put(
            key=keys.live(run),
            item=to_item(Live(run=run, due_at=due_at)),
            when=AnyOf(Absent("pk"), Gt("due_at", due_at)),
        )
        try:
            self._table.write(entry)
        except Lost:
            return  # an earlier time stands

    def reschedule(self, seen: Live, *, due_at: int) -> None:
        """Set the next time after a look. Raises Lost if somebody hastened or removed it meanwhile: leave that."""
        self._table.write(Update(key=keys.live(seen.run), set={"due_at": due_at}, when=Eq("due_at", seen.due_at)))

    def remove(self, run: str) -> None:
        """Take an ended run out; taking it out twice is success."""
        self._table.write(Delete(key=keys.live(run)))

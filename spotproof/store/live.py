"""LIVE#...: the sweep's index of runs that somebody must look at, and when.

Runs that want nodes stand in LIVE#0..15 and are read each minute, because each of them is due each minute. The others
(paused, blocked, just ended) rest in LIVE#REST#0..15, of which each sweep reads a few partitions in turn: what a sweep
reads follows what is due, however many runs wait for their people.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from spotproof.contract import keys
from spotproof.contract.items import Live, from_item, to_item
from spotproof.contract.limits import LIVE_SHARDS, SWEEP_PERIOD_S
from spotproof.errors import Lost
from spotproof.store.table import Absent, AllOf, AnyOf, Delete, Eq, Exists, Gt, Table, Update

__all__ = ["TURNS", "LiveIndex"]

TURNS: Final = 5
"""A run that rests is looked at every five sweeps."""


class LiveIndex:
    """One entry per live run. Where both shelves hold one, after a crash between two writes, the watched one counts."""

    def __init__(self, table: Table) -> None:
        self._table = table

    def due(self, *, now: int) -> tuple[Live, ...]:
        """Return every run whose time has come, resting ones too; reads the whole index."""
        resting = (entry for shard in range(LIVE_SHARDS) for entry in self._entries(keys.resting_partition(shard)))
        found = {entry.run: entry for entry in (*resting, *self.watched())}
        return tuple(entry for entry in found.values() if entry.due_at <= now)

    def watched(self) -> tuple[Live, ...]:
        """Return the runs that want nodes."""
        return tuple(entry for shard in range(LIVE_SHARDS) for entry in self.shard(shard))

    def resting(self, *, now: int) -> tuple[Live, ...]:
        """Return the resting runs whose turn it is: another fifth of them each minute."""
        turn = now // SWEEP_PERIOD_S % TURNS
        shards = range(turn, LIVE_SHARDS, TURNS)
        return tuple(entry for shard in shards for entry in self._entries(keys.resting_partition(shard)))

    def shard(self, shard: int) -> tuple[Live, ...]:
        """Return the watched entries of one shard."""
        return self._entries(keys.live_partition(shard))

    def read(self, run: str) -> Live | None:
        """Return the run's entry, or None if the sweep does not look at it."""
        item = self._table.get(keys.live(run)) or self._table.get(keys.resting(run))
        return None if item is None else from_item(Live, item)

    def hasten(self, run: str, *, due_at: int) -> None:
        """Enter the run, or bring its time forward; an earlier time that stands stays.

        Whoever has decided before this that the run may rest has decided too early: each call counts, and he loses.
        """
        entry = Update(key=keys.live(run), set={"run": run, "due_at": due_at}, increment={"hastened": 1})
        stands = Update(key=keys.live(run), increment={"hastened": 1}, when=Exists("pk"))
        for change in (replace(entry, when=AnyOf(Absent("pk"), Gt("due_at", due_at))), stands):
            try:
                self._table.write(change)
            except Lost:
                continue  # an earlier time stands; or it did, and was taken out in this moment
            return
        self._table.write(entry)

    def reschedule(self, seen: Live, *, due_at: int, looked_at: int = 0) -> None:
        """Set the next time after a look. Raises Lost if somebody hastened or removed it meanwhile: leave that."""
        change = {"due_at": due_at, "looked_at": looked_at}
        self._table.write(Update(key=keys.live(seen.run), set=change, when=Eq("due_at", seen.due_at)))

    def rest(self, seen: Live) -> None:
        """Look at the run seldom from now on. Raises Lost if somebody hastened it meanwhile: then it is watched."""
        entry = Live(run=seen.run, due_at=seen.due_at, rests=True)
        same = Eq("hastened", seen.hastened)
        unhastened = same if seen.hastened else AnyOf(Absent("hastened"), same)
        self._table.transact(
            [
                Delete(key=keys.live(seen.run), when=AllOf(Eq("due_at", seen.due_at), unhastened)),
                Update(key=keys.resting(seen.run), set=to_item(entry)),
            ]
        )

    def watch(self, run: str, *, due_at: int) -> None:
        """Look at the run each minute from now on; entered first, so that no crash leaves it without an entry."""
        self.hasten(run, due_at=due_at)
        self._table.write(Delete(key=keys.resting(run)))

    def remove(self, run: str) -> None:
        """Take an ended run out; taking it out twice is success."""
        self._table.write(Delete(key=keys.live(run)))
        self._table.write(Delete(key=keys.resting(run)))

    def _entries(self, partition: str) -> tuple[Live, ...]:
        return tuple(from_item(Live, item) for item in self._table.query(partition))

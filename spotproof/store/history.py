"""HIST items: the timeline that the report draws. Each entry is an item of its own, so no item grows (ST-09)."""

from __future__ import annotations

import dataclasses

from spotproof.contract import keys
from spotproof.contract.items import History, from_item, to_item
from spotproof.contract.limits import HISTORY_TTL_S
from spotproof.errors import Lost
from spotproof.store.table import Absent, Put, Table

__all__ = ["Histories", "name_of"]


class Histories:
    """The timelines of all runs. DynamoDB removes old entries some time after their TTL; nothing relies on it."""

    def __init__(self, table: Table) -> None:
        self._table = table

    def add(self, entry: History, *, entry_id: str = "") -> None:
        """Write an entry. The same (time, id) twice is one entry: the first stays.

        `entry_id` tells entries of one millisecond apart; by default it is what happened, to which incarnation.
        """
        name = entry_id or name_of(entry)
        kept = entry if entry.ttl else dataclasses.replace(entry, ttl=entry.at_ms // 1000 + HISTORY_TTL_S)
        key = keys.history(entry.run, entry.at_ms, name)
        try:
            self._table.write(Put(key=key, item=to_item(kept), when=Absent("pk")))
        except Lost:
            return  # told already

    def list(self, run: str, *, since_ms: int = 0, limit: int | None = None) -> tuple[History, ...]:
        """Return the timeline in order, from `since_ms` on."""
        items = self._table.query(keys.history_partition(run), since=f"{since_ms:013d}", limit=limit)
        return tuple(from_item(History, item) for item in items)

    def newest(self, run: str, *, limit: int) -> tuple[History, ...]:
        """Return the newest `limit` entries, in order."""
        items = self._table.query(keys.history_partition(run), limit=limit, newest_first=True)
        return tuple(from_item(History, item) for item in reversed(items))


def name_of(entry: History) -> str:
    """What tells entries of one millisecond apart by default: what happened, to which incarnation, on what."""
    return f"{entry.what}-{_text(entry.slot)}-{_text(entry.incarnation)}-{entry.instance or ''}"


def _text(number: int | None) -> str:
    return "" if number is None else str(number)

"""Kills a handler at a chosen effect: from then on the dead process can do nothing at all, not even clean up."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from spotproof.contract.keys import Key
from spotproof.store.table import BulkTable, Item, Op, Write


class Killed(BaseException):
    """The process is gone; no handler catches this."""


@dataclass(slots=True)
class Fuse:
    """Blows at effect number `at` (from 1): before it happened, or after it happened and before its answer came."""

    at: int | None = None
    after: bool = False
    used: int = 0
    dead: bool = False

    def effect(self, act: Callable[[], Any]) -> Any:
        self.alive()
        self.used += 1
        if self.used == self.at and not self.after:
            self._blow()
        answer = act()
        if self.used == self.at:
            self._blow()
        return answer

    def alive(self) -> None:
        if self.dead:
            raise Killed

    def _blow(self) -> None:
        self.dead = True
        raise Killed


class FusedTable:
    """A table whose writes are effects."""

    def __init__(self, table: BulkTable, fuse: Fuse) -> None:
        self._table = table
        self._fuse = fuse

    def get(self, key: Key) -> Item | None:
        self._fuse.alive()
        return self._table.get(key)

    def get_many(self, keys: Sequence[Key]) -> list[Item | None]:
        self._fuse.alive()
        return self._table.get_many(keys)

    def put_many(self, items: Mapping[Key, Item]) -> None:
        self._fuse.effect(lambda: self._table.put_many(items))

    def query(
        self, pk: str, *, prefix: str = "", since: str = "", limit: int | None = None, newest_first: bool = False
    ) -> list[Item]:
        self._fuse.alive()
        return self._table.query(pk, prefix=prefix, since=since, limit=limit, newest_first=newest_first)

    def write(self, op: Write) -> Item:
        written: Item = self._fuse.effect(lambda: self._table.write(op))
        return written

    def transact(self, ops: Sequence[Op]) -> None:
        self._fuse.effect(lambda: self._table.transact(ops))


class FusedClient:
    """An AWS client whose calls are effects; describing is none."""

    def __init__(self, client: Any, fuse: Fuse) -> None:
        self._client = client
        self._fuse = fuse

    def __getattr__(self, name: str) -> Any:
        call = getattr(self._client, name)

        def fused(**request: Any) -> Any:
            if name.startswith("describe"):
                self._fuse.alive()
                return call(**request)
            return self._fuse.effect(lambda: call(**request))

        return fused

"""Looks over every write and every termination of a history, and at how it ends."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from spotproof.contract.items import NO_INSTANCE
from spotproof.contract.keys import Key
from spotproof.store.table import Item, Op, Table, Write


class WatchedTable:
    """Passes everything on and notes what must never happen: a number that goes back, a place with two instances."""

    def __init__(self, table: Table, violations: list[str]) -> None:
        self._table = table
        self._violations = violations
        self._bound: dict[tuple[str, int], str] = {}

    def get(self, key: Key) -> Item | None:
        return self._table.get(key)

    def query(
        self, pk: str, *, prefix: str = "", since: str = "", limit: int | None = None, newest_first: bool = False
    ) -> list[Item]:
        return self._table.query(pk, prefix=prefix, since=since, limit=limit, newest_first=newest_first)

    def write(self, op: Write) -> Item:
        before = self._table.get(op.key)
        after = self._table.write(op)
        self._looked(op.key, before, after)
        return after

    def transact(self, ops: Sequence[Op]) -> None:
        before = [self._table.get(op.key) for op in ops]
        self._table.transact(ops)
        for op, was in zip(ops, before, strict=True):
            self._looked(op.key, was, self._table.get(op.key) or {})

    def _looked(self, key: Key, before: Item | None, after: Item) -> None:
        for name in ("incarnation", "generation", "rank"):
            if _number(before, name) > _number(after, name) and after:
                self._violations.append(f"{key.pk}/{key.sk}: {name} went back")
        if key.sk.startswith("SLOT#"):
            self._places(key, after)

    def _places(self, key: Key, after: Item) -> None:
        for place in ("holder", "successor"):
            instance, incarnation = after.get(f"{place}_instance"), after.get(f"{place}_incarnation")
            if not isinstance(incarnation, int) or not isinstance(instance, str) or instance == NO_INSTANCE:
                continue
            first = self._bound.setdefault((f"{key.pk}/{key.sk}", incarnation), instance)
            if first != instance:
                self._violations.append(f"{key.sk} incarnation {incarnation} was given to {first} and {instance}")


def _number(item: Any, name: str) -> int:
    value = (item or {}).get(name, 0)
    return value if isinstance(value, int) else 0

"""The table as a dict: for simulations, which read and write it a thousand times in a history.

It keeps the promises of `Table` as the conformance body states them and refuses what DynamoDB refuses, but only looks
closely at values that are not plainly storable. One thread at a time; nothing survives the process.
"""

from __future__ import annotations

import bisect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from spotproof.contract.keys import PK, SK, Key
from spotproof.errors import Lost, StoreError
from spotproof.store import local
from spotproof.store.conditions import holds
from spotproof.store.table import Check, Delete, Item, Op, Put, Value, Write
from spotproof.store.values import from_wire, item_to_wire, to_wire

_PLAIN: Final[frozenset[type[Any]]] = frozenset({str, bool, type(None)})
_SURELY_EXACT: Final = 10**15
_SURELY_SMALL_BYTES: Final = 300_000 // 4
_MAX_TRANSACTION: Final = 100


@dataclass(slots=True)
class _Partition:
    items: dict[str, dict[str, Any]] = field(default_factory=dict)
    order: list[str] = field(default_factory=list)
    nested: set[str] = field(default_factory=set)  # sort keys of items that hold lists or maps


@dataclass(slots=True)
class DictTable:
    """See `Table` for the promises."""

    _partitions: dict[str, _Partition] = field(default_factory=dict)

    def get(self, key: Key) -> Item | None:
        """See `Table`."""
        partition = self._partitions.get(key.pk)
        return None if partition is None else _copy(partition, key.sk)

    def get_many(self, keys: Sequence[Key]) -> list[Item | None]:
        """See `Table`."""
        return [self.get(key) for key in keys]

    def put_many(self, items: Mapping[Key, Item]) -> None:
        """See `Table`."""
        for key, item in items.items():
            self._store(key, item)

    def query(
        self, pk: str, *, prefix: str = "", since: str = "", limit: int | None = None, newest_first: bool = False
    ) -> list[Item]:
        """See `Table`."""
        partition = self._partitions.get(pk)
        if partition is None:
            return []
        first = bisect.bisect_left(partition.order, max(prefix, since))
        last = bisect.bisect_right(partition.order, prefix + "\U0010ffff") if prefix else len(partition.order)
        found = partition.order[first:last]
        if newest_first:
            found.reverse()
        copies = (_copy(partition, sk) for sk in found[:limit])
        return [item for item in copies if item is not None]

    def write(self, op: Write) -> Item:
        """See `Table`."""
        return self._perform(op, self._checked(op, 0))

    def transact(self, ops: Sequence[Op]) -> None:
        """See `Table`."""
        if not ops or len(ops) > _MAX_TRANSACTION or len({op.key for op in ops}) != len(ops):
            raise StoreError(f"a transaction of {len(ops)} operations", next_step="1 to 100, no two on one item")
        found = [self._checked(op, number) for number, op in enumerate(ops)]
        for op, current in zip(ops, found, strict=True):
            if not isinstance(op, Check):
                self._perform(op, current)

    def _checked(self, op: Op, number: int) -> Item | None:
        current = self.get(op.key)
        if op.when is not None and not holds(op.when, current):
            what = f"write {op.key.pk} / {op.key.sk}: its condition does not hold"
            raise Lost(what, current=None if current is None else dict(current), op=number)
        return current

    def _perform(self, op: Write, current: Item | None) -> Item:
        if isinstance(op, Put):
            return self._store(op.key, op.item)
        if isinstance(op, Delete):
            if current is not None:
                partition = self._partitions[op.key.pk]
                del partition.items[op.key.sk]
                del partition.order[bisect.bisect_left(partition.order, op.key.sk)]
            return current or {}
        return self._store(op.key, local._changed(op, current or {}))

    def _store(self, key: Key, item: Item) -> Item:
        partition = self._partitions.setdefault(key.pk, _Partition())
        kept = {name: _kept(value, name) for name, value in item.items()} | {PK: key.pk, SK: key.sk}
        if sum(len(value) for value in kept.values() if isinstance(value, str | list | dict)) > _SURELY_SMALL_BYTES:
            item_to_wire(key, item)
        if key.sk not in partition.items:
            bisect.insort(partition.order, key.sk)
        partition.items[key.sk] = kept
        if any(isinstance(value, list | dict) for value in kept.values()):
            partition.nested.add(key.sk)
        else:
            partition.nested.discard(key.sk)
        return _copy(partition, key.sk) or {}


def _copy(partition: _Partition, sk: str) -> Item | None:
    item = partition.items.get(sk)
    if item is None:
        return None
    copied = dict(item)
    if sk in partition.nested:
        for name, value in item.items():
            if type(value) is list or type(value) is dict:
                copied[name] = _thawed(value)
    return copied


def _thawed(value: Any) -> Any:
    if type(value) is list:
        return value[:] if all(type(one) is str for one in value) else [_thawed(one) for one in value]
    if type(value) is dict:
        return {name: _thawed(one) for name, one in value.items()}
    return value


def _kept(value: Value, name: str) -> Any:
    """The value as the table gives it back. Raises StoreError for what DynamoDB could not store exactly."""
    kind = type(value)
    if kind in _PLAIN or (type(value) is int and -_SURELY_EXACT < value < _SURELY_EXACT):
        return value
    if isinstance(value, list | tuple) and all(type(one) is str for one in value):
        return list(value)
    return from_wire(to_wire(value, path=name))

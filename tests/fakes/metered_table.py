"""A table that counts what DynamoDB would bill, by partition and second, and takes as long as DynamoDB takes."""

from __future__ import annotations

import math
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from spotproof.contract.keys import Key
from spotproof.errors import Lost
from spotproof.store.table import Check, Item, Op, Table, Write
from spotproof.store.values import item_to_wire

WRITE_UNIT_BYTES = 1024
READ_UNIT_BYTES = 4096


@dataclass(slots=True)
class Meter:
    """Requests and units. `busiest_writes` and `busiest_reads` are a partition's most units in one second."""

    reads: int = 0
    writes: int = 0
    lost: int = 0
    read_units: int = 0
    write_units: int = 0
    by_second: Counter[tuple[str, str, int]] = field(default_factory=Counter)

    @property
    def busiest_writes(self) -> int:
        return max((units for (kind, _, _), units in self.by_second.items() if kind == "w"), default=0)

    @property
    def busiest_reads(self) -> int:
        return max((units for (kind, _, _), units in self.by_second.items() if kind == "r"), default=0)


class MeteredTable:
    """Passes everything on after `latency_s`, outside of the table's lock; `meter` can be replaced at any time."""

    def __init__(self, table: Table, *, latency_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._table = table
        self._latency_s = latency_s
        self._clock = clock
        self._lock = threading.Lock()
        self.meter = Meter()

    def get(self, key: Key) -> Item | None:
        time.sleep(self._latency_s)
        item = self._table.get(key)
        self._read(key.pk, 0 if item is None else bytes_of(item))
        return item

    def query(
        self, pk: str, *, prefix: str = "", since: str = "", limit: int | None = None, newest_first: bool = False
    ) -> list[Item]:
        time.sleep(self._latency_s)
        items = self._table.query(pk, prefix=prefix, since=since, limit=limit, newest_first=newest_first)
        self._read(pk, sum(map(bytes_of, items)))
        return items

    def write(self, op: Write) -> Item:
        time.sleep(self._latency_s)
        try:
            item = self._table.write(op)
        except Lost as lost:
            self._wrote(op.key.pk, 0 if lost.current is None else bytes_of(lost.current), is_lost=True)
            raise
        self._wrote(op.key.pk, bytes_of(item))
        return item

    def transact(self, ops: Sequence[Op]) -> None:
        time.sleep(2 * self._latency_s)
        is_lost = False
        try:
            self._table.transact(ops)
        except Lost:
            is_lost = True
            raise
        finally:
            for op in ops:
                item = None if isinstance(op, Check) else self._table.get(op.key)
                for _ in range(2):  # a transaction prepares and commits: twice the units
                    self._wrote(op.key.pk, 0 if item is None else bytes_of(item), is_lost=is_lost)

    def _read(self, pk: str, size_bytes: int) -> None:
        units = max(1, math.ceil(size_bytes / READ_UNIT_BYTES))
        with self._lock:
            self.meter.reads += 1
            self.meter.read_units += units
            self.meter.by_second[("r", pk, int(self._clock()))] += units

    def _wrote(self, pk: str, size_bytes: int, *, is_lost: bool = False) -> None:
        units = max(1, math.ceil(size_bytes / WRITE_UNIT_BYTES))
        with self._lock:
            self.meter.writes += 1
            self.meter.lost += is_lost
            self.meter.write_units += units
            self.meter.by_second[("w", pk, int(self._clock()))] += units


def bytes_of(item: Mapping[str, object]) -> int:
    """About the size that DynamoDB counts: names and texts."""
    if "pk" not in item:
        return sum(len(name) + len(str(value)) for name, value in item.items())
    wire = item_to_wire(Key(pk=str(item["pk"]), sk=str(item["sk"])), item)
    return sum(len(name) + _bytes(value) for name, value in wire.items())


def _bytes(wire: Mapping[str, object]) -> int:
    ((_, held),) = wire.items()
    if isinstance(held, list):
        return sum(_bytes(one) + 1 if isinstance(one, dict) else len(str(one)) for one in held)
    return len(str(held))

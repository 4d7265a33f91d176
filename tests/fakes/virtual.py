"""A region in virtual time: handlers run at once, each call takes as long as AWS takes, and rate limits are kept.

Each handler has a thread, but only one of them runs at any moment: it goes on until its next call, which puts it to
sleep until its answer is due. Time is a number, and what chance decides comes from one seed. What a handler computes
between its calls is measured in CPU seconds of its thread: that is our own cost, without the fakes'.
"""

from __future__ import annotations

import heapq
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from typing import Any

from botocore.exceptions import ClientError

from spotproof.contract.keys import Key
from spotproof.errors import Lost
from spotproof.store.table import Check, Item, Op, Write
from spotproof.store.values import item_from_wire, item_to_wire
from tests.fakes.dict_table import DictTable
from tests.fakes.fuse import Killed
from tests.fakes.metered_table import READ_UNIT_BYTES, WRITE_UNIT_BYTES

TABLE_S = 0.008  # an answer of DynamoDB in one region, with what botocore takes for it on a third of a core
STACK_BYTES = 512 * 1024


class Task:
    """One invocation. `dies_at`: the call at which its process is gone, before or after the work is done."""

    def __init__(self, region: Region, work: Callable[[], Any], then: Callable[[Task], None]) -> None:
        self.done = False
        self.killed = False
        self.result: Any = None
        self.dies_at: int | None = None
        self.calls = 0
        self.cpu_s = 0.0
        self.go = threading.Lock()
        self.go.acquire()
        self._region, self._work, self._then = region, work, then
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._resumed_at = 0.0

    def step(self) -> None:
        """Let it run to its next call, or to its end."""
        self._region.running = self
        if self._thread.ident is None:
            self._thread.start()
        else:
            self.go.release()
        self._region.back.acquire()
        if self.done:
            self._thread.join()
            self._then(self)

    def sleep(self, seconds: float) -> None:
        """Called by the task itself: nothing of it happens before `seconds` have passed."""
        self.pause()
        self._region.at(self._region.now + seconds, self.step)
        self._region.back.release()
        self.go.acquire()
        self.resume()

    def pause(self) -> None:
        """From here on the CPU is not ours."""
        self.cpu_s += time.thread_time() - self._resumed_at

    def resume(self) -> None:
        """From here on it is."""
        self._resumed_at = time.thread_time()

    def _run(self) -> None:
        try:
            self.resume()
            self.result = self._work()
        except Killed:
            self.killed = True
        finally:
            self.pause()
            self.done = True
            self._region.back.release()


class Bucket:
    """AWS's token bucket: `size` requests at once, `per_s` more each second."""

    def __init__(self, clock: Callable[[], float], *, size: float, per_s: float) -> None:
        self._clock, self._size, self._per_s = clock, size, per_s
        self._left, self._at = size, clock()

    def take(self) -> bool:
        """Whether the request passes."""
        now = self._clock()
        self._left = min(self._size, self._left + (now - self._at) * self._per_s)
        self._at = now
        if self._left < 1:
            return False
        self._left -= 1
        return True


@dataclass(slots=True)
class Region:
    """The clock and what waits for it."""

    chance: random.Random
    now: float = 0.0
    running: Task | None = None
    back: threading.Lock = field(default_factory=threading.Lock)
    cpu_s: float = 0.0
    _events: list[tuple[float, int, Callable[[], None]]] = field(default_factory=list)
    _order: Any = field(default_factory=count)

    def __post_init__(self) -> None:
        self.back.acquire()

    def clock(self) -> float:
        return self.now

    def at(self, when: float, act: Callable[[], None]) -> None:
        heapq.heappush(self._events, (when, next(self._order), act))

    def spawn(self, work: Callable[[], Any], then: Callable[[Task], None], *, dies_at: int | None = None) -> Task:
        def ended(task: Task) -> None:
            self.cpu_s += task.cpu_s
            then(task)

        task = Task(self, work, ended)
        task.dies_at = dies_at
        self.at(self.now, task.step)
        return task

    def run(self, until: float) -> None:
        """Everything that happens up to `until`."""
        while self._events and self._events[0][0] <= until:
            self.now, _, act = heapq.heappop(self._events)
            act()
        self.now = until

    def call(self, seconds: float, work: Callable[[], Any]) -> Any:
        """A call of the running task: its work is done when its time is over; the process may be gone by then."""
        task = self.running
        assert task is not None
        task.calls += 1
        dies = task.calls == task.dies_at
        if dies and self.chance.random() < 0.5:
            raise Killed
        task.sleep(seconds)
        self.running = task
        task.pause()
        try:
            answer = work()
        finally:
            task.resume()
        if dies:
            raise Killed
        return answer

    def nap(self, seconds: float) -> None:
        """A pause between two tries."""
        task = self.running
        assert task is not None
        task.sleep(seconds)
        self.running = task


@dataclass(slots=True)
class VirtualTable:
    """`BulkTable` in virtual time. Counts requests, items and units: by partition and by item for each second."""

    region: Region
    inner: DictTable = field(default_factory=DictTable)
    requests: Counter[str] = field(default_factory=Counter)
    writes: Counter[str] = field(default_factory=Counter)  # by the kind of item: HEAD, SLOT, INSTANCE, ...
    reads: int = 0
    lost: int = 0
    by_partition: Counter[tuple[str, str, int]] = field(default_factory=Counter)
    by_item: Counter[tuple[str, str, int]] = field(default_factory=Counter)

    def get(self, key: Key) -> Item | None:
        return self._many("get", [key])[0]

    def get_many(self, keys: Sequence[Key]) -> list[Item | None]:
        return [
            item for first in range(0, len(keys), 100) for item in self._many("batch get", keys[first : first + 100])
        ]

    def query(
        self, pk: str, *, prefix: str = "", since: str = "", limit: int | None = None, newest_first: bool = False
    ) -> list[Item]:
        def work() -> list[dict[str, Any]]:
            found = self.inner.query(pk, prefix=prefix, since=since, limit=limit, newest_first=newest_first)
            wires = [_wire(item) for item in found]
            self._count("r", pk, "", max(1, sum(map(_bytes, wires)) // READ_UNIT_BYTES))
            self.requests["query"] += 1
            return wires

        return [item_from_wire(wire) for wire in self.region.call(TABLE_S, work)]

    def write(self, op: Write) -> Item:
        if hasattr(op, "item"):
            item_to_wire(op.key, op.item)  # what the real table does before it calls

        def work() -> Item:
            self.requests["write"] += 1
            try:
                after = self.inner.write(op)
            except Lost as lost:
                self.lost += 1
                self._wrote(op.key, lost.current or {})
                raise
            self._wrote(op.key, after)
            return after

        after: Item = self.region.call(TABLE_S, work)
        return item_from_wire(_wire(after)) if after else after

    def put_many(self, items: Mapping[Key, Item]) -> None:
        pairs = list(items.items())
        for first in range(0, len(pairs), 25):
            some = pairs[first : first + 25]
            for key, item in some:
                item_to_wire(key, item)
            self.region.call(TABLE_S, partial(self._put, some))

    def transact(self, ops: Sequence[Op]) -> None:
        def work() -> None:
            self.requests["transact"] += 1
            self.inner.transact(ops)
            for op in ops:
                for _ in range(1 if isinstance(op, Check) else 2):
                    self._wrote(op.key, self.inner.get(op.key) or {})

        self.region.call(TABLE_S, work)

    def busiest(self, kind: str, *, of_items: bool) -> int:
        """The most units that one partition, or one item, had in one second."""
        counted = self.by_item if of_items else self.by_partition
        return max((units for (one, _, _), units in counted.items() if one == kind), default=0)

    def _many(self, kind: str, keys: Sequence[Key]) -> list[Item | None]:
        def work() -> list[Any]:
            self.requests[kind] += 1
            found = [self.inner.get(key) for key in keys]
            wires = [None if item is None else _wire(item) for item in found]
            for key, wire in zip(keys, wires, strict=True):
                self._count("r", key.pk, key.sk, 1 if wire is None else 1 + _bytes(wire) // READ_UNIT_BYTES)
            return wires

        return [None if wire is None else item_from_wire(wire) for wire in self.region.call(TABLE_S, work)]

    def _put(self, some: Sequence[tuple[Key, Item]]) -> None:
        self.requests["batch put"] += 1
        self.inner.put_many(dict(some))
        for key, item in some:
            self._wrote(key, item)

    def _wrote(self, key: Key, item: Item) -> None:
        self.writes["HIST" if key.pk.startswith("HIST#") else key.sk.partition("#")[0]] += 1
        size = sum(len(name) + len(str(value)) for name, value in item.items())
        self._count("w", key.pk, key.sk, 1 + size // WRITE_UNIT_BYTES)

    def _count(self, kind: str, pk: str, sk: str, units: int) -> None:
        if kind == "r":
            self.reads += 1
        second = int(self.region.now)
        self.by_partition[kind, pk, second] += units
        self.by_item[kind, f"{pk}/{sk}", second] += units


@dataclass(slots=True)
class VirtualClient:
    """An AWS client in virtual time, with the rate limits of its operations and botocore's three tries."""

    region: Region
    client: Any
    took_s: Callable[[str, Mapping[str, Any]], float]
    buckets: Mapping[str, Bucket]
    throttled_as: str = "RequestLimitExceeded"
    tries: int = 3
    calls: Counter[str] = field(default_factory=Counter)
    throttled: Counter[str] = field(default_factory=Counter)

    def __getattr__(self, name: str) -> Any:
        def call(**request: Any) -> Any:
            for number in range(self.tries):
                try:
                    return self.region.call(self.took_s(name, request), lambda: self._work(name, request))
                except ClientError as failure:
                    is_last = number == self.tries - 1
                    if is_last or failure.response["Error"]["Code"] != self.throttled_as:
                        raise
                self.region.nap(self.region.chance.random() * 2**number)
            raise AssertionError(name)

        return call

    def _work(self, name: str, request: Mapping[str, Any]) -> Any:
        bucket = self.buckets.get(name)
        if bucket is not None and not bucket.take():
            self.throttled[name] += 1
            raise ClientError({"Error": {"Code": self.throttled_as, "Message": "slow down"}}, name)
        self.calls[name] += 1
        return getattr(self.client, name)(**request)


class VirtualErrands:
    """Errands as tasks of their own."""

    def __init__(self, region: Region) -> None:
        self._region = region
        self._begun: list[tuple[Task, Callable[[str], None]]] = []

    def start(self, errand: Callable[[], str], then: Callable[[str], None]) -> None:
        self._begun.append((self._region.spawn(errand, lambda task: None), then))

    def finish(self) -> None:
        begun, self._begun = self._begun, []
        for task, then in begun:
            while not task.done:
                self._region.nap(0.05)
            then(task.result)


def _wire(item: Item) -> dict[str, Any]:
    return item_to_wire(Key(pk=str(item["pk"]), sk=str(item["sk"])), item)


def _bytes(wire: Mapping[str, Any]) -> int:
    return sum(len(name) + len(str(value)) for name, value in wire.items())

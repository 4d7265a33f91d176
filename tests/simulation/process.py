"""Handlers as processes that advance one operation at a time, in an order that a seed chooses, and can be killed.

Each handler has a thread, but only one of them runs at any moment: a history is a function of its seed. Threads are
kept and used again; a handler that is not waited for costs nothing.
"""

from __future__ import annotations

import _thread
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

from botocore.exceptions import ReadTimeoutError

from spotproof.contract.keys import Key
from spotproof.errors import Unavailable
from spotproof.store.table import BulkTable, Item, Op, Put, Write
from tests.fakes.fuse import Killed


class _Worker:
    """A thread that does one piece of work after another; each one is handed over and handed back by a lock."""

    def __init__(self) -> None:
        self.go = _thread.allocate_lock()
        self.back = _thread.allocate_lock()
        self.work: Callable[[], None] | None = None
        self.go.acquire()
        self.back.acquire()
        _thread.start_new_thread(self._run, ())

    def _run(self) -> None:
        while True:
            self.go.acquire()
            work, self.work = self.work, None
            if work is None:
                return
            work()
            self.back.release()


_idle: list[_Worker] = []
os.register_at_fork(after_in_child=_idle.clear)  # threads do not come along in a fork


class Process:
    """One invocation. `step` lets it do its next operation; after `kill` it can do nothing any more.

    `goes_on` is asked on the process's own thread, which saves two changes of threads for most operations.
    """

    def __init__(self, work: Callable[[Process], Any], *, goes_on: Callable[[Process], bool]) -> None:
        self._goes_on = goes_on
        self.done = False
        self.killed = False
        self.result: Any = None
        self.error: BaseException | None = None
        self.stalled_until = 0.0
        self.begun_at = 0.0
        self.operations = 0
        self.dies_at: int | None = None
        self.messages: list[Any] = []
        self._work = work
        self._worker: _Worker | None = None

    def step(self) -> None:
        """Run up to the next operation, or to the end."""
        if self._worker is None:
            self._worker = _idle.pop() if _idle else _Worker()
            self._worker.work = self._run
        self._worker.go.release()
        self._worker.back.acquire()
        if self.done:
            _idle.append(self._worker)

    def kill(self) -> None:
        """End it before its next operation."""
        self.killed = True
        if self._worker is None:
            self.done = True
        while not self.done:
            self.step()

    def wait(self) -> None:
        """Called by the process before each operation: the scheduler's turn, unless it would choose this one again."""
        assert self._worker is not None
        if not self.killed and not self._goes_on(self):
            self._worker.back.release()
            self._worker.go.acquire()
        if self.killed:
            raise Killed
        self.operations += 1

    def _run(self) -> None:
        try:
            if not self.killed:
                self.result = self._work(self)
        except Killed:
            self.killed = True
        except BaseException as error:  # noqa: BLE001 - the scheduler looks at it
            self.error = error
        finally:
            self.done = True


class Trouble(Protocol):
    """What chance does to one operation of a handler."""

    def table_is_out(self) -> bool:
        """Whether the table answers nobody now."""

    def answer_is_lost(self, of: str) -> bool:
        """Whether the work is done and the caller never hears of it."""

    def lease_is_out(self) -> bool:
        """Whether the launcher lease that somebody has counts as expired."""

    def is_seen_by_retry(self) -> bool:
        """Whether the client tries a write whose answer was lost again, and meets what it has written itself."""


class GatedTable:
    """A table whose every operation is a step of its process, that can be out, and whose answers can be lost."""

    def __init__(self, table: BulkTable, process: Process, trouble: Trouble) -> None:
        self._table = table
        self._process = process
        self._trouble = trouble

    def get(self, key: Key) -> Item | None:
        self._gate()
        return self._table.get(key)

    def get_many(self, keys: Sequence[Key]) -> list[Item | None]:
        self._gate()
        return self._table.get_many(keys)

    def put_many(self, items: Mapping[Key, Item]) -> None:
        self._gate()
        if not self._trouble.answer_is_lost("table"):
            self._table.put_many(items)
            return
        self._table.put_many(dict(list(items.items())[: len(items) // 2]))
        raise Unavailable("no answer from the table", next_step="some of it may stand")

    def query(
        self, pk: str, *, prefix: str = "", since: str = "", limit: int | None = None, newest_first: bool = False
    ) -> list[Item]:
        self._gate()
        return self._table.query(pk, prefix=prefix, since=since, limit=limit, newest_first=newest_first)

    def write(self, op: Write) -> Item:
        self._gate()
        if op.key.sk == "LAUNCHER" and isinstance(op, Put) and self._trouble.lease_is_out():
            op = replace(op, when=None)
        written = self._table.write(op)
        if not self._trouble.answer_is_lost("table"):
            return written
        if self._trouble.is_seen_by_retry():
            return self._table.write(op)  # as the real table does within its time: Lost, where there was a condition
        raise Unavailable("no answer from the table", next_step="the outcome is unknown")

    def transact(self, ops: Sequence[Op]) -> None:
        self._gate()
        self._table.transact(ops)
        if self._trouble.answer_is_lost("table"):
            raise Unavailable("no answer from the table", next_step="the outcome is unknown")

    def _gate(self) -> None:
        self._process.wait()
        if self._trouble.table_is_out():
            raise Unavailable("the table is out")


class GatedClient:
    """An AWS client whose every call is a step of its process; the answer to what was done can be lost."""

    def __init__(self, client: Any, process: Process, trouble: Trouble) -> None:
        self._client = client
        self._process = process
        self._trouble = trouble

    def __getattr__(self, name: str) -> Any:
        call = getattr(self._client, name)

        def gated(**request: Any) -> Any:
            self._process.wait()
            answer = call(**request)
            if self._trouble.answer_is_lost(name):
                raise ReadTimeoutError(endpoint_url="aws")
            return answer

        setattr(self, name, gated)
        return gated

"""Handlers as processes that advance one operation at a time, in an order that a seed chooses, and can be killed.

Each handler has a thread, but only one of them runs at any moment: a history is a function of its seed.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

from spotproof.contract.keys import Key
from spotproof.errors import Unavailable
from spotproof.store.table import Item, Op, Table, Write
from tests.fakes.fuse import Killed


class Process:
    """One invocation. `step` lets it do its next operation; after `kill` it can do nothing any more."""

    def __init__(self, name: str, work: Callable[[Process], Any]) -> None:
        self.name = name
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
        self._go = threading.Semaphore(0)
        self._back = threading.Semaphore(0)
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def step(self) -> None:
        """Run up to the next operation, or to the end."""
        self._go.release()
        self._back.acquire()
        if self.done:
            self._thread.join()

    def kill(self) -> None:
        """End it before its next operation."""
        self.killed = True
        while not self.done:
            self.step()

    def wait(self) -> None:
        """Called by the process before each operation."""
        if not self.killed:
            self._back.release()
            self._go.acquire()
        if self.killed:
            raise Killed
        self.operations += 1

    def _run(self) -> None:
        self._go.acquire()
        try:
            if not self.killed:
                self.result = self._work(self)
        except Killed:
            self.killed = True
        except BaseException as error:  # noqa: BLE001 - the scheduler looks at it
            self.error = error
        finally:
            self.done = True
            self._back.release()


class GatedTable:
    """A table whose every operation is a step of its process, and that can be out."""

    def __init__(self, table: Table, process: Process, out: Callable[[], bool]) -> None:
        self._table = table
        self._process = process
        self._out = out

    def get(self, key: Key) -> Item | None:
        self._gate()
        return self._table.get(key)

    def query(
        self, pk: str, *, prefix: str = "", since: str = "", limit: int | None = None, newest_first: bool = False
    ) -> list[Item]:
        self._gate()
        return self._table.query(pk, prefix=prefix, since=since, limit=limit, newest_first=newest_first)

    def write(self, op: Write) -> Item:
        self._gate()
        return self._table.write(op)

    def transact(self, ops: Sequence[Op]) -> None:
        self._gate()
        self._table.transact(ops)

    def _gate(self) -> None:
        self._process.wait()
        if self._out():
            raise Unavailable("the table is out")


class GatedClient:
    """An AWS client whose every call is a step of its process."""

    def __init__(self, client: Any, process: Process) -> None:
        self._client = client
        self._process = process

    def __getattr__(self, name: str) -> Any:
        call = getattr(self._client, name)

        def gated(**request: Any) -> Any:
            self._process.wait()
            return call(**request)

        return gated

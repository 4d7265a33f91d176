"""The table off AWS: `Table` in one SQLite file, shared by the processes of a machine; also the tests' honest fake.

It stores DynamoDB's own typed form, refuses what DynamoDB refuses, and deletes nothing by TTL.
"""

from __future__ import annotations

import base64
import json
import os
import sqlite3
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self, assert_never

from spotproof.contract.keys import PK, SK, Key
from spotproof.errors import Lost, StoreError, Unavailable
from spotproof.store.conditions import holds
from spotproof.store.table import Check, Delete, Item, Op, Put, Update, Value, Write
from spotproof.store.values import item_from_wire, item_to_wire

__all__ = ["IN_MEMORY", "LocalTable"]

IN_MEMORY: Final = ":memory:"
_BUSY_S: Final = 30.0
_MAX_TRANSACTION: Final = 100
_TOP_OF_KEYS: Final = "\U0010ffff"


class LocalTable:
    """See `Table` for the promises. Every write is on disk (fsync) when it returns.

    One connection behind a lock per process; other processes are kept out by SQLite's write lock. A table in memory
    belongs to the process that made it. Close it, or use it as a context manager.
    """

    def __init__(self, path: Path | str) -> None:
        self._path = str(path)
        self._lock = threading.RLock()
        self._pid = os.getpid()
        self._connection = _open(self._path)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the connection; the table cannot be used any more."""
        with self._lock:
            self._connection.close()

    def get(self, key: Key) -> Item | None:
        """See `Table`."""
        with self._shared() as connection:
            return _read(connection, key)

    def get_many(self, keys: Sequence[Key]) -> list[Item | None]:
        """See `Table`."""
        with self._shared() as connection:
            return [_read(connection, key) for key in keys]

    def put_many(self, items: Mapping[Key, Item]) -> None:
        """See `Table`."""
        with self._alone() as connection:
            for key, item in items.items():
                _store(connection, key, item)

    def query(
        self, pk: str, *, prefix: str = "", since: str = "", limit: int | None = None, newest_first: bool = False
    ) -> list[Item]:
        """See `Table`."""
        first, last = max(prefix, since), prefix + _TOP_OF_KEYS if prefix else _TOP_OF_KEYS
        order = "DESC" if newest_first else "ASC"
        statement = f"SELECT body FROM items WHERE pk = ? AND sk >= ? AND sk <= ? ORDER BY sk {order} LIMIT ?"  # noqa: S608 - two constants
        with self._shared() as connection:
            rows = connection.execute(statement, (pk, first, last, -1 if limit is None else limit)).fetchall()
        return [_decode(body) for (body,) in rows]

    def write(self, op: Write) -> Item:
        """See `Table`."""
        with self._alone() as connection:
            return _perform(connection, op, 0)

    def transact(self, ops: Sequence[Op]) -> None:
        """See `Table`."""
        if not ops or len(ops) > _MAX_TRANSACTION or len({op.key for op in ops}) != len(ops):
            raise StoreError(f"a transaction of {len(ops)} operations", next_step="1 to 100, no two on one item")
        with self._alone() as connection:
            for number, op in enumerate(ops):
                _check(connection, op, number)
            for number, op in enumerate(ops):
                if not isinstance(op, Check):
                    _perform(connection, op, number)

    @contextmanager
    def _shared(self) -> Iterator[sqlite3.Connection]:
        with self._lock, _failures(self._path):
            yield self._own_connection()

    @contextmanager
    def _alone(self) -> Iterator[sqlite3.Connection]:
        """Hold the write lock of the file, so that what is read stays true until it is written."""
        with self._shared() as connection:
            connection.execute("BEGIN IMMEDIATE")
            try:
                yield connection
            except BaseException:
                connection.execute("ROLLBACK")
                raise
            connection.execute("COMMIT")

    def _own_connection(self) -> sqlite3.Connection:
        # A connection must not cross a fork: its locks belong to the process that opened it.
        if self._pid != os.getpid():
            self._connection, self._pid = _open(self._path), os.getpid()
        return self._connection


@contextmanager
def _failures(path: str) -> Iterator[None]:
    try:
        yield
    except sqlite3.OperationalError as error:
        raise Unavailable(f"local table {path}: {error}", next_step="check the disk and who else uses it") from error
    except sqlite3.DatabaseError as error:
        raise StoreError(f"local table {path}: {error}", next_step="move the file away and start from S3") from error


def _open(path: str) -> sqlite3.Connection:
    give_up_at = time.monotonic() + _BUSY_S
    with _failures(path):
        connection = sqlite3.connect(path, timeout=_BUSY_S, isolation_level=None, check_same_thread=False)
        while True:
            try:
                connection.execute("PRAGMA journal_mode = WAL")
                connection.execute("PRAGMA synchronous = FULL")
                connection.execute(
                    "CREATE TABLE IF NOT EXISTS items (pk TEXT, sk TEXT, body TEXT NOT NULL, PRIMARY KEY (pk, sk))"
                    " WITHOUT ROWID"
                )
            except sqlite3.OperationalError:
                # Turning WAL on needs the file alone and does not wait for it: another process is opening it too.
                if time.monotonic() >= give_up_at:
                    connection.close()
                    raise
                time.sleep(0.01)
            else:
                return connection


def _read(connection: sqlite3.Connection, key: Key) -> Item | None:
    row = connection.execute("SELECT body FROM items WHERE pk = ? AND sk = ?", (key.pk, key.sk)).fetchone()
    return None if row is None else _decode(row[0])


def _check(connection: sqlite3.Connection, op: Op, number: int) -> Item | None:
    current = _read(connection, op.key)
    if not holds(op.when, current):
        what = f"write {op.key.pk} / {op.key.sk}: its condition does not hold"
        raise Lost(what, current=None if current is None else dict(current), op=number)
    return current


def _perform(connection: sqlite3.Connection, op: Write, number: int) -> Item:
    current = _check(connection, op, number)
    match op:
        case Put():
            return _store(connection, op.key, op.item)
        case Update():
            return _store(connection, op.key, _changed(op, current or {}))
        case Delete():
            connection.execute("DELETE FROM items WHERE pk = ? AND sk = ?", (op.key.pk, op.key.sk))
            return current or {}
        case _:
            assert_never(op)


def _store(connection: sqlite3.Connection, key: Key, item: Item) -> Item:
    body = _encode(key, item)
    connection.execute("INSERT OR REPLACE INTO items (pk, sk, body) VALUES (?, ?, ?)", (key.pk, key.sk, body))
    return _decode(body)


def _changed(op: Update, current: Item) -> Item:
    """Return the item after the update, as DynamoDB would make it."""
    item = {name: value for name, value in current.items() if name not in (PK, SK)}
    item.update(op.set)
    for name in op.remove:
        item.pop(name, None)
    for name, by in op.increment.items():
        item[name] = _counted(op, name, item.get(name, 0)) + by
    for name, members in op.include.items():
        item[name] = _set(op, name, item.get(name)) | members
    for name, members in op.exclude.items():
        item[name] = _set(op, name, item.get(name)) - members
    emptied = (*op.include, *op.exclude)
    return {name: value for name, value in item.items() if value != frozenset() or name not in emptied}


def _counted(op: Update, name: str, value: Value) -> int | float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise StoreError(f"{op.key.pk} / {op.key.sk}: {name} is no number to add to", next_step="report it")
    return value


def _set(op: Update, name: str, value: Value) -> frozenset[str]:
    if value is None:
        return frozenset()
    if not isinstance(value, frozenset):
        raise StoreError(f"{op.key.pk} / {op.key.sk}: {name} is no set", next_step="report it")
    return value


def _encode(key: Key, item: Item) -> str:
    return json.dumps(item_to_wire(key, item), separators=(",", ":"), default=_bytes_as_text)


def _decode(body: str) -> Item:
    wire: dict[str, Mapping[str, Any]] = json.loads(body, object_hook=_text_as_bytes)
    return item_from_wire(wire)


def _bytes_as_text(content: object) -> str:
    if not isinstance(content, bytes):
        raise TypeError(type(content).__name__)
    return base64.b64encode(content).decode()


def _text_as_bytes(found: dict[str, Any]) -> dict[str, Any]:
    # {"B": text} is a binary attribute and nothing else: a map holds typed attributes, never bare text.
    if len(found) == 1 and isinstance(text := found.get("B"), str):
        return {"B": base64.b64decode(text)}
    return found

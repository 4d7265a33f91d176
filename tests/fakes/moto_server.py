"""moto on loopback, behind one lock.

Without the lock moto loses acknowledged writes: a transaction that fails puts a deep copy of the tables back and wipes
what other threads wrote meanwhile. One re-entrant lock around the whole application makes it exact.

A transaction keeps the items that it names, to put them back when it fails. Moto copies the whole table for each of
them, so that a transaction takes the longer the more anybody has ever written; DynamoDB's does not. And an attribute
of an item is written out as it stands: moto looks for each of the ten types that it could have under six spellings, a
tenth of a millisecond for a number.
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any
from wsgiref.types import StartResponse, WSGIEnvironment

WsgiApp = Callable[[WSGIEnvironment, StartResponse], Iterable[bytes]]


def behind_one_lock(app: WsgiApp) -> WsgiApp:
    """One request at a time, its answer whole before the next one begins."""
    lock = threading.RLock()

    def locked(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        with lock:
            return list(app(environ, start_response))

    return locked


class _Copies:
    """Stands in for `copy` in moto's tables: a table is not copied, because its transaction keeps what it changes."""

    def __init__(self, table_type: type[Any]) -> None:
        self._table_type = table_type

    def __getattr__(self, name: str) -> Any:
        return getattr(copy, name)

    def deepcopy(self, value: Any) -> Any:
        return value if isinstance(value, self._table_type) else copy.deepcopy(value)


def keep_named_items() -> None:
    """Make moto's transactions keep the items that they name, and nothing else. A second time changes nothing."""
    from moto.dynamodb import models
    from moto.dynamodb.models.table import Table

    backend: Any = models.DynamoDBBackend
    if isinstance(vars(models)["copy"], _Copies):
        return
    vars(models)["copy"] = _Copies(Table)
    inner = backend.transact_write_items

    def transact_write_items(self: Any, transact_items: list[dict[str, Any]]) -> None:
        kept = [_kept(self, *operation) for entry in transact_items for operation in entry.items()]
        try:
            inner(self, transact_items)
        except Exception:
            for put_back in kept:
                put_back()
            raise

    backend.transact_write_items = transact_write_items


def write_attributes_as_they_stand() -> None:
    """Make moto write an item's attributes as it holds them. A second time changes nothing."""
    from moto.core import serialize

    serializer: Any = serialize.BaseJSONSerializer
    if serializer is getattr(serializer, "attributes_as_they_stand", None):
        return
    inner = serializer._serialize_type_structure

    def structure(self: Any, serialized: Any, value: Any, shape: Any, key: str) -> None:
        if shape.name == "AttributeValue" and key and _stands(value):
            serialized[key] = value
        else:
            inner(self, serialized, value, shape, key)

    serializer._serialize_type_structure = structure
    serializer.attributes_as_they_stand = serializer


def _stands(value: Any) -> bool:
    """Whether a value is on the wire what it is here: bytes are not."""
    if not isinstance(value, dict) or len(value) != 1:
        return False
    ((kind, held),) = value.items()
    if kind == "M":
        return isinstance(held, dict) and all(map(_stands, held.values()))
    if kind == "L":
        return isinstance(held, list) and all(map(_stands, held))
    return kind in {"S", "N", "BOOL", "NULL", "SS", "NS"}


def _kept(backend: Any, kind: str, operation: dict[str, Any]) -> Callable[[], None]:
    """What puts the item of one operation back as it is now."""
    from moto.dynamodb.models.dynamo_type import DynamoType

    table = backend.tables.get(operation.get("TableName"))
    if table is None or table.range_key_attr is None:
        return lambda: None
    key = operation["Item" if kind == "Put" else "Key"]
    pk, sk = (DynamoType(key[name]) for name in (table.hash_key_attr, table.range_key_attr))
    found = table.items.get(pk, {}).get(sk)
    item = copy.deepcopy(found)

    def put_back() -> None:
        if item is not None:
            table.items[pk][sk] = item
        else:
            table.items.get(pk, {}).pop(sk, None)

    return put_back


@contextmanager
def moto_server() -> Iterator[str]:
    """Yield the endpoint URL of an empty moto; end it with the block."""
    from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
    from werkzeug.serving import WSGIRequestHandler, make_server

    class Silent(WSGIRequestHandler):
        protocol_version = "HTTP/1.1"  # keep connections: a new one for each call costs more than the call

        def log(self, type: str, message: str, *args: Any) -> None:  # noqa: A002 - werkzeug's own name
            """Requests are not news."""

    keep_named_items()
    write_attributes_as_they_stand()
    app = behind_one_lock(DomainDispatcherApplication(create_backend_app))
    server = make_server("127.0.0.1", 0, app, threaded=True, request_handler=Silent)
    thread = threading.Thread(target=server.serve_forever, name="moto", daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join(timeout=10)

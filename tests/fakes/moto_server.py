"""moto on loopback, behind one lock.

Without the lock moto loses acknowledged writes: a transaction that fails puts a deep copy of the tables back and wipes
what other threads wrote meanwhile. One re-entrant lock around the whole application makes it exact.
"""

from __future__ import annotations

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


@contextmanager
def moto_server() -> Iterator[str]:
    """Yield the endpoint URL of an empty moto; end it with the block."""
    from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
    from werkzeug.serving import WSGIRequestHandler, make_server

    class Silent(WSGIRequestHandler):
        protocol_version = "HTTP/1.1"  # keep connections: a new one for each call costs more than the call

        def log(self, type: str, message: str, *args: Any) -> None:  # noqa: A002 - werkzeug's own name
            """Requests are not news."""

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

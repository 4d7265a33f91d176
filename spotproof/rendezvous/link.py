"""A connection to the neighbour's launcher that carries nothing: its end tells that the process has died.

The kernel closes it within milliseconds of a SIGKILL, when the workers may still be connecting, or hang in a collective
that says nothing (NCCL). It tells nothing of a host that vanishes; beats and the control plane's word do.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from contextlib import suppress

CONNECT_S = 10.0


class Link:
    """Calls `on_lost` once, from a thread of its own, when the process behind `endpoint` is gone; `end` it."""

    def __init__(self, endpoint: str, on_lost: Callable[[], None]) -> None:
        host, _, port = endpoint.rpartition(":")
        self._address = (host, int(port))
        self._on_lost = on_lost
        self._socket: socket.socket | None = None
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="spotproof-link", daemon=True)
        self._thread.start()

    def end(self) -> None:
        """Stop listening; `on_lost` is not called any more."""
        self._ended.set()
        if self._socket is not None:
            with suppress(OSError):  # closed by the other side already
                self._socket.shutdown(socket.SHUT_RDWR)

    def _run(self) -> None:
        try:
            with socket.create_connection(self._address, timeout=CONNECT_S) as connection:
                connection.settimeout(None)
                self._socket = connection
                while not self._ended.is_set() and connection.recv(1):
                    pass
        except (ConnectionRefusedError, ConnectionResetError):
            pass  # nobody listens there any more
        except OSError:
            return  # no way there: not a word about the process
        if not self._ended.is_set():
            self._on_lost()

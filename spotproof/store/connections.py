"""Kept HTTP connections for PUTs whose every wait is bounded: by progress, by an answer's patience, by a deadline."""

from __future__ import annotations

import fcntl
import os
import select
import socket
import ssl
import struct
import termios
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from typing import Final

__all__ = ["Address", "Connections", "Exchange", "Pace", "Stalled"]

_PIECE_BYTES: Final = 1024 * 1024
_LOOK_S: Final = 0.25
_KEPT_S: Final = 10.0  # S3 closes idle connections; one that it may have closed is not worth a failed try
_INT: Final = struct.Struct("i")


class Stalled(OSError):
    """Nothing moved for as long as a healthy connection never stands still."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """How long is too long. `stall_s`: no byte is taken; `answer_s`: all is sent and nothing comes back."""

    connect_s: float = 3.0
    stall_s: float = 5.0
    answer_s: float = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """Where PUTs go. `path` is what stands before a key, with both slashes."""

    scheme: str
    host: str
    port: int | None
    path: str = "/"

    @property
    def host_header(self) -> str:
        """As it is signed."""
        return self.host if self.port is None else f"{self.host}:{self.port}"

    @property
    def origin(self) -> str:
        """For messages."""
        return f"{self.scheme}://{self.host_header}"


@dataclass(slots=True, kw_only=True)
class Exchange:
    """One request and its answer on one connection."""

    connection: HTTPConnection
    pace: Pace
    until: float
    is_spent: bool = False  # the connection cannot be used again

    def put(self, path: str, headers: Mapping[str, str], body: memoryview) -> HTTPResponse:
        """Send and return the answer. Raises Stalled, OSError, HTTPException."""
        connection = self.connection
        connection.putrequest("PUT", path, skip_host=True, skip_accept_encoding=True)
        for name, value in headers.items():
            connection.putheader(name, value)
        connection.endheaders()
        sock: socket.socket = connection.sock
        try:
            self._send(sock, body)
        except (BrokenPipeError, ConnectionResetError):
            self.is_spent = True  # it may have answered before it hung up: 503 does
        self._await_answer(sock)
        response = connection.getresponse()
        self.is_spent = self.is_spent or response.will_close
        return response

    def _send(self, sock: socket.socket, body: memoryview) -> None:
        """Send all of it, or as much as the server wants before it answers."""
        rest = memoryview(body).cast("B") if body.nbytes else memoryview(b"")
        while rest:
            if _is_plain(sock) and _has_answer(sock):
                self.is_spent = True
                return
            sock.settimeout(self._bounded(self.pace.stall_s))
            try:
                rest = rest[sock.send(rest[:_PIECE_BYTES]) :]
            except TimeoutError as error:
                raise Stalled(f"{len(rest)} bytes were not taken for {self.pace.stall_s:.0f} s") from error

    def _await_answer(self, sock: socket.socket) -> None:
        """Wait while what is in the kernel still leaves; then as long as a server may take to answer."""
        waiting, moved_at = _unsent(sock), time.monotonic()
        while not _has_answer(sock, within_s=min(_LOOK_S, self._bounded(_LOOK_S))):
            left, now = _unsent(sock), time.monotonic()
            if left < waiting:
                waiting, moved_at = left, now
            elif now > moved_at + (self.pace.stall_s if left else self.pace.answer_s):
                raise Stalled(f"{left} bytes in the kernel, no answer for {now - moved_at:.0f} s")
        sock.settimeout(self._bounded(self.pace.answer_s))

    def _bounded(self, seconds: float) -> float:
        left = self.until - time.monotonic()
        if left <= 0:
            raise Stalled("the time for it is over")
        return min(seconds, left)


@dataclass(slots=True, kw_only=True)
class Connections:
    """Connections to one address, kept for the next request of any thread."""

    address: Address
    pace: Pace
    _idle: list[tuple[float, HTTPConnection]] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _tls: ssl.SSLContext | None = None

    @contextmanager
    def sending(self, *, until: float) -> Iterator[Exchange]:
        """A connection for one exchange; it is kept afterwards if the exchange went through."""
        connection = self._taken() or self._made(until)
        exchange = Exchange(connection=connection, pace=self.pace, until=until)
        try:
            yield exchange
        except BaseException:
            connection.close()
            raise
        if exchange.is_spent:
            connection.close()
        else:
            with self._lock:
                self._idle.append((time.monotonic(), connection))

    def close(self) -> None:
        """End those that nobody uses."""
        with self._lock:
            idle, self._idle = self._idle, []
        for _, connection in idle:
            connection.close()

    def _taken(self) -> HTTPConnection | None:
        """One that is idle and alive. A peer that hung up makes it readable."""
        while True:
            with self._lock:
                if not self._idle:
                    return None
                since, connection = self._idle.pop()
            is_over = _is_plain(connection.sock) and _has_answer(connection.sock)
            if time.monotonic() < since + _KEPT_S and not is_over:
                return connection
            connection.close()

    def _made(self, until: float) -> HTTPConnection:
        within_s = min(self.pace.connect_s, until - time.monotonic())
        if within_s <= 0:
            raise Stalled("the time for it is over")
        host, port = self.address.host, self.address.port
        if self.address.scheme == "https":
            connection: HTTPConnection = HTTPSConnection(host, port, timeout=within_s, context=self._context())
        else:
            connection = HTTPConnection(host, port, timeout=within_s)
        try:
            connection.connect()
        except (OSError, HTTPException):
            connection.close()
            raise
        connection.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return connection

    def _context(self) -> ssl.SSLContext:
        with self._lock:
            if self._tls is None:
                self._tls = ssl.create_default_context(cafile=_authorities())
            return self._tls


def _authorities() -> str:
    """Whom to trust: as boto3 does, so that one setting of a machine counts for both."""
    from botocore.httpsession import where

    return os.environ.get("AWS_CA_BUNDLE") or where()


def _is_plain(sock: socket.socket) -> bool:
    """Whether what can be read is HTTP. Over TLS it may be a session ticket."""
    return not isinstance(sock, ssl.SSLSocket)


def _has_answer(sock: socket.socket, *, within_s: float = 0.0) -> bool:
    """Whether something can be read, be it the end."""
    poll = select.poll()  # not select: an uploader may have more than 1024 files open
    poll.register(sock, select.POLLIN)
    return bool(poll.poll(within_s * 1000))


def _unsent(sock: socket.socket) -> int:
    """Bytes that the kernel has and the other end has not acknowledged (Linux: SIOCOUTQ)."""
    (count,) = _INT.unpack(fcntl.ioctl(sock, termios.TIOCOUTQ, _INT.pack(0)))
    return int(count)

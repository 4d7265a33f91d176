"""A bucket on loopback, light enough to be outrun by no client, that can be slow, busy, deaf, wrong or dishonest.

It verifies CRC64NVME and honours `If-None-Match: *`, like S3; what it does wrong is said per PUT by `fault`.
"""

from __future__ import annotations

import base64
import datetime
import email.utils
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from awscrt.checksums import crc64nvme

_PIECE: Final = 64 * 1024
_SKEW_ALLOWED_S: Final = 15 * 60


class Fault(StrEnum):
    SLOW_DOWN = "slow-down"  # 503, after the body
    SLOW_DOWN_EARLY = "slow-down-early"  # 503 before the body, and it hangs up
    DEAF = "deaf"  # takes the head, then nothing, for ever
    MUTE = "mute"  # takes everything, never answers
    FLIPPED = "flipped"  # a bit falls over on the way
    LOST = "lost"  # says 200 and keeps nothing
    EXPIRED = "expired"  # 400 ExpiredToken
    CLOSED = "closed"  # hangs up in the middle of the body


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    number: int  # of PUTs, from 1
    method: str
    path: str
    headers: dict[str, str]

    @property
    def key(self) -> str:
        return self.path.split("?")[0].removeprefix("/bucket/")


class TokenBucket:
    """So many bytes a second for all connections together, none saved up beyond `burst_s`."""

    def __init__(self, bytes_s: float, *, burst_s: float = 0.02) -> None:
        self.bytes_s, self._burst = bytes_s, bytes_s * burst_s
        self._level, self._at, self._lock = 0.0, time.monotonic(), threading.Lock()

    def take(self, count: int) -> None:
        with self._lock:
            now = time.monotonic()
            self._level = min(self._burst, self._level + (now - self._at) * self.bytes_s) - count
            self._at = now
            wait_s = max(0.0, -self._level / self.bytes_s)
        time.sleep(wait_s)


@dataclass(slots=True, kw_only=True)
class BucketServer:
    """`stored` is what it holds; `requests` every PUT that began."""

    fault: Callable[[Request], Fault | None] = lambda _: None
    clock: Callable[[], float] = time.time
    tokens: TokenBucket | None = None
    small_buffers: bool = False  # so that what it has not read is still at the client
    keeps_data: bool = True
    tls: ssl.SSLContext | None = None
    stored: dict[str, bytes] = field(default_factory=dict)
    digests: dict[str, str] = field(default_factory=dict)
    requests: list[Request] = field(default_factory=list)
    received_bytes: int = 0
    port: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _is_over: threading.Event = field(default_factory=threading.Event)
    _open: set[socket.socket] = field(default_factory=set)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def puts(self) -> list[Request]:
        return [request for request in self.requests if request.method == "PUT"]

    @contextmanager
    def serving(self) -> Iterator[BucketServer]:
        with socket.socket() as listener:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if self.small_buffers:
                listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 64 * 1024)
            listener.bind(("127.0.0.1", 0))
            listener.listen(128)
            self.port = listener.getsockname()[1]
            threads: list[threading.Thread] = []
            accepting = threading.Thread(target=self._accept, args=(listener, threads))
            accepting.start()
            try:
                yield self
            finally:
                self._is_over.set()
                with suppress(OSError):
                    listener.shutdown(socket.SHUT_RDWR)
                self.hang_up()
                accepting.join()
                for thread in threads:
                    thread.join()

    def hang_up(self) -> None:
        """End every connection now, as the death of the client would."""
        with self._lock:
            for sock in self._open:
                with suppress(OSError):
                    sock.shutdown(socket.SHUT_RDWR)

    def _accept(self, listener: socket.socket, threads: list[threading.Thread]) -> None:
        while not self._is_over.is_set():
            try:
                sock, _ = listener.accept()
            except OSError:
                return
            with self._lock:
                self._open.add(sock)
            threads.append(threading.Thread(target=self._serve, args=(sock,)))
            threads[-1].start()
            if self._is_over.is_set():
                self.hang_up()

    def _serve(self, accepted: socket.socket) -> None:
        with accepted, suppress(OSError, ConnectionError), self._dressed(accepted) as sock:
            rest = bytearray()
            while self._exchange(sock, rest):
                pass
        with self._lock:
            self._open.discard(accepted)

    @contextmanager
    def _dressed(self, sock: socket.socket) -> Iterator[socket.socket]:
        if self.tls is None:
            yield sock
            return
        with self.tls.wrap_socket(sock, server_side=True) as secured:
            with self._lock:
                self._open.add(secured)
            try:
                yield secured
            finally:
                with self._lock:
                    self._open.discard(secured)

    def _exchange(self, sock: socket.socket, rest: bytearray) -> bool:
        while (end := rest.find(b"\r\n\r\n")) < 0:
            data = sock.recv(_PIECE)
            if not data:
                return False
            rest += data
        lines = rest[:end].decode("latin1").split("\r\n")
        del rest[: end + 4]
        method, path, _ = lines[0].split(" ")
        headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines[1:])}
        with self._lock:
            number = len(self.puts) + (method == "PUT")
            request = Request(number=number, method=method, path=path, headers=headers)
            self.requests.append(request)
        if method == "PUT":
            return self._put(sock, request, rest)
        return self._get(sock, request)

    def _get(self, sock: socket.socket, request: Request) -> bool:
        data = self.stored.get(request.key)
        if data is None:
            return _answer(sock, 404, body=_error("NoSuchKey") if request.method == "GET" else b"")
        more = f"x-amz-meta-blake3: {self.digests[request.key]}\r\n"
        more += f"Last-Modified: {email.utils.formatdate(usegmt=True)}\r\n"
        body = data if request.method == "GET" else b""
        return _answer(sock, 200, body=body, length=len(data), more=more)

    def _put(self, sock: socket.socket, request: Request, rest: bytearray) -> bool:
        with self._lock:
            fault = self.fault(request)
        if "100-continue" in request.headers.get("expect", "").lower():
            sock.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")
        if fault is Fault.SLOW_DOWN_EARLY:
            _answer(sock, 503, body=_error("SlowDown"), more="Connection: close\r\n")
            return False
        if fault is Fault.DEAF:
            self._is_over.wait()
            return False
        size = int(request.headers.get("content-length", 0))
        body = self._body(sock, rest, size if fault is not Fault.CLOSED else size // 2)
        if body is None or fault is Fault.CLOSED:
            return False
        if fault is Fault.MUTE:
            self._is_over.wait()
            return False
        return self._judged(sock, request, body, fault)

    def _judged(self, sock: socket.socket, request: Request, body: bytearray, fault: Fault | None) -> bool:
        if fault is Fault.SLOW_DOWN:
            return _answer(sock, 503, body=_error("SlowDown"))
        if fault is Fault.EXPIRED:
            return _answer(sock, 400, body=_error("ExpiredToken"))
        if self._is_skewed(request):
            date = f"Date: {email.utils.formatdate(self.clock(), usegmt=True)}\r\n"
            return _answer(sock, 403, body=_error("RequestTimeTooSkewed"), more=date)
        if fault is Fault.FLIPPED:
            body[len(body) // 2] ^= 1
        promised = request.headers.get("x-amz-checksum-crc64nvme", "")
        if promised and base64.b64decode(promised) != crc64nvme(bytes(body)).to_bytes(8, "big"):
            return _answer(sock, 400, body=_error("BadDigest"))
        with self._lock:
            if request.headers.get("if-none-match") == "*" and request.key in self.stored:
                is_there = True
            else:
                is_there = False
                if fault is not Fault.LOST:
                    self.stored[request.key] = bytes(body) if self.keeps_data else b""
                    self.digests[request.key] = request.headers.get("x-amz-meta-blake3", "")
        if is_there:
            return _answer(sock, 412, body=_error("PreconditionFailed"))
        return _answer(sock, 200)

    def _is_skewed(self, request: Request) -> bool:
        signed = request.headers.get("x-amz-date")
        if signed is None:
            return False
        at = datetime.datetime.strptime(signed, "%Y%m%dT%H%M%SZ").replace(tzinfo=datetime.UTC).timestamp()
        return abs(at - self.clock()) > _SKEW_ALLOWED_S

    def _body(self, sock: socket.socket, rest: bytearray, size: int) -> bytearray | None:
        body = bytearray(rest[:size])
        del rest[:size]
        while len(body) < size:
            data = sock.recv(min(_PIECE, size - len(body)))
            if not data:
                return None
            if self.tokens is not None:
                self.tokens.take(len(data))
            with self._lock:
                self.received_bytes += len(data)
            body += data
        return body


def _error(code: str) -> bytes:
    return f"<Error><Code>{code}</Code><Message>text</Message></Error>".encode()


def _answer(sock: socket.socket, status: int, *, body: bytes = b"", length: int | None = None, more: str = "") -> bool:
    size = len(body) if length is None else length
    head = f'HTTP/1.1 {status} said\r\nContent-Length: {size}\r\nETag: "x"\r\n{more}\r\n'
    sock.sendall(head.encode() + body)
    return True

"""A bucket in memory, in a process of its own: so light that what is measured is the client. A subset of S3.

    python -m benchmarks.checkpointing.sink --rate 312e6 --latency 0.02 --busy 50

PUT (with `If-None-Match: *` and a CRC64NVME that is verified), GET (with ranges), HEAD, multipart uploads; `DELETE /`
forgets everything. `--rate` bounds all connections together, `--latency` is added to each answer, and of every `--busy`
PUTs one is answered 503. It prints its port.
"""

from __future__ import annotations

import argparse
import base64
import email.utils
import http.client
import json
import os
import re
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Final

from awscrt.checksums import crc64nvme

_PIECE: Final = 256 * 1024
_END: Final = b"\r\n\r\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class Wire:
    """How the bucket answers. `bytes_s` 0: as fast as it can."""

    bytes_s: float = 0
    latency_s: float = 0
    busy_every: int = 0


@dataclass(slots=True)
class Sink:
    """What is stored, and the state of the wire."""

    wire: Wire
    stored: dict[str, bytearray] = field(default_factory=dict)
    digests: dict[str, str] = field(default_factory=dict)
    puts: int = 0
    received: int = 0
    _free_at: float = 0.0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def pace(self, count: int) -> None:
        """Wait until the wire has carried `count` more bytes."""
        if not self.wire.bytes_s:
            return
        with self._lock:
            self._free_at = max(self._free_at, time.monotonic() - 0.02) + count / self.wire.bytes_s
            wait_s = self._free_at - time.monotonic()
        if wait_s > 0:
            time.sleep(wait_s)

    def is_busy(self) -> bool:
        """Count a PUT; whether it is one of those that are refused."""
        with self._lock:
            self.puts += 1
            return self.wire.busy_every > 0 and self.puts % self.wire.busy_every == 0

    def keep(self, key: str, data: bytearray, *, digest: str, only_new: bool) -> bool:
        """Store; False: something has that name already."""
        with self._lock:
            if only_new and key in self.stored:
                return False
            self.stored[key], self.digests[key] = data, digest
            self.received += len(data)
            return True

    def joined(self, key: str, upload: str) -> None:
        """A multipart upload becomes an object."""
        with self._lock:
            prefix = f"{key}?{upload}?"
            names = sorted(
                (name for name in self.stored if name.startswith(prefix)), key=lambda name: int(name[len(prefix) :])
            )
            self.stored[key] = bytearray().join(self.stored.pop(name) for name in names)


class Connection:
    """One client, request after request."""

    def __init__(self, sock: socket.socket, sink: Sink) -> None:
        self._sock = sock
        self._sink = sink
        self._rest = bytearray()

    def serve(self) -> None:
        """Until the client hangs up."""
        self._sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with self._sock, suppress(ConnectionError, OSError):
            while (end := self._head()) >= 0:
                lines = self._rest[:end].decode("latin1").split("\r\n")
                del self._rest[: end + len(_END)]
                method, target, _ = lines[0].split(" ")
                headers = {
                    name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines[1:])
                }
                path, _, query = target.partition("?")
                self._answer(method, path, query, headers)

    def _head(self) -> int:
        while (end := self._rest.find(_END)) < 0:
            data = self._sock.recv(_PIECE)
            if not data:
                return -1
            self._rest += data
        return end

    def _answer(self, method: str, path: str, query: str, headers: dict[str, str]) -> None:
        match method:
            case "PUT":
                self._put(path, query, headers)
            case "POST":
                self._post(path, query, self._body(headers))
            case "DELETE" if path == "/":
                self._sink.stored.clear()
                self._reply(204)
            case "DELETE":
                self._sink.stored.pop(path, None)
                self._reply(204)
            case "GET" if path == "/":
                told = {"puts": self._sink.puts, "received": self._sink.received, "keys": list(self._sink.stored)}
                self._reply(200, json.dumps(told).encode())
            case _:
                self._get(method, path, headers)

    def _put(self, path: str, query: str, headers: dict[str, str]) -> None:
        is_busy = self._sink.is_busy()
        if "100-continue" in headers.get("expect", ""):
            self._sock.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")
        data = self._body(headers)
        if is_busy:
            self._reply(503, b"<Error><Code>SlowDown</Code></Error>")
            return
        promised = headers.get("x-amz-checksum-crc64nvme")
        if promised and base64.b64encode(crc64nvme(data).to_bytes(8, "big")).decode() != promised:
            self._reply(400, b"<Error><Code>BadDigest</Code></Error>")
            return
        part = re.search(r"partNumber=(\d+)", query)
        upload = re.search(r"uploadId=([^&]+)", query)
        key = f"{path}?{upload[1]}?{part[1]}" if part and upload else path
        digest = headers.get("x-amz-meta-blake3", "")
        if self._sink.keep(key, data, digest=digest, only_new=headers.get("if-none-match") == "*"):
            self._reply(200)
        else:
            self._reply(412, b"<Error><Code>PreconditionFailed</Code></Error>")

    def _body(self, headers: dict[str, str]) -> bytearray:
        size = int(headers.get("content-length", 0))
        data = bytearray(size)
        view = memoryview(data)
        first = min(size, len(self._rest))
        view[:first] = self._rest[:first]
        del self._rest[:first]
        self._sink.pace(first)  # what came with the head has gone over the wire too
        at = first
        while at < size:
            got = self._sock.recv_into(view[at : at + _PIECE])
            if not got:
                raise ConnectionError
            at += got
            self._sink.pace(got)
        return data

    def _post(self, path: str, query: str, _: bytearray) -> None:
        if query.startswith("uploads"):
            body = f"<InitiateMultipartUploadResult><UploadId>{os.urandom(8).hex()}</UploadId>"
            self._reply(200, f"{body}</InitiateMultipartUploadResult>".encode())
            return
        upload = re.search(r"uploadId=([^&]+)", query)
        self._sink.joined(path, upload[1] if upload else "")
        self._reply(200, b"<CompleteMultipartUploadResult><ETag>x</ETag></CompleteMultipartUploadResult>")

    def _get(self, method: str, path: str, headers: dict[str, str]) -> None:
        data = self._sink.stored.get(path)
        if data is None:
            self._reply(404, b"<Error><Code>NoSuchKey</Code></Error>" if method == "GET" else b"")
            return
        asked = re.fullmatch(r"bytes=(\d+)-(\d*)", headers.get("range", ""))
        first = int(asked[1]) if asked else 0
        last = int(asked[2]) + 1 if asked and asked[2] else len(data)
        view = memoryview(data)[first:last]
        more = f"Last-Modified: {email.utils.formatdate(usegmt=True)}\r\n"
        if digest := self._sink.digests.get(path):
            more += f"x-amz-meta-blake3: {digest}\r\n"
        if asked:
            more += f"Content-Range: bytes {first}-{first + len(view) - 1}/{len(data)}\r\n"
        self._reply(206 if asked else 200, b"", more=more, length=len(view))
        if method == "GET":
            for at in range(0, len(view), _PIECE):
                self._sock.sendall(view[at : at + _PIECE])
                self._sink.pace(len(view[at : at + _PIECE]))

    def _reply(self, status: int, body: bytes = b"", *, more: str = "", length: int | None = None) -> None:
        if self._sink.wire.latency_s:
            time.sleep(self._sink.wire.latency_s)
        size = len(body) if length is None else length
        reason = http.client.responses[status]
        head = f'HTTP/1.1 {status} {reason}\r\nContent-Length: {size}\r\nETag: "x"\r\n{more}\r\n'
        self._sock.sendall(head.encode() + body)


@contextmanager
def sinking(wire: Wire, *, core: int | None = None) -> Iterator[str]:
    """A sink's URL; it ends with the block. `core` pins it where the kernel offers that core."""
    argv = [sys.executable, "-m", "benchmarks.checkpointing.sink", "--rate", str(wire.bytes_s)]
    argv += ["--latency", str(wire.latency_s), "--busy", str(wire.busy_every)]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            port = int(process.stdout.readline())
            if core is not None:
                os.sched_setaffinity(process.pid, {core})
            yield f"http://127.0.0.1:{port}"
        finally:
            process.kill()


def main() -> int:
    """Serve until killed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rate", type=float, default=0)
    parser.add_argument("--latency", type=float, default=0)
    parser.add_argument("--busy", type=int, default=0)
    asked = parser.parse_args()
    sink = Sink(Wire(bytes_s=asked.rate, latency_s=asked.latency, busy_every=asked.busy))
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("127.0.0.1", 0))
        listener.listen(128)
        print(listener.getsockname()[1], flush=True)
        while True:
            sock, _ = listener.accept()
            threading.Thread(target=Connection(sock, sink).serve, daemon=True).start()


if __name__ == "__main__":
    sys.exit(main())

"""Bodies straight from the socket: whole, broken, stalled, and the connection that they leave behind."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

import pytest

from spotproof.errors import Damaged, Unavailable
from spotproof.store.clients import Clients
from spotproof.store.digest import digest_of
from spotproof.store.retry import Patience
from spotproof.store.s3 import S3Objects

DATA = bytes(range(256)) * 8192  # more than a socket's buffer takes at once
QUICK = Patience(total_s=5, first_s=0.01, longest_s=0.02)


@dataclass
class Server:
    """Answers GETs; `cuts` are the bytes after which it hangs up, one for each answer, None: whole."""

    cuts: list[int | None]
    connections: int = 0
    requests: int = 0
    port: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    @contextmanager
    def serving(self) -> Iterator[Server]:
        with socket.socket() as listener:
            listener.bind(("127.0.0.1", 0))
            listener.listen(8)
            self.port = listener.getsockname()[1]
            thread = threading.Thread(target=self._accept, args=(listener,), daemon=True)
            thread.start()
            yield self
            listener.shutdown(socket.SHUT_RDWR)
        thread.join(5)

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                sock, _ = listener.accept()
            except OSError:
                return
            self.connections += 1
            threading.Thread(target=self._serve, args=(sock,), daemon=True).start()

    def _serve(self, sock: socket.socket) -> None:
        with sock, suppress(OSError):
            while head := sock.recv(65536):
                assert head.startswith(b"GET")
                with self.lock:
                    self.requests += 1
                    cut = self.cuts.pop(0) if self.cuts else None
                sock.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(DATA) + DATA[:cut])
                if cut is not None:
                    return


def objects(server: Server, monkeypatch: pytest.MonkeyPatch) -> S3Objects:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "x")
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{server.port}")
    return S3Objects(Clients(region="us-east-1").s3, "bucket", patience=QUICK)


def test_one_connection_serves_many_bodies(monkeypatch: pytest.MonkeyPatch) -> None:
    with Server([]).serving() as server:
        bucket = objects(server, monkeypatch)
        for _ in range(5):
            target = bytearray(len(DATA))
            bucket.get_into("a", memoryview(target), digest=digest_of(DATA))
            assert target == DATA
        assert (server.connections, server.requests) == (1, 5)


def test_a_body_that_breaks_in_the_middle_is_read_again_from_its_beginning(monkeypatch: pytest.MonkeyPatch) -> None:
    with Server([700_000, 0]).serving() as server:
        target = bytearray(len(DATA))
        objects(server, monkeypatch).get_into("a", memoryview(target), digest=digest_of(DATA))
        assert target == DATA
        assert server.requests == 3


def test_a_body_that_always_breaks_is_a_service_that_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    with Server([100] * 10_000).serving() as server:
        bucket = S3Objects(
            objects(server, monkeypatch)._client,
            "bucket",
            patience=Patience(total_s=0.2, first_s=0.01, longest_s=0.02),
        )
        with pytest.raises(Unavailable):
            bucket.get_into("a", memoryview(bytearray(len(DATA))), digest=digest_of(DATA))


def test_an_object_of_another_size_is_damaged_and_its_body_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    with Server([]).serving() as server:
        bucket = objects(server, monkeypatch)
        with pytest.raises(Damaged, match="promised were 5"):
            bucket.get_into("a", memoryview(bytearray(5)), digest=digest_of(b"12345"))

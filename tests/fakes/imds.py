"""An instance metadata service on loopback that answers from a script, counts what it is asked, and can misbehave."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

META = "/latest/meta-data/"
ACTION = "spot/instance-action"
REBALANCE = "events/recommendations/rebalance"
MAINTENANCE = "events/maintenance/scheduled"

Answer = tuple[int, str]


@dataclass
class FakeImds:
    """`answers` maps a path to (status, body); what is not there is a 404. `fault` answers before anything else."""

    answers: dict[str, Answer] = field(default_factory=dict)
    fault: Callable[[str, str, int], Answer | None] = field(default=lambda method, path, number: None)
    puts: int = 0
    gets: list[str] = field(default_factory=list)
    valid: set[str] = field(default_factory=set)
    proxied: int = 0

    def answer(self, method: str, path: str, token: str | None) -> Answer:
        if path.startswith("http"):
            self.proxied += 1
        if method == "GET":
            self.gets.append(path.removeprefix(META))
        else:
            self.puts += 1
        broken = self.fault(method, path, len(self.gets))
        if broken is not None:
            return broken
        if method == "PUT":
            fresh = f"token-{self.puts}"
            self.valid.add(fresh)
            return 200, fresh
        if token not in self.valid:
            return 401, "Unauthorized"
        return self.answers.get(path.removeprefix(META), (404, "Not Found"))


@contextmanager
def serving(imds: FakeImds) -> Iterator[str]:
    """The service's address while the context lasts."""

    class Handler(BaseHTTPRequestHandler):
        def reply(self) -> None:
            status, body = imds.answer(self.command, self.path, self.headers.get("X-aws-ec2-metadata-token"))
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body.encode())

        do_GET = do_PUT = reply  # noqa: N815 -- http.server's names

        def log_message(self, *_: object) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@contextmanager
def silent() -> Iterator[str]:
    """A service whose answers are dropped on the way, as with a hop limit of 1: it accepts and never answers."""
    with socket.create_server(("127.0.0.1", 0), backlog=64) as listener:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"


def closed_port() -> str:
    """An address on which nobody listens."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return f"http://127.0.0.1:{listener.getsockname()[1]}"

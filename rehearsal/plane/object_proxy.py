"""The wire in front of the object server: attributes every request to a role, injects faults, signs anew.

Clients sign with their role's temporary keys, which only the emulated STS knows. The proxy accepts keys that STS gave
out, checks the signature's secret, then signs the same headers with the object server's own key. Bodies pass as they
are, so that the server still verifies every checksum.
"""

from __future__ import annotations

import contextlib
import http.client
import re
import socket
import threading
import time
from collections.abc import Callable
from html import unescape
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlsplit

from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials as Keys

from rehearsal.plane.calls import Answered, Call, CallLog
from rehearsal.plane.object_faults import ObjectFault, ObjectFaults, ObjectKind
from rehearsal.plane.object_server import ADMIN_KEY, ADMIN_SECRET
from rehearsal.plane.wire import CREDENTIAL

HOP_HEADERS = {"connection", "expect", "transfer-encoding", "authorization", "x-amz-security-token", "host"}
RoleKeys = Callable[[str], tuple[str, str] | None]
"""access key -> (role, secret), None for a key that nobody was given."""


class ObjectProxy:
    """Serves on a free port of 127.0.0.1. `stored` and `fetched` count bytes that passed."""

    def __init__(self, *, server_port: Callable[[], int], role_keys: RoleKeys, region: str, calls: CallLog) -> None:
        self.faults = ObjectFaults()
        self.stored = 0
        self.fetched = 0
        self.server_port = server_port
        self.role_keys = role_keys
        self.region = region
        self.calls = calls
        self._server: ThreadingHTTPServer | None = None
        self._thread: threading.Thread | None = None

    def start(self) -> int:
        handler = type("BoundExchange", (Exchange,), {"proxy": self})
        server = QuietServer(("127.0.0.1", 0), handler)
        self._server = server
        self._thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
        self._thread.start()
        return int(server.server_address[1])

    def stop(self) -> None:
        if self._server is not None and self._thread is not None:
            self._server.shutdown()
            self._server.server_close()
            self._thread.join(5)


def _listed(body: bytes) -> tuple[str, ...]:
    """The keys that a DeleteObjects request names."""
    return tuple(unescape(found) for found in re.findall(r"<Key>([^<]*)</Key>", body.decode("utf-8", "replace")))


class QuietServer(ThreadingHTTPServer):
    """Clients are killed in the middle of a transfer on purpose: no traceback for that."""

    daemon_threads = True
    request_queue_size = 128

    def handle_error(self, request: Any, client_address: Any) -> None:
        del request, client_address


class Exchange(BaseHTTPRequestHandler):
    """One client connection."""

    protocol_version = "HTTP/1.1"
    proxy: ObjectProxy

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002  the base class's name
        del format, args

    def do_GET(self) -> None:
        self._serve()

    do_PUT = do_POST = do_DELETE = do_HEAD = do_GET  # noqa: N815

    def _serve(self) -> None:
        body = self._body()
        if body is None:
            return self._hang_up()
        role, refusal = self._principal()
        bucket, _, key = unquote(urlsplit(self.path).path).lstrip("/").partition("/")
        call = Call(
            service="s3",
            operation=f"{self.command} {'object' if key else 'bucket'}",
            params={"Bucket": bucket, "Key": key, "Query": urlsplit(self.path).query, "Bytes": len(body)}
            | ({} if key or self.command != "POST" else {"Keys": _listed(body)}),
            role=role,
        )
        if refusal:
            return self._fail(call, 403, refusal)
        fault = self.proxy.faults.meet(self.command, key)
        if fault is not None and fault.kind in (ObjectKind.ERROR, ObjectKind.DROP, ObjectKind.SWALLOW):
            return self._stop(call, fault)
        if fault is not None and fault.kind is ObjectKind.DELAY:
            time.sleep(fault.seconds)
        if fault is not None and fault.alter is not None and self.command == "PUT":
            body = fault.alter(body)
        status, headers, answer = self._forward(body)
        if fault is not None and fault.alter is not None and self.command == "GET":
            answer = fault.alter(answer)
        if fault is not None and fault.kind is ObjectKind.LOSE_ANSWER:
            return self._lose(call)
        self.proxy.stored += len(body)
        self.proxy.fetched += len(answer)
        return self._reply(call, status, headers, answer)

    def _body(self) -> bytes | None:
        """The request's body as sent, aws-chunked or not; None when the client went away in the middle."""
        if self.headers.get("Transfer-Encoding", "").lower() == "chunked":
            return self._dechunked()
        length = int(self.headers.get("Content-Length") or 0)
        body = self.rfile.read(length)
        return body if len(body) == length else None

    def _dechunked(self) -> bytes | None:
        parts = bytearray()
        while True:
            size = int(self.rfile.readline().split(b";")[0] or b"0", 16)
            chunk = self.rfile.read(size)
            self.rfile.readline()
            if len(chunk) < size:
                return None
            if size == 0:
                return bytes(parts)
            parts += chunk

    def _principal(self) -> tuple[str, str]:
        """(role, S3 error code); the code is '' for a request whose keys and signature are right."""
        match = CREDENTIAL.search(self.headers.get("Authorization", ""))
        if match is None:
            return "", "AccessDenied"
        known = self.proxy.role_keys(match.group(1))
        if known is None:
            return "", "InvalidAccessKeyId"
        role, secret = known
        return role, "" if self._signature(match.group(1), secret) else "SignatureDoesNotMatch"

    def _signature(self, access_key: str, secret: str) -> bool:
        authorization = self.headers["Authorization"]
        fields = dict(part.strip().split("=", 1) for part in authorization.split(" ", 1)[1].split(","))
        signed = fields["SignedHeaders"].split(";")
        request = AWSRequest(method=self.command, url=f"http://{self.headers['Host']}{self.path}", data=b"")
        for name in signed:
            request.headers[name] = self.headers.get(name, "")
        request.context["timestamp"] = self.headers.get("X-Amz-Date", "")
        signer: Any = S3SigV4Auth(Keys(access_key, secret), "s3", self.proxy.region)
        names = "\n".join(f"{name}:{' '.join(self.headers.get(name, '').split())}" for name in signed)
        parts = urlsplit(str(request.url))
        canonical = "\n".join(
            [
                self.command,
                parts.path,
                signer._canonical_query_string_url(parts),
                names,
                "",
                ";".join(signed),
                self.headers.get("X-Amz-Content-SHA256", ""),
            ]
        )
        return bool(signer.signature(signer.string_to_sign(request, canonical), request) == fields["Signature"])

    def _forward(self, body: bytes) -> tuple[int, list[tuple[str, str]], bytes]:
        request = AWSRequest(
            method=self.command, url=f"http://127.0.0.1:{self.proxy.server_port()}{self.path}", data=body
        )
        for name, value in self.headers.items():
            if name.lower() not in HOP_HEADERS:
                request.headers[name] = value
        if "X-Amz-Date" in request.headers:
            del request.headers["X-Amz-Date"]
        del request.headers["Content-Length"]
        request.headers["Content-Length"] = str(len(body))
        KeepHash(Keys(ADMIN_KEY, ADMIN_SECRET), "s3", self.proxy.region).add_auth(request)
        connection = http.client.HTTPConnection("127.0.0.1", self.proxy.server_port(), timeout=60)
        with contextlib.closing(connection):
            connection.request(self.command, self.path, body=body, headers=dict(request.headers.items()))
            response = connection.getresponse()
            answer = response.read()
            return response.status, response.getheaders(), answer

    def _stop(self, call: Call, fault: ObjectFault) -> None:
        if fault.kind is ObjectKind.ERROR:
            return self._fail(call, fault.status, fault.code)
        if fault.kind is ObjectKind.SWALLOW:
            return self._reply(call, 200, [("ETag", '"swallowed"')], b"")
        return self._lose(call)

    def _lose(self, call: Call) -> None:
        self.proxy.calls.add(Answered(call=call, status=0, error="ConnectionLost"))
        self._hang_up()

    def _hang_up(self) -> None:
        self.close_connection = True
        with contextlib.suppress(OSError):
            self.connection.shutdown(socket.SHUT_RDWR)

    def _fail(self, call: Call, status: int, code: str) -> None:
        text = f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>{code}</Message></Error>".encode()
        self._reply(call, status, [("Content-Type", "application/xml")], text, error=code)

    def _reply(
        self, call: Call, status: int, headers: list[tuple[str, str]], answer: bytes, *, error: str = ""
    ) -> None:
        if status >= 300 and not error:
            error = answer.decode(errors="replace").partition("<Code>")[2].partition("</Code>")[0] or str(status)
        self.proxy.calls.add(Answered(call=call, status=status, error=error))
        self.send_response_only(status)
        length = {name.lower(): value for name, value in headers}.get("content-length", "0")
        for name, value in headers:
            if name.lower() not in ("content-length", "connection", "transfer-encoding"):
                self.send_header(name, value)
        self.send_header("Content-Length", length if self.command == "HEAD" else str(len(answer)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(answer)


class KeepHash(S3SigV4Auth):
    """Signs the payload hash that the client declared: the server then verifies the client's word, not ours."""

    def payload(self, request: Any) -> str:
        declared = request.headers.get("X-Amz-Content-SHA256")
        return str(declared) if declared else super().payload(request)

    def _modify_request_before_signing(self, request: Any) -> None:
        declared = request.headers.get("X-Amz-Content-SHA256")
        inherited: Any = super()
        inherited._modify_request_before_signing(request)
        if declared:
            del request.headers["X-Amz-Content-SHA256"]
            request.headers["X-Amz-Content-SHA256"] = declared

"""The account's endpoint: every API call passes here once, is recorded, meets its faults, and runs under the lock."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import socket
import threading
import time
import traceback
from collections.abc import Callable, Iterable
from typing import Any

from moto.moto_server.werkzeug_app import DomainDispatcherApplication, MotoRequestHandler, create_backend_app
from werkzeug.serving import BaseWSGIServer, make_server

from rehearsal.plane.account import Account
from rehearsal.plane.calls import Answered, Call, CallLog
from rehearsal.plane.failures import AwsFailure, ConnectionLost
from rehearsal.plane.faults import Fault, FaultTable, Kind
from rehearsal.plane.wire import Environ, WireAnswer, read_body, read_call, replace_body, write_answer, write_failure

Verb = Callable[[Call], dict[str, Any]]
"""A replaced operation: gets the call under the account's lock, returns botocore's output or raises AwsFailure."""

Around = Callable[[Call, Callable[[], WireAnswer]], WireAnswer]
"""An operation that moto performs, with something before or after it: gets the call and what lets moto proceed."""

ANSWERS = "/cloudformation-answers/"
"""Where functions put their answers to CloudFormation: a signed address on AWS, which is no API call."""

Witness = Callable[[Call], dict[str, dict[str, str]]]
"""Which instances a call is about, with their tags; asked under the account's lock before anything is done."""


class QuietHandler(MotoRequestHandler):
    """moto's handler without a line per request on the terminal."""

    def log_request(self, code: int | str = "-", size: int | str = "-") -> None:
        del code, size


class Endpoint:
    """The WSGI application of the account and the server that carries it."""

    def __init__(
        self,
        account: Account,
        *,
        calls: CallLog,
        verbs: dict[tuple[str, str], Verb] | None = None,
        around: dict[tuple[str, str], Around] | None = None,
    ) -> None:
        self.account = account
        self.calls = calls
        self.faults = FaultTable()
        self.verbs = verbs or {}
        self.around = around or {}
        self.witnesses: dict[tuple[str, str], Witness] = {}
        self.crashes: list[str] = []
        self.outside: dict[tuple[str, str], Around] = {}  # like `around`, and not under the account's lock
        self.answers: Callable[[str, bytes], None] | None = None
        self.kill_caller: Callable[[str], None] = lambda _access_key: None
        self._moto = DomainDispatcherApplication(create_backend_app)
        self._server: BaseWSGIServer | None = None
        self._thread: threading.Thread | None = None

    def start(self) -> int:
        """Serves on a free port of 127.0.0.1 and returns it."""
        server = make_server("127.0.0.1", 0, self, threaded=True, request_handler=QuietHandler)
        self._server = server
        self._thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        self._thread.start()
        return int(server.port)

    def stop(self) -> None:
        if self._server is not None and self._thread is not None:
            self._server.shutdown()
            self._server.server_close()
            self._thread.join(5)

    def __call__(self, environ: Environ, start_response: Callable[..., Any]) -> Iterable[bytes]:
        body = read_body(environ)
        if self.answers is not None and environ["PATH_INFO"].startswith(ANSWERS):
            self.answers(environ["PATH_INFO"], body)
            start_response("200 OK", [("Content-Length", "0")])
            return []
        call = read_call(environ, body)
        call = dataclasses.replace(
            call, role=self.account.role_of(call.access_key) if call.access_key else "", seen=self._seen(call)
        )
        try:
            status, headers, answer = self._answer(call, environ)
        except ConnectionLost:
            self.calls.add(Answered(call=call, status=0, error="ConnectionLost"))
            _hang_up(environ)
            raise ConnectionAbortedError from None  # the server ends the exchange without an answer
        self.calls.add(Answered(call=call, status=status, error=_error_code(headers, answer) if status >= 300 else ""))
        headers["Content-Length"] = str(len(answer))
        start_response(f"{status} {'OK' if status < 300 else 'Error'}", list(headers.items()))
        return [] if environ["REQUEST_METHOD"] == "HEAD" else [answer]

    def _seen(self, call: Call) -> dict[str, dict[str, str]]:
        witness = self.witnesses.get((call.service, call.operation))
        if witness is None:
            return {}
        with self.account.lock:
            return witness(call)

    def _answer(self, call: Call, environ: Environ) -> WireAnswer:
        fault, rewrites = self.faults.meet(call)
        content_type = environ.get("CONTENT_TYPE", "")
        for row in rewrites:
            call = _rewritten(call, row, environ)
        if fault is not None and fault.kind is Kind.DELAY:
            time.sleep(fault.seconds)
        if fault is not None and fault.kind is Kind.DROP:
            raise ConnectionLost
        if fault is not None and fault.kind is Kind.ERROR:
            failure = AwsFailure(fault.code, f"{fault.code} (injected by the rehearsal)", status=fault.status)
            return write_failure(call, failure, content_type)
        answer = self._perform(call, environ, content_type)
        if fault is not None and fault.kind is Kind.KILL_CALLER:
            self.kill_caller(call.access_key)
        if fault is not None and fault.kind in (Kind.LOSE_ANSWER, Kind.KILL_CALLER):
            raise ConnectionLost
        return answer

    def _perform(self, call: Call, environ: Environ, content_type: str) -> WireAnswer:
        outside = self.outside.get((call.service, call.operation))
        if outside is None:
            return self._perform_locked(call, environ, content_type)
        try:
            return outside(call, lambda: self._perform_locked(call, environ, content_type))
        except Exception:  # noqa: BLE001  the edge of the emulator, as below
            self.crashes.append(f"{call.service} {call.operation}: {traceback.format_exc(limit=-6)}")
            return 500, {"Content-Type": "text/plain"}, b"the emulator failed; see the rehearsal's report"

    def _perform_locked(self, call: Call, environ: Environ, content_type: str) -> WireAnswer:
        verb = self.verbs.get((call.service, call.operation))
        with self.account.lock:
            try:
                if verb is None:
                    around = self.around.get((call.service, call.operation))
                    if around is None:
                        return self._ask_moto(call, environ)
                    return around(call, lambda: self._ask_moto(call, environ))
                return write_answer(call, verb(call), content_type)
            except AwsFailure as failure:
                return write_failure(call, failure, content_type)
            except Exception:  # noqa: BLE001  the edge of the emulator: its own faults must fail the rehearsal, not hang it
                self.crashes.append(f"{call.service} {call.operation}: {traceback.format_exc(limit=-6)}")
                return 500, {"Content-Type": "text/plain"}, b"the emulator failed; see the rehearsal's report"

    def _ask_moto(self, call: Call, environ: Environ) -> WireAnswer:
        """moto's own answer, whole, while we hold the lock."""
        if (call.service, call.operation) == ("sqs", "ReceiveMessage"):
            # A long poll would hold the lock and stop the account: clients get what is there now.
            replace_body(environ, json.dumps(call.params | {"WaitTimeSeconds": 0}).encode())
        environ["HTTP_X_MOTO_ACCOUNT_ID"] = self.account.id
        head: list[Any] = []

        def begin(status: str, headers: list[tuple[str, str]], _exc_info: object = None) -> None:
            head[:] = [int(status.split(" ", 1)[0]), {k: v for k, v in headers if k.lower() != "content-length"}]

        answer = b"".join(self._moto(environ, begin))
        if head[0] >= 500:
            self.crashes.append(f"moto: {call.service} {call.operation} answered {head[0]}: {answer[:300]!r}")
        return head[0], head[1], answer


def _rewritten(call: Call, row: Fault, environ: Environ) -> Call:
    if row.rewrite is None:
        return call
    params = row.rewrite(json.loads(json.dumps(call.params, default=str)))
    if environ.get("HTTP_X_AMZ_TARGET"):
        replace_body(environ, json.dumps(params).encode())
    return dataclasses.replace(call, params=params)


def _error_code(headers: dict[str, str], answer: bytes) -> str:
    named = next((value for name, value in headers.items() if name.lower() == "x-amzn-errortype"), "")
    if named:
        return named.split(":", 1)[0]
    text = answer.decode(errors="replace")
    with contextlib.suppress(ValueError):
        return str(json.loads(text).get("__type", "")).rsplit("#", 1)[-1]
    return text.partition("<Code>")[2].partition("</Code>")[0]


def _hang_up(environ: Environ) -> None:
    connection: socket.socket | None = environ.get("werkzeug.socket")
    if connection is not None:
        with contextlib.suppress(OSError):
            connection.shutdown(socket.SHUT_RDWR)

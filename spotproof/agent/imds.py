"""IMDSv2: the node's own notices, polled. No answer, no token or a wrong answer never ends the agent.

`poll` is called every 2 s from a thread of its own, so no start ever waits for the service. A 404 is the normal answer
and makes no noise; a hang is what a hop limit of 1 looks like from inside a container.
"""

from __future__ import annotations

import http.client
import json
import urllib.parse
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

from spotproof.contract.limits import IMDS_TOKEN_TTL_S, NOTICE_S
from spotproof.contract.parse import unix_seconds
from spotproof.contract.states import InterruptionAction, NoticeKind
from spotproof.errors import MetadataUnavailable

ENDPOINT_VARIABLE: Final = "AWS_EC2_METADATA_SERVICE_ENDPOINT"
DEFAULT_ENDPOINT: Final = "http://169.254.169.254"
TOKEN_HEADER: Final = "X-aws-ec2-metadata-token"  # noqa: S105 -- a header's name
TOKEN_TTL_HEADER: Final = "X-aws-ec2-metadata-token-ttl-seconds"  # noqa: S105 -- a header's name

_TOKEN_PATH: Final = "/latest/api/token"  # noqa: S105 -- a path
_META: Final = "/latest/meta-data/"
_RENEW_BEFORE_S: Final = 15  # as aws-node-termination-handler does
_NEAR_S: Final = 600  # maintenance that is so near is worth another checkpoint
_REQUEST_S: Final = 1.0  # the service is on the host: an answer takes milliseconds or does not come
_HINT: Final = "set HttpPutResponseHopLimit to 2 for this instance, or run the agent on the host"

Clock = Callable[[], float]


@dataclass(frozen=True, slots=True, kw_only=True)
class MetadataNotice:
    """A sign found in the instance's own metadata. `key` is equal for the same notice at every poll (EV-08)."""

    key: str
    kind: NoticeKind
    deadline_at: float
    action: InterruptionAction | None = None
    detail: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """Where the service is. Only host and port count; a proxy is never asked (EV-17)."""

    host: str
    port: int

    @classmethod
    def from_env(cls, environ: Mapping[str, str]) -> Endpoint:
        """The endpoint that AWS tools use too. Raises MetadataUnavailable if the variable names no http host."""
        url = environ.get(ENDPOINT_VARIABLE) or DEFAULT_ENDPOINT
        parts = urllib.parse.urlsplit(url)
        if parts.scheme != "http" or not parts.hostname:
            raise MetadataUnavailable(
                f"{ENDPOINT_VARIABLE}={url!r} is no http address", next_step=f"unset it or write {DEFAULT_ENDPOINT}"
            )
        return cls(host=parts.hostname, port=parts.port or 80)


class _Refused(Exception):
    """The service answered something that is neither the content nor 'not there'."""


@dataclass(slots=True)
class Imds:
    """A client with its token. `failed_polls` counts paths that could not be read; `degraded` says why ('' = well)."""

    endpoint: Endpoint
    monotonic: Clock
    now: Clock
    request_s: float = _REQUEST_S
    failed_polls: int = 0
    degraded: str = ""
    _token: str = ""
    _renew_at: float = 0.0
    _first_seen: dict[str, float] = field(default_factory=dict)

    def poll(self) -> list[MetadataNotice]:
        """Every notice that stands in the metadata now. A path that cannot be read is counted, and tried next time."""
        found: list[MetadataNotice] = []
        for path, parse in (
            ("spot/instance-action", self._interruption),
            ("events/recommendations/rebalance", self._rebalance),
            ("events/maintenance/scheduled", self._maintenance),
        ):
            try:
                body = self._read(path)
            except (OSError, http.client.HTTPException, _Refused) as error:
                self.failed_polls += 1
                self._degrade(error)
                break  # one hang costs a second: three in a row would make the period three times as long
            if body is not None:
                found += parse(body)
        return found

    def text(self, path: str) -> str | None:
        """Plain text under /latest/meta-data/, or None (404). Raises MetadataUnavailable."""
        try:
            body = self._read(path)
        except (OSError, http.client.HTTPException, _Refused) as error:
            self._degrade(error)
            raise MetadataUnavailable(f"{_META}{path}: {self.degraded}") from error
        return None if body is None else body.decode(errors="replace").strip()

    def _read(self, path: str) -> bytes | None:
        if not self._token or self.monotonic() >= self._renew_at:
            self._get_token()
        status, body = self._request("GET", _META + path, {TOKEN_HEADER: self._token})
        if status == 401:  # expired early, or the instance was stopped and started: once more, in this cycle (EV-05)
            self._get_token()
            status, body = self._request("GET", _META + path, {TOKEN_HEADER: self._token})
        if status == 404:
            self.degraded = ""
            return None
        if status != 200:
            raise _Refused(f"HTTP {status}")
        self.degraded = ""
        return body

    def _get_token(self) -> None:
        asked_at = self.monotonic()
        status, body = self._request("PUT", _TOKEN_PATH, {TOKEN_TTL_HEADER: str(IMDS_TOKEN_TTL_S)})
        if status != 200 or not body:
            raise _Refused(f"HTTP {status} for a token")
        self._token = body.decode("ascii", errors="replace").strip()
        self._renew_at = asked_at + IMDS_TOKEN_TTL_S - _RENEW_BEFORE_S
        self.degraded = ""

    def _request(self, method: str, path: str, headers: dict[str, str]) -> tuple[int, bytes]:
        # http.client reads no proxy variables. A connection per request: the service closes idle ones.
        connection = http.client.HTTPConnection(self.endpoint.host, self.endpoint.port, timeout=self.request_s)
        try:
            connection.request(method, path, headers=headers)
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()

    def _degrade(self, error: Exception) -> None:
        where = f"http://{self.endpoint.host}:{self.endpoint.port}"
        if isinstance(error, TimeoutError):
            self.degraded = f"cannot get a metadata token from {where}: no answer in {self.request_s:g} s; {_HINT}"
        else:
            self.degraded = f"instance metadata at {where} does not answer as it should: {error}"

    def _interruption(self, body: bytes) -> list[MetadataNotice]:
        """A 200 on this path is a notice, whatever its body says (EV-03)."""
        document = _json(body)
        fields = document if isinstance(document, dict) else {}
        text, at = fields.get("action"), fields.get("time")
        action = _action(text)
        key = f"interruption-{at}" if isinstance(at, str) else "interruption"
        deadline = _time(at)
        if deadline is None:
            deadline = self._first_seen.setdefault(key, self.now() + NOTICE_S)
        return [MetadataNotice(key=key, kind=NoticeKind.INTERRUPTION, deadline_at=deadline, action=action)]

    def _rebalance(self, body: bytes) -> list[MetadataNotice]:
        document = _json(body)
        at = document.get("noticeTime") if isinstance(document, dict) else None
        key = f"rebalance-{at}"
        deadline = self._first_seen.setdefault(key, self.now() + NOTICE_S)
        return [MetadataNotice(key=key, kind=NoticeKind.REBALANCE, deadline_at=deadline)]

    def _maintenance(self, body: bytes) -> list[MetadataNotice]:
        document = _json(body)
        events = document if isinstance(document, list) else []
        found = [event for event in events if isinstance(event, dict) and event.get("State", "active") == "active"]
        return [self._planned(event) for event in found]

    def _planned(self, event: Mapping[str, object]) -> MetadataNotice:
        key = f"maintenance-{event.get('EventId')}"
        at = _time(event.get("NotBefore"))
        if at is not None and at - self.now() <= _NEAR_S:
            key += "-near"  # it was heard of days ago: this is news, and the node saves once more before it may go
        deadline = self._first_seen.setdefault(key, self.now() + NOTICE_S) if at is None else at
        return MetadataNotice(
            key=key, kind=NoticeKind.MAINTENANCE, deadline_at=deadline, detail=str(event.get("Code", ""))
        )


def _action(text: object) -> InterruptionAction:
    is_known = isinstance(text, str) and text in set(InterruptionAction)
    return InterruptionAction(str(text)) if is_known else InterruptionAction.UNKNOWN


def _json(body: bytes) -> object:
    try:
        document: object = json.loads(body)
    except ValueError:
        return None
    return document


def _time(text: object) -> float | None:
    try:
        return float(unix_seconds(text)) if isinstance(text, str) else None
    except (ValueError, TypeError):
        return None

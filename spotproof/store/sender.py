"""PUTs of large objects from the caller's own memory: signed and checksummed by awscrt, sent over kept connections.

Why not an SDK's PUT: docs/decisions/uploads-from-memory.md. What a sender does that matters in the last two minutes:
every wait is bounded by progress and by the caller's deadline, a server's early answer ends the sending, a clock that
is wrong is corrected by the server's, and credentials that have expired are looked up again.

Failures are raised as botocore raises them, so that one place classifies them all (`store.awserrors`).
"""

from __future__ import annotations

import base64
import datetime
import email.utils
import re
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http.client import HTTPException, HTTPResponse
from typing import Any, Final, Protocol
from urllib.parse import quote, urlsplit

from spotproof.store.awserrors import Failure, code_of, kind_of
from spotproof.store.connections import Address, Connections, Pace, Stalled

__all__ = ["Credentials", "Sender", "address_of"]

_CODE: Final = re.compile(rb"<Code>([^<]*)</Code>")
_EXPIRED: Final = frozenset({"ExpiredToken", "ExpiredTokenException", "InvalidToken", "TokenRefreshRequired"})
_SKEW_WORTH_S: Final = 60.0  # below it a correction is noise: S3 allows 15 minutes
_SIGN_WITHIN_S: Final = 10.0


class Credentials(Protocol):
    """What signs. As botocore's frozen credentials have it."""

    @property
    def access_key(self) -> str:
        """Its name."""

    @property
    def secret_key(self) -> str:
        """What is never sent."""

    @property
    def token(self) -> str | None:
        """Of temporary credentials."""


FindCredentials = Callable[[bool], Credentials]
"""Credentials that are good now; called with True they are looked up anew, because the server refused the last."""


@dataclass(slots=True, kw_only=True)
class Sender:
    """Sends to one bucket. Its threads share the connections; `close` ends them.

    `find_credentials` is called for each request, so that new ones are used in the middle of an upload.
    """

    address: Callable[[], Address]
    region: str
    find_credentials: FindCredentials
    pace: Pace = field(default_factory=Pace)
    clock: Callable[[], float] = time.time
    _skew_s: float = 0.0  # the server's clock less ours
    _connections: Connections | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def put(self, key: str, data: memoryview, headers: Mapping[str, str], *, until: float) -> None:
        """One try to put `data`, given up at `until` (time.monotonic()). S3 verifies the CRC64NVME that goes along.

        Raises what botocore would: ClientError with the server's code, or a BotoCoreError where it did not answer.
        """
        try:
            self._try(key, data, headers, until=until, anew=False)
        except _client_error() as failure:
            if code_of(failure) not in _EXPIRED:
                raise
            self._try(key, data, headers, until=until, anew=True)

    def close(self) -> None:
        """End the kept connections."""
        with self._lock:
            connections, self._connections = self._connections, None
        if connections is not None:
            connections.close()

    def _try(self, key: str, data: memoryview, headers: Mapping[str, str], *, until: float, anew: bool) -> None:
        from botocore.exceptions import ConnectionClosedError, ReadTimeoutError

        connections = self._opened()
        signed = self._signed(connections.address, key, data, headers, anew=anew)
        url = f"{connections.address.origin}{connections.address.path}{key}"
        try:
            with connections.sending(until=until) as exchange:
                response = exchange.put(signed.path, dict(signed.headers), data)
                body = response.read()
        except (Stalled, TimeoutError) as error:
            raise ReadTimeoutError(endpoint_url=url, error=error) from error
        except (OSError, HTTPException) as error:
            raise ConnectionClosedError(endpoint_url=url, error=error) from error
        if response.status != 200:
            self._refused(response, body)

    def _opened(self) -> Connections:
        with self._lock:
            if self._connections is None:
                self._connections = Connections(address=self.address(), pace=self.pace)
            return self._connections

    def _signed(self, to: Address, key: str, data: memoryview, headers: Mapping[str, str], *, anew: bool) -> Any:
        """The request with its signature; the body's checksum is signed instead of the body."""
        from awscrt import auth, checksums, http

        found = self.find_credentials(anew)
        crc = checksums.crc64nvme(data).to_bytes(8, "big")
        all_headers = {
            "Host": to.host_header,
            "Content-Length": str(len(data)),
            "x-amz-checksum-crc64nvme": base64.b64encode(crc).decode(),
            **headers,
        }
        request = http.HttpRequest(
            "PUT", to.path + quote(key, safe="/-_.~"), http.HttpHeaders(list(all_headers.items()))
        )
        config = auth.AwsSigningConfig(
            algorithm=auth.AwsSigningAlgorithm.V4,
            signature_type=auth.AwsSignatureType.HTTP_REQUEST_HEADERS,
            credentials_provider=auth.AwsCredentialsProvider.new_static(
                found.access_key, found.secret_key, found.token
            ),
            region=self.region,
            service="s3",
            date=datetime.datetime.fromtimestamp(self.clock() + self._skew_s, datetime.UTC),
            use_double_uri_encode=False,
            should_normalize_uri_path=False,
            signed_body_value=auth.AwsSignedBodyValue.UNSIGNED_PAYLOAD,
            signed_body_header_type=auth.AwsSignedBodyHeaderType.X_AMZ_CONTENT_SHA_256,
        )
        return auth.aws_sign_request(request, config).result(_SIGN_WITHIN_S)

    def _refused(self, response: HTTPResponse, body: bytes) -> None:
        """Raise what the server said; a clock that it calls wrong is right at the next try."""
        code = _CODE.search(body)
        answer: Any = {
            "Error": {
                "Code": code[1].decode() if code else str(response.status),
                "Message": body[:300].decode("latin1"),
            },
            "ResponseMetadata": {"HTTPStatusCode": response.status, "HTTPHeaders": dict(response.headers)},
        }
        failure = _client_error()(answer, "PutObject")
        if kind_of(failure) is Failure.SKEW:
            self._learn_clock(response.headers.get("Date"))
        raise failure

    def _learn_clock(self, date: str | None) -> None:
        told = email.utils.parsedate_to_datetime(date).timestamp() if date else 0.0
        skew_s = told - self.clock()
        if told:
            self._skew_s = skew_s if abs(skew_s) >= _SKEW_WORTH_S else 0.0


def address_of(client: Any, bucket: str) -> Address:
    """Where the bucket is, by the client's own rules: endpoint, partition, addressing style.

    A signed URL shows the style; but it names the global endpoint, which redirects, so the host is the client's.
    """
    shown = urlsplit(client.generate_presigned_url("put_object", Params={"Bucket": bucket, "Key": "k"}))
    at = urlsplit(client.meta.endpoint_url)
    is_virtual = (shown.hostname or "").startswith(f"{bucket}.")
    host = f"{bucket}.{at.hostname}" if is_virtual else at.hostname or ""
    return Address(scheme=at.scheme, host=host, port=at.port, path=shown.path.removesuffix("k"))


def _client_error() -> Any:
    from botocore.exceptions import ClientError

    return ClientError

"""Answers given at the wire: a real client of ours signs and sends, and a script answers in the service's place."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest
from botocore.awsrequest import AWSPreparedRequest, AWSResponse, HeadersDict

from spotproof.store.clients import Clients


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """One HTTP answer."""

    status: int = 200
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)
    breaks_after: int | None = None  # the connection ends after this many bytes of the body


def s3_error(code: str, status: int) -> Answer:
    body = f"<Error><Code>{code}</Code><Message>text</Message></Error>".encode()
    return Answer(status=status, body=body, headers={"Content-Type": "application/xml"})


def dynamo(body: Mapping[str, Any], status: int = 200) -> Answer:
    return Answer(status=status, body=json.dumps(body).encode(), headers={"Content-Type": "application/x-amz-json-1.0"})


def dynamo_error(code: str, status: int = 400, **more: Any) -> Answer:
    return dynamo({"__type": f"com.amazonaws.dynamodb.v20120810#{code}", "message": "text", **more}, status)


class _Raw(io.BytesIO):
    """Enough of a urllib3 response for botocore."""

    def __init__(self, answer: Answer) -> None:
        super().__init__(answer.body)
        self.answer = answer

    def stream(self, amount: int = 65536, decode_content: bool = False) -> Any:
        while part := self.read(amount):
            yield part

    def read(self, amount: int | None = None, *_: Any, **__: Any) -> bytes:
        from urllib3.exceptions import ProtocolError

        limit = self.answer.breaks_after
        if limit is not None and self.tell() >= limit:
            raise ProtocolError("Connection broken")
        return super().read(amount if limit is None else limit)


class Wire:
    """Answers in order; `sent` keeps what was sent. A request more than there are answers fails the test."""

    def __init__(self, *answers: Answer | Exception) -> None:
        self._answers = list(answers)
        self.sent: list[AWSPreparedRequest] = []

    def client(self, service: str) -> Any:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv(f"AWS_ENDPOINT_URL_{service.upper()}", "http://127.0.0.1:1")
            client = Clients(region="us-east-1").get(service)
        client.meta.events.register(f"before-send.{service}", self._answer)
        return client

    def _answer(self, request: AWSPreparedRequest, **_: Any) -> AWSResponse:
        self.sent.append(request)
        assert self._answers, f"one request too many: {request.method} {request.url}"
        answer = self._answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        headers: Any = HeadersDict(answer.headers)
        return AWSResponse(request.url, answer.status, headers, _Raw(answer))

    def bodies(self) -> list[Any]:
        return [json.loads(request.body) for request in self.sent]  # type: ignore[arg-type]

"""Which failures are tried again, how long, and what the caller is told in the end."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from botocore.exceptions import (
    ClientError,
    ConnectTimeoutError,
    EndpointConnectionError,
    NoCredentialsError,
    ParamValidationError,
    ReadTimeoutError,
)

from spotproof.errors import Denied, Missing, StoreError, Unavailable
from spotproof.store.awserrors import Failure, kind_of
from spotproof.store.retry import Patience


def refused(code: str, status: int = 400) -> ClientError:
    return ClientError(
        {"Error": {"Code": code, "Message": "text"}, "ResponseMetadata": {"HTTPStatusCode": status}},  # type: ignore[typeddict-item]
        "Operation",
    )


class Clock:
    """Time that passes only by sleeping."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.slept: list[float] = []

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds

    def patience(self, total_s: float = 10.0) -> Patience:
        return Patience(
            total_s=total_s,
            first_s=1.0,
            longest_s=4.0,
            clock=lambda: self.now,
            sleep=self.sleep,
            chance=lambda: 1.0,
        )


def failing(times: int, failure: Exception) -> Callable[[], str]:
    left = [failure] * times

    def attempt() -> str:
        if left:
            raise left.pop()
        return "done"

    return attempt


@pytest.mark.parametrize(
    ("failure", "kind"),
    [
        (refused("ThrottlingException"), Failure.THROTTLE),
        (refused("ProvisionedThroughputExceededException"), Failure.THROTTLE),
        (refused("RequestLimitExceeded", 503), Failure.THROTTLE),
        (refused("SlowDown", 503), Failure.THROTTLE),
        (refused("TransactionInProgressException"), Failure.THROTTLE),
        (refused("TransactionConflictException"), Failure.CONFLICT),
        (refused("TransactionConflict"), Failure.CONFLICT),
        (refused("ConditionalRequestConflict", 409), Failure.CONFLICT),
        (refused("InternalServerError", 500), Failure.NETWORK),
        (refused("503", 503), Failure.NETWORK),
        (refused("SomethingNew", 502), Failure.NETWORK),
        (refused("RequestTimeout"), Failure.NETWORK),
        (EndpointConnectionError(endpoint_url="http://x"), Failure.NETWORK),
        (ConnectTimeoutError(endpoint_url="http://x"), Failure.NETWORK),
        (ReadTimeoutError(endpoint_url="http://x"), Failure.NETWORK),
        (refused("RequestTimeTooSkewed", 403), Failure.SKEW),
        (refused("ConditionalCheckFailedException"), Failure.CONDITION),
        (refused("PreconditionFailed", 412), Failure.CONDITION),
        (refused("NoSuchKey", 404), Failure.MISSING),
        (refused("404", 404), Failure.MISSING),
        (refused("ResourceNotFoundException"), Failure.MISSING),
        (refused("AccessDeniedException"), Failure.ACCESS),
        (refused("UnauthorizedOperation", 403), Failure.ACCESS),
        (refused("ExpiredTokenException"), Failure.CREDENTIALS),
        (refused("SignatureDoesNotMatch", 403), Failure.CREDENTIALS),
        (NoCredentialsError(), Failure.CREDENTIALS),
        (refused("ValidationException"), Failure.OTHER),
        (ParamValidationError(report="x"), Failure.OTHER),
    ],
    ids=lambda value: value.response["Error"]["Code"] if isinstance(value, ClientError) else "",
)
def test_a_failure_is_classified_by_its_code(failure: Exception, kind: Failure) -> None:
    assert kind_of(failure) is kind


def test_the_text_of_a_message_decides_nothing() -> None:
    misleading: Any = {"Error": {"Code": "ValidationException", "Message": "ThrottlingException: NoSuchKey"}}
    assert kind_of(ClientError(misleading, "Operation")) is Failure.OTHER


@pytest.mark.parametrize(
    "code", ["SlowDown", "ConditionalRequestConflict", "TransactionConflict", "RequestTimeTooSkewed", "InternalError"]
)
def test_a_transient_failure_is_tried_again_ever_more_slowly(code: str) -> None:
    clock = Clock()
    assert clock.patience(60).call(failing(5, refused(code)), doing="put x") == "done"
    assert clock.slept == [1.0, 2.0, 4.0, 4.0, 4.0]


def test_patience_ends_with_its_time_and_the_outcome_is_unknown() -> None:
    clock = Clock()
    with pytest.raises(Unavailable, match=r"put x: SlowDown") as caught:
        clock.patience(10).call(failing(99, refused("SlowDown")), doing="put x")
    assert isinstance(caught.value.__cause__, ClientError)
    assert sum(clock.slept) < 10


def test_the_callers_deadline_comes_first() -> None:
    clock = Clock()
    with pytest.raises(Unavailable):
        clock.patience(60).call(failing(99, refused("SlowDown")), doing="put x", until=clock.now + 4)
    assert clock.slept == [1.0, 2.0]


def test_a_deadline_that_is_past_still_allows_one_try() -> None:
    clock = Clock()
    assert clock.patience().call(failing(0, refused("x")), doing="put x", until=clock.now - 1) == "done"
    with pytest.raises(Unavailable):
        clock.patience().call(failing(1, refused("SlowDown")), doing="put x", until=clock.now - 1)
    assert clock.slept == []


@pytest.mark.parametrize(
    ("failure", "error", "advice"),
    [
        (refused("AccessDenied", 403), Denied, "policy"),
        (refused("ExpiredToken"), Denied, "credentials"),
        (NoCredentialsError(), Denied, "credentials"),
        (refused("NoSuchBucket", 404), Missing, "name"),
        (refused("ValidationException"), StoreError, "report"),
    ],
    ids=str,
)
def test_what_no_retry_helps_is_said_at_once(failure: Exception, error: type[StoreError], advice: str) -> None:
    clock = Clock()
    with pytest.raises(error, match=advice):
        clock.patience().call(failing(1, failure), doing="put x")
    assert clock.slept == []


def test_skew_that_lasts_is_reported_as_such() -> None:
    with pytest.raises(Unavailable, match="clock-skew"):
        Clock().patience().call(failing(99, refused("RequestTimeTooSkewed", 403)), doing="put x")


def test_what_is_no_aws_failure_passes() -> None:
    with pytest.raises(ZeroDivisionError):
        Clock().patience().call(lambda: 1 // 0, doing="divide")

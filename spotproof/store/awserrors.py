"""AWS failures classified by code, in one place. Texts of messages decide nothing.

`except aws_failures() as failure` keeps this module free of imports: the types are looked up when a call has failed,
and then a client exists and botocore has been loaded anyway.
"""

from __future__ import annotations

from enum import StrEnum
from functools import cache
from typing import Any, Final

from spotproof.errors import Damaged, Denied, Missing, StoreError, Unavailable

__all__ = ["Failure", "answer_of", "aws_failures", "code_of", "error_for", "kind_of", "throttled"]


class Failure(StrEnum):
    """What kind of failure it was, which is what decides whether to try again."""

    THROTTLE = "throttle"  # slower, same request
    CONFLICT = "conflict"  # somebody else was at it in the same moment: same request again
    NETWORK = "network"  # no answer, or a server's own error: the outcome is unknown; or the body came damaged
    CHECKSUM = "checksum"  # what was read has not the checksum that is stored with it
    SKEW = "skew"  # signed too long ago, or a wrong clock: sign again
    CONDITION = "condition"  # a condition of ours did not hold
    MISSING = "missing"
    ACCESS = "access"
    CREDENTIALS = "credentials"
    OTHER = "other"  # the request itself is wrong


_CODES: Final[dict[Failure, frozenset[str]]] = {
    Failure.THROTTLE: frozenset(
        {
            "BandwidthLimitExceeded",
            "EC2ThrottledException",
            "LimitExceededException",
            "PriorRequestNotComplete",
            "ProvisionedThroughputExceeded",
            "ProvisionedThroughputExceededException",
            "RequestLimitExceeded",
            "RequestThrottled",
            "RequestThrottledException",
            "SlowDown",
            "503 SlowDown",
            "ThrottledException",
            "Throttling",
            "ThrottlingError",
            "ThrottlingException",
            "TooManyRequestsException",
            "TransactionInProgressException",
        }
    ),
    Failure.CONFLICT: frozenset(
        {
            "ConditionalRequestConflict",
            "OperationAborted",
            "ReplicatedWriteConflictException",
            "TransactionConflict",
            "TransactionConflictException",
        }
    ),
    Failure.CHECKSUM: frozenset({"FlexibleChecksumError"}),
    Failure.NETWORK: frozenset(
        {
            "BadDigest",
            "IncompleteBody",
            "InternalError",
            "InternalFailure",
            "InternalServerError",
            "InternalServiceError",
            "RequestTimeout",
            "RequestTimeoutException",
            "ServiceUnavailable",
            "ServiceUnavailableException",
            "Unavailable",
            "XAmzContentChecksumMismatch",
            "XAmzContentSHA256Mismatch",
        }
    ),
    Failure.SKEW: frozenset({"RequestTimeTooSkewed", "RequestExpired", "RequestInTheFuture"}),
    Failure.CONDITION: frozenset(
        {"ConditionalCheckFailed", "ConditionalCheckFailedException", "PreconditionFailed", "412"}
    ),
    Failure.MISSING: frozenset(
        {
            "404",
            "InvalidInstanceID.NotFound",
            "InvalidLaunchTemplateId.NotFound",
            "InvocationDoesNotExist",
            "NoSuchBucket",
            "NoSuchKey",
            "NotFound",
            "QueueDoesNotExist",
            "ResourceNotFoundException",
        }
    ),
    Failure.ACCESS: frozenset(
        {
            "403",
            "AccessDenied",
            "AccessDeniedException",
            "AllAccessDisabled",
            "AuthorizationError",
            "Forbidden",
            "UnauthorizedOperation",
        }
    ),
    Failure.CREDENTIALS: frozenset(
        {
            "AuthFailure",
            "ExpiredToken",
            "ExpiredTokenException",
            "InvalidAccessKeyId",
            "InvalidClientTokenId",
            "InvalidSignatureException",
            "InvalidToken",
            "MissingAuthenticationToken",
            "SignatureDoesNotMatch",
            "TokenRefreshRequired",
            "UnrecognizedClientException",
        }
    ),
}
_KINDS: Final[dict[str, Failure]] = {code: kind for kind, codes in _CODES.items() for code in codes}


@cache
def aws_failures() -> tuple[type[Exception], ...]:
    """Return the exception types of a failed AWS call; for an `except` clause."""
    from botocore.exceptions import BotoCoreError, ClientError

    return ClientError, BotoCoreError


@cache
def _types(*names: str) -> tuple[type[Exception], ...]:
    from botocore import exceptions

    return tuple(getattr(exceptions, name) for name in names)


def throttled(operation: str) -> Exception:
    """Return the failure that a service means when it answers with part of the work left undone."""
    from botocore.exceptions import ClientError

    message = "part of the request was left unprocessed"
    answer: Any = {"Error": {"Code": "ProvisionedThroughputExceededException", "Message": message}}
    return ClientError(answer, operation)


def answer_of(failure: Exception) -> dict[str, Any]:
    """Return the parsed error answer; {} if the service gave none."""
    answer: dict[str, Any] = getattr(failure, "response", None) or {}
    return answer


def code_of(failure: Exception) -> str:
    """Return the service's error code, or the exception's name if there was no answer."""
    code = answer_of(failure).get("Error", {}).get("Code")
    return str(code) if code else type(failure).__name__


def kind_of(failure: Exception) -> Failure:
    """Classify a failure that `aws_failures` caught."""
    kind = _KINDS.get(code_of(failure))
    if kind is not None:
        return kind
    if isinstance(
        failure, _types("HTTPClientError", "ConnectionError", "IncompleteReadError", "ResponseStreamingError")
    ):
        return Failure.NETWORK
    if isinstance(
        failure,
        _types("NoCredentialsError", "CredentialRetrievalError", "PartialCredentialsError", "NoAuthTokenError"),
    ):
        return Failure.CREDENTIALS
    status = answer_of(failure).get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
    return Failure.NETWORK if status >= 500 else Failure.OTHER


def error_for(failure: Exception, *, doing: str) -> StoreError:
    """Return the error of ours for a failure that will not be tried again; `doing` names the call and its object."""
    what = f"{doing}: {code_of(failure)}: {failure}"
    match kind_of(failure):
        case Failure.THROTTLE | Failure.CONFLICT | Failure.NETWORK:
            return Unavailable(what, next_step="try again; its outcome is unknown")
        case Failure.SKEW:
            return Unavailable(what, next_step="check this machine's clock (clock-skew)")
        case Failure.CHECKSUM:
            return Damaged(what, next_step="use an older checkpoint; spotproof does so by itself")
        case Failure.MISSING:
            return Missing(what, next_step="check the name and the stack's outputs")
        case Failure.ACCESS:
            return Denied(what, next_step="compare the role's policy with the stack's")
        case Failure.CREDENTIALS:
            return Denied(what, next_step="check the credentials of this process")
        case Failure.CONDITION | Failure.OTHER:
            return StoreError(what, next_step="report it: the request itself was refused")

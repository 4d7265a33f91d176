"""What the stack did not make itself but was told to use, as DynamoDB and S3 describe it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from lambdas.decisions.guarding import AttachedBucket, AttachedTable
from spotproof.store.awserrors import aws_failures, code_of, error_for

_NO_RULES: Final = "NoSuchLifecycleConfiguration"


def table_of(client: Any, name: str) -> AttachedTable:
    """The table as it is. Raises StoreError, Missing if there is none."""
    described = _ask(client.describe_table, f"describe table {name}", TableName=name)["Table"]
    ttl = _ask(client.describe_time_to_live, f"describe table {name}", TableName=name)["TimeToLiveDescription"]
    kinds = {one["KeyType"]: one["AttributeName"] for one in described["KeySchema"]}
    return AttachedTable(
        name=name,
        keys=tuple(kinds[kind] for kind in ("HASH", "RANGE") if kind in kinds),
        expires_by=str(ttl.get("AttributeName", "")) if ttl.get("TimeToLiveStatus") in ("ENABLED", "ENABLING") else "",
    )


def bucket_of(client: Any, name: str) -> AttachedBucket:
    """The bucket as it is. Raises StoreError, Missing if there is none."""
    doing = f"describe bucket {name}"
    versioning = _ask(client.get_bucket_versioning, doing, Bucket=name)
    try:
        rules = client.get_bucket_lifecycle_configuration(Bucket=name).get("Rules", ())
    except aws_failures() as failure:
        if code_of(failure) != _NO_RULES:
            raise error_for(failure, doing=doing) from failure
        rules = ()
    whole = [rule for rule in rules if rule.get("Status") == "Enabled" and _is_of_all(rule)]
    return AttachedBucket(
        name=name,
        versioned=versioning.get("Status") == "Enabled",
        abort_uploads_days=_shortest(whole, "AbortIncompleteMultipartUpload", "DaysAfterInitiation"),
        expire_noncurrent_days=_shortest(whole, "NoncurrentVersionExpiration", "NoncurrentDays"),
    )


def _is_of_all(rule: Mapping[str, Any]) -> bool:
    scope = rule.get("Filter") or {}
    return not rule.get("Prefix") and not any(scope.values())


def _shortest(rules: Iterable[Mapping[str, Any]], what: str, days: str) -> int:
    return min((int(rule[what][days]) for rule in rules if rule.get(what)), default=0)


def _ask(call: Callable[..., Any], doing: str, **names: str) -> dict[str, Any]:
    try:
        answer: dict[str, Any] = call(**names)
    except aws_failures() as failure:
        raise error_for(failure, doing=doing) from failure
    return answer

"""Resource policies of targets: whether an AWS service may call a queue or a function for one source."""

from __future__ import annotations

import fnmatch
from typing import Any


def allows(policy: dict[str, Any], *, principal: str, action: str, resource: str, source_arn: str) -> bool:
    """Whether `policy` lets the service `principal` perform `action` on behalf of `source_arn`. A Deny wins.

    Conditions on the source's ARN and on TLS are understood; a statement with any other condition does not count.
    """
    verdict = False
    for statement in _list(policy.get("Statement")):
        if not _applies(statement, principal, action, resource):
            continue
        holds = _condition_holds(statement.get("Condition") or {}, source_arn)
        if statement.get("Effect") == "Deny" and holds:
            return False
        verdict = verdict or (statement.get("Effect") == "Allow" and holds)
    return verdict


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [] if value is None else [value]


def _applies(statement: dict[str, Any], principal: str, action: str, resource: str) -> bool:
    who = statement.get("Principal")
    named = who == "*" or (isinstance(who, dict) and (who.get("AWS") == "*" or principal in _list(who.get("Service"))))
    return (
        named
        and any(fnmatch.fnmatchcase(action.lower(), str(a).lower()) for a in _list(statement.get("Action")))
        and any(fnmatch.fnmatchcase(resource, str(r)) for r in _list(statement.get("Resource")))
    )


def _condition_holds(condition: dict[str, Any], source_arn: str) -> bool:
    for operator, tests in condition.items():
        for key, wanted in tests.items():
            if key.lower() == "aws:securetransport":
                actual = "true"  # services call each other over TLS
            elif key.lower() == "aws:sourcearn":
                actual = source_arn
            elif key.lower() == "aws:sourceaccount":
                actual = source_arn.split(":")[4]
            else:
                return False
            if operator not in ("ArnLike", "ArnEquals", "StringEquals", "StringLike", "Bool"):
                return False
            if not any(
                fnmatch.fnmatchcase(actual, str(value).lower() if operator == "Bool" else str(value))
                for value in _list(wanted)
            ):
                return False
    return True

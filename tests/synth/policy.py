"""A small IAM evaluator for the statements of this stack: an unknown operator is an error, never a silent no."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any

from tests.synth.template import Assembly, text, texts

Context = Mapping[str, str]
ARN = "arn:<AWS::Partition>:"
HERE = "<AWS::Region>:<AWS::AccountId>"


@dataclass(frozen=True, slots=True, kw_only=True)
class Statement:
    role: str
    sid: str
    effect: str
    actions: tuple[str, ...]
    resources: tuple[str, ...]
    conditions: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    def covers(self, action: str, resource: str, context: Context) -> bool:
        return (
            any(fnmatchcase(action, pattern) for pattern in self.actions)
            and any(fnmatchcase(resource, _literal(pattern)) for pattern in self.resources)
            and all(_holds(operator, keys, context) for operator, keys in self.conditions.items())
        )


def statements_of(assembly: Assembly) -> list[Statement]:
    """Every statement of every role's own policies."""
    return [
        Statement(
            role=name,
            sid=one.get("Sid", ""),
            effect=one["Effect"],
            actions=tuple(texts(one["Action"])),
            resources=tuple(texts(one["Resource"])),
            conditions=one.get("Condition", {}),
        )
        for name, role in assembly.of("AWS::IAM::Role").items()
        for policy in role.get("Policies", [])
        for one in policy["PolicyDocument"]["Statement"]
    ]


def decide(statements: Iterable[Statement], action: str, resource: str, context: Context) -> bool:
    """Allowed by a statement and denied by none."""
    effects = {one.effect for one in statements if one.covers(action, resource, context)}
    return effects == {"Allow"}


def _literal(pattern: str) -> str:
    return pattern.replace("[", "[[]")


def _holds(operator: str, keys: Mapping[str, Any], context: Context) -> bool:
    return all(_one(operator, context.get(key), texts(wanted)) for key, wanted in keys.items())


def _one(operator: str, value: str | None, wanted: list[str]) -> bool:
    match operator:
        case "StringEquals":
            return value in wanted
        case "StringLike":
            return value is not None and any(fnmatchcase(value, pattern) for pattern in wanted)
        case "ForAllValues:StringLike":
            return value is None or any(fnmatchcase(value, pattern) for pattern in wanted)
        case "Null":
            return (value is None) == (wanted == ["true"])
        case _:
            raise AssertionError(f"this evaluator does not know {operator} ({text(wanted)})")

"""IAM's decision over a role's statements, as AWS documents it. What it does not know is an error, never a silent no.

Identity policies of one account only: no boundaries, no service control or session policies, no policy variables.
Sources: IAM User Guide, "Policy evaluation logic", "JSON policy elements: Condition operators", "... with multiple
context keys or values", "Resource".
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Final

from rehearsal.permissions.requests import Request, Value


class Unsupported(Exception):
    """A policy element that this evaluator does not know: its policy cannot be judged here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Statement:
    """One statement. `other_than_*` say that the element was NotAction or NotResource."""

    sid: str
    effect: str
    actions: tuple[str, ...]
    resources: tuple[str, ...]
    conditions: Mapping[str, Mapping[str, tuple[str, ...]]] = field(default_factory=dict)
    other_than_actions: bool = False
    other_than_resources: bool = False

    def covers(self, request: Request) -> bool:
        """Whether action, resource and every condition match."""
        named = any(matches_action(pattern, request.action) for pattern in self.actions)
        meant = any(matches_arn(pattern, request.resource) for pattern in self.resources)
        return (
            named != self.other_than_actions
            and meant != self.other_than_resources
            and all(_holds(operator, keys, request.context) for operator, keys in self.conditions.items())
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """Allowed where a statement allows it and none denies it. `by` are the statements that decided."""

    allowed: bool
    by: tuple[Statement, ...]


def decide(statements: Iterable[Statement], request: Request) -> Decision:
    """A Deny wins over every Allow; without either the answer is no."""
    covering = [one for one in statements if one.covers(request)]
    denying = tuple(one for one in covering if one.effect == "Deny")
    if denying:
        return Decision(allowed=False, by=denying)
    return Decision(allowed=bool(covering), by=tuple(covering))


# ---------------------------------------------------------------------------------------------------- reading
_ELEMENTS: Final = {"Sid", "Effect", "Action", "NotAction", "Resource", "NotResource", "Condition"}


def statements_of(document: Mapping[str, Any]) -> tuple[Statement, ...]:
    """The statements of a policy document. Raises Unsupported for an element or an operator that is not known."""
    return tuple(_statement(one) for one in _list(document["Statement"]))


def _statement(raw: Mapping[str, Any]) -> Statement:
    unknown = set(raw) - _ELEMENTS
    if unknown or raw["Effect"] not in ("Allow", "Deny"):
        raise Unsupported(f"statement {raw.get('Sid', raw)}: {sorted(unknown) or raw['Effect']}")
    made = Statement(
        sid=str(raw.get("Sid", "")),
        effect=raw["Effect"],
        actions=_texts(raw.get("Action", raw.get("NotAction"))),
        resources=_texts(raw.get("Resource", raw.get("NotResource"))),
        conditions={
            operator: {key: _texts(wanted) for key, wanted in keys.items()}
            for operator, keys in raw.get("Condition", {}).items()
        },
        other_than_actions="NotAction" in raw,
        other_than_resources="NotResource" in raw,
    )
    for operator in made.conditions:
        _operator(operator)
    return made


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _texts(value: Any) -> tuple[str, ...]:
    texts = tuple(str(one).lower() if isinstance(one, bool) else str(one) for one in _list(value))
    variables = [one for one in texts if "${" in one]
    if variables or value is None:
        raise Unsupported(f"policy variables are not played: {variables or 'an element is missing'}")
    return texts


# ---------------------------------------------------------------------------------------------------- patterns
@cache
def _pattern(glob: str, *, ignore_case: bool = False) -> re.Pattern[str]:
    """`*` and `?` of IAM; every other character stands for itself."""
    text = "".join({"*": ".*", "?": "."}.get(char, re.escape(char)) for char in glob)
    return re.compile(text, re.DOTALL | (re.IGNORECASE if ignore_case else 0))


def matches_action(pattern: str, action: str) -> bool:
    """Actions are compared without regard to case."""
    return _pattern(pattern, ignore_case=True).fullmatch(action) is not None


def matches_arn(pattern: str, arn: str) -> bool:
    """Part by part: a wildcard does not reach over the colons between partition, service, region and account."""
    if pattern == "*" or arn == "*":
        return pattern == "*"
    wanted, given = pattern.split(":", 5), arn.split(":", 5)
    return len(wanted) == len(given) == 6 and all(
        _pattern(part).fullmatch(value) is not None for part, value in zip(wanted, given, strict=True)
    )


# ---------------------------------------------------------------------------------------------------- conditions
@dataclass(frozen=True, slots=True, kw_only=True)
class _Operator:
    """A condition operator taken apart: `ForAllValues:StringNotLikeIfExists`."""

    name: str
    over: str  # ForAllValues, ForAnyValue or ''
    negated: bool
    if_exists: bool


_COMPARED: Final = ("StringEquals", "StringEqualsIgnoreCase", "StringLike", "ArnEquals", "ArnLike", "Bool")


@cache
def _operator(text: str) -> _Operator:
    over, _, rest = text.rpartition(":")
    if_exists = rest.endswith("IfExists")
    rest = rest.removesuffix("IfExists")
    name = rest.replace("Not", "", 1)
    known = name in _COMPARED or (rest == "Null" and not if_exists and not over)
    unclear = rest == "NotBool" or (over == "ForAnyValue" and if_exists)  # the latter is documented nowhere
    if not known or over not in ("", "ForAllValues", "ForAnyValue") or unclear:
        raise Unsupported(f"the condition operator {text} is not played")
    return _Operator(name=name, over=over, negated=name != rest, if_exists=if_exists)


def _holds(operator: str, keys: Mapping[str, tuple[str, ...]], context: Mapping[str, Value]) -> bool:
    """Every key of one operator. Context keys are compared without regard to case."""
    known = {key.lower(): value for key, value in context.items()}
    return all(_one(_operator(operator), key, known.get(key.lower()), wanted) for key, wanted in keys.items())


def _one(operator: _Operator, key: str, value: Value | None, wanted: tuple[str, ...]) -> bool:
    if operator.name == "Null":
        return (value is None) == (wanted == ("true",))
    if value is None:
        if operator.over:  # of none, all hold and none does, negated or not
            return operator.over == "ForAllValues"
        return operator.negated or operator.if_exists
    if isinstance(value, tuple) and not operator.over:
        raise Unsupported(f"{key} has several values; a condition on it needs ForAllValues or ForAnyValue")
    values = value if isinstance(value, tuple) else (value,)
    met = [any(compares(operator.name, one, other) for one in wanted) != operator.negated for other in values]
    return any(met) if operator.over == "ForAnyValue" else all(met)


def compares(operator: str, wanted: str, value: str) -> bool:
    """Whether one wanted value meets one given value under a positive operator."""
    match operator:
        case "StringEquals":
            return wanted == value
        case "StringEqualsIgnoreCase" | "Bool":
            return wanted.lower() == value.lower()
        case "StringLike":
            return _pattern(wanted).fullmatch(value) is not None
        case "ArnEquals" | "ArnLike":
            return matches_arn(wanted, value)
        case _:
            raise Unsupported(f"the condition operator {operator} is not played")


# ---------------------------------------------------------------------------------------------------- what was needed
@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Part:
    """A piece of an Allow that could be taken away: one action on one resource, or one of a condition's values."""

    sid: str
    what: str

    def __str__(self) -> str:
        return f"{self.sid}: {self.what}"


def parts_of(statement: Statement) -> dict[Part, tuple[str, str]]:
    """Every piece of a statement, with (action, resource) or (condition key, value).

    A condition's only value is a lock and not a piece: taking it away gives more.
    """
    pieces = {
        Part(sid=statement.sid, what=f"{action} on {resource}"): (action, resource)
        for action in statement.actions
        for resource in statement.resources
    }
    for keys in statement.conditions.values():
        for key, wanted in keys.items():
            if len(wanted) > 1:
                pieces |= {Part(sid=statement.sid, what=f"{key} {value}"): (key, value) for value in wanted}
    return pieces


def needed(statement: Statement, request: Request) -> frozenset[Part]:
    """The pieces of a covering statement that this request makes use of."""
    context = {key.lower(): value for key, value in request.context.items()}
    operators = {key: operator for operator, keys in statement.conditions.items() for key in keys}

    def used(first: str, second: str) -> bool:
        if first not in operators:
            return matches_action(first, request.action) and matches_arn(second, request.resource)
        value = context.get(first.lower(), ())
        values = value if isinstance(value, tuple) else (value,)
        return any(compares(_operator(operators[first]).name, second, one) for one in values)

    return frozenset(part for part, (first, second) in parts_of(statement).items() if used(first, second))

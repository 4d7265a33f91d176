"""The evaluator decides as IAM documents it, and refuses to guess."""

from __future__ import annotations

from typing import Any

import pytest

from rehearsal.permissions.evaluate import Statement, Unsupported, decide, needed, parts_of, statements_of
from rehearsal.permissions.requests import Request, Value

TABLE = "arn:aws:dynamodb:us-east-1:111122223333:table/runs"
ROLE = "arn:aws:iam::111122223333:role/node"


def statement(**changes: Any) -> Statement:
    raw = {"Sid": "One", "Effect": "Allow", "Action": "dynamodb:GetItem", "Resource": TABLE} | changes
    (made,) = statements_of({"Statement": {key: value for key, value in raw.items() if value is not None}})
    return made


def request(action: str = "dynamodb:GetItem", resource: str = TABLE, **context: Value) -> Request:
    return Request(action=action, resource=resource, context=context)


def met(operator: str, wanted: Any, value: Value | None) -> bool:
    one = statement(Condition={operator: {"k": wanted}})
    context = {} if value is None else {"k": value}
    return decide([one], Request(action="dynamodb:GetItem", resource=TABLE, context=context)).allowed


ACTIONS = [
    ("dynamodb:GetItem", "dynamodb:GetItem", True),
    ("dynamodb:getitem", "dynamodb:GetItem", True),
    ("dynamodb:Get*", "dynamodb:GetItem", True),
    ("dynamodb:?etItem", "dynamodb:GetItem", True),
    ("*", "dynamodb:GetItem", True),
    ("dynamodb:Get", "dynamodb:GetItem", False),
    ("s3:*", "dynamodb:GetItem", False),
]


@pytest.mark.parametrize(("pattern", "action", "allowed"), ACTIONS)
def test_actions(pattern: str, action: str, allowed: bool) -> None:
    assert decide([statement(Action=pattern)], request(action)).allowed is allowed


RESOURCES = [
    (TABLE, TABLE, True),
    ("*", TABLE, True),
    ("arn:aws:dynamodb:*:111122223333:table/*", TABLE, True),
    ("arn:aws:dynamodb:us-east-1:111122223333:table/RUNS", TABLE, False),
    ("arn:aws:dynamodb:*:table/runs", TABLE, False),  # a wildcard does not reach over a colon before the resource
    ("arn:aws:iam::111122223333:role/*", ROLE, True),
    ("arn:aws:iam::111122223333:role/n?de", ROLE, True),
    ("arn:aws:logs:us-east-1:1:log-group:g:*", "arn:aws:logs:us-east-1:1:log-group:g:log-stream:a", True),
    ("arn:aws:s3:::b/runs/*", "arn:aws:s3:::b/runs/a/b/c", True),
    ("arn:aws:s3:::b/runs/*", "arn:aws:s3:::b/runs", False),
    ("arn:aws:s3:::b[0]/*", "arn:aws:s3:::b0/a", False),  # brackets are no wildcard
    ("arn:aws:ec2:us-east-1:1:instance/*", "*", False),  # an action without resources needs a star
    ("*", "*", True),
]


@pytest.mark.parametrize(("pattern", "resource", "allowed"), RESOURCES)
def test_resources(pattern: str, resource: str, allowed: bool) -> None:
    assert decide([statement(Resource=pattern)], request(resource=resource)).allowed is allowed


CONDITIONS: list[tuple[str, Any, Value | None, bool]] = [
    ("StringEquals", "a", "a", True),
    ("StringEquals", ["a", "b"], "b", True),
    ("StringEquals", "a", "A", False),
    ("StringEquals", "a*", "ab", False),
    ("StringEquals", "a", None, False),
    ("StringEqualsIfExists", "a", None, True),
    ("StringEqualsIfExists", "a", "b", False),
    ("StringNotEquals", "a", "b", True),
    ("StringNotEquals", ["a", "b"], "b", False),
    ("StringNotEquals", "a", None, True),
    ("StringEqualsIgnoreCase", "a", "A", True),
    ("StringNotEqualsIgnoreCase", "a", "A", False),
    ("StringLike", "NODE#*", "NODE#r#1", True),
    ("StringLike", "NODE#*", "RUN#r", False),
    ("StringLike", "NODE#*", None, False),
    ("StringNotLike", "NODE#*", "RUN#r", True),
    ("StringNotLike", "NODE#*", "NODE#r", False),
    ("ArnEquals", ROLE, ROLE, True),
    ("ArnLike", "arn:aws:iam::*:role/node", ROLE, True),
    ("ArnLike", "arn:aws:iam:*:role/node", ROLE, False),
    ("ArnNotEquals", ROLE, ROLE, False),
    ("ArnNotEquals", ROLE, None, True),
    ("ArnNotLike", ROLE, f"{ROLE}2", True),
    ("Bool", "true", "true", True),
    ("Bool", True, "true", True),
    ("Bool", "true", "false", False),
    ("Bool", "true", None, False),
    ("BoolIfExists", "true", None, True),
    ("Null", "true", None, True),
    ("Null", "true", "a", False),
    ("Null", "false", "a", True),
    ("Null", False, "a", True),
    ("Null", "false", None, False),
    ("ForAllValues:StringLike", "N*", ("N1", "N2"), True),
    ("ForAllValues:StringLike", "N*", ("N1", "R"), False),
    ("ForAllValues:StringLike", ["N*", "R"], ("N1", "R"), True),
    ("ForAllValues:StringLike", "N*", None, True),  # all of none
    ("ForAllValues:StringLike", "N*", (), True),
    ("ForAllValues:StringLike", "N*", "N1", True),
    ("ForAnyValue:StringLike", "N*", ("R", "N"), True),
    ("ForAnyValue:StringLike", "N*", ("R",), False),
    ("ForAnyValue:StringLike", "N*", None, False),
    ("ForAnyValue:StringLike", "N*", (), False),
    ("ForAllValues:StringNotEquals", "a", ("b", "c"), True),
    ("ForAllValues:StringNotEquals", "a", ("b", "a"), False),
    ("ForAnyValue:StringNotEquals", "a", ("b", "a"), True),
    ("ForAnyValue:StringNotEquals", "a", None, False),
    ("ForAllValues:StringNotEquals", "a", None, True),
    ("ForAllValues:StringEqualsIfExists", "a", None, True),
]


@pytest.mark.parametrize(("operator", "wanted", "value", "holds"), CONDITIONS)
def test_conditions(operator: str, wanted: Any, value: Value | None, holds: bool) -> None:
    assert met(operator, wanted, value) is holds


def test_context_keys_are_compared_without_regard_to_case() -> None:
    one = statement(Condition={"StringEquals": {"aws:RequestTag/Team": "a"}})
    assert decide([one], request(**{"AWS:requesttag/team": "a"})).allowed


def test_every_operator_and_every_key_must_hold() -> None:
    one = statement(Condition={"StringEquals": {"a": "1", "b": "2"}, "Null": {"c": "true"}})
    assert decide([one], request(a="1", b="2")).allowed
    assert not decide([one], request(a="1")).allowed
    assert not decide([one], request(a="1", b="2", c="3")).allowed


def test_a_denial_wins_and_nothing_is_a_no() -> None:
    deny = statement(Effect="Deny", Action="dynamodb:*", Resource="*")
    assert not decide([], request()).allowed
    assert not decide([statement(), deny], request()).allowed
    assert decide([statement(), deny], request()).by == (deny,)


def test_not_action_and_not_resource() -> None:
    but = statement(Action=None, NotAction="dynamodb:GetItem", Resource="*")
    assert not decide([but], request()).allowed
    assert decide([but], request("dynamodb:PutItem")).allowed
    elsewhere = statement(Resource=None, NotResource=TABLE)
    assert not decide([elsewhere], request()).allowed
    assert decide([elsewhere], request(resource=f"{TABLE}2")).allowed


UNKNOWN: list[dict[str, Any]] = [
    {"Condition": {"DateLessThan": {"aws:CurrentTime": "2030-01-01"}}},
    {"Condition": {"NumericEquals": {"k": "1"}}},
    {"Condition": {"NotIpAddress": {"aws:SourceIp": "10.0.0.0/8"}}},
    {"Condition": {"NotBool": {"k": "true"}}},
    {"Condition": {"NullIfExists": {"k": "true"}}},
    {"Condition": {"ForAnyValue:StringEqualsIfExists": {"k": "a"}}},
    {"Condition": {"ForSomeValues:StringEquals": {"k": "a"}}},
    {"Condition": {"StringEquals": {"k": "${aws:PrincipalTag/team}"}}},
    {"Resource": "arn:aws:s3:::b/${aws:username}"},
    {"Principal": "*"},
    {"Effect": "Perhaps"},
]


@pytest.mark.parametrize("changes", UNKNOWN, ids=lambda one: str(one)[:60])
def test_what_is_not_known_is_an_error(changes: dict[str, Any]) -> None:
    with pytest.raises(Unsupported):
        statement(**changes)


def test_a_key_with_several_values_needs_a_set_operator() -> None:
    with pytest.raises(Unsupported, match="ForAllValues"):
        met("StringEquals", "a", ("a", "b"))


def test_each_action_on_each_resource_is_a_grant_of_its_own() -> None:
    wide = statement(
        Action=["dynamodb:GetItem", "dynamodb:PutItem"],
        Resource=[TABLE, f"{TABLE}2"],
        Condition={"ForAllValues:StringLike": {"k": ["A#*", "B#*"]}, "Null": {"n": "true"}},
    )
    assert len(parts_of(wide)) == 2 * 2 + 2
    used = needed(wide, request("dynamodb:PutItem", k=("B#1",)))
    assert {part.what for part in used} == {f"dynamodb:PutItem on {TABLE}", "k B#*"}

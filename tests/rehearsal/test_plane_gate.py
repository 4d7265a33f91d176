"""The completeness gate finds what the emulation did not take over, and coverage what nothing touched."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from rehearsal.permissions import deployed
from rehearsal.plane.gate import Gate
from tests.rehearsal.conftest import Stack

pytestmark = [pytest.mark.emulator]


def findings(stack: Stack) -> list[str]:
    return Gate(stack.region.client, stack.region.deployed, stack.region.objects).findings()


@contextmanager
def properties(stack: Stack, logical_id: str, **changes: Any) -> Iterator[None]:
    """The template of one resource asks for something else than what was made."""
    resource = stack.region.deployed.get("plane", logical_id)
    assert resource is not None
    before = dict(resource.properties)
    resource.properties.update(changes)
    try:
        yield
    finally:
        resource.properties.clear()
        resource.properties.update(before)


def test_a_whole_deployment_has_no_findings(stack: Stack) -> None:
    assert findings(stack) == []


@pytest.mark.parametrize(
    ("logical_id", "changes", "named"),
    [
        ("Table", {"TimeToLiveSpecification": {"AttributeName": "other", "Enabled": True}}, "TTL"),
        ("Table", {"PointInTimeRecoverySpecification": {}}, "PointInTimeRecovery"),
        ("Table", {"DeletionProtectionEnabled": True}, "DeletionProtection"),
        ("Bucket", {"VersioningConfiguration": {"Status": "Suspended"}}, "Versioning"),
        ("Function", {"Architectures": ["x86_64"]}, "Architectures"),
        ("Function", {"Timeout": 77}, "Timeout"),
        ("Function", {"Environment": {"Variables": {"DEPLOYED": "no"}}}, "Environment"),
        ("Mapping", {"FunctionResponseTypes": []}, "FunctionResponseTypes"),
        ("Work", {"VisibilityTimeout": 31}, "VisibilityTimeout"),
        ("Work", {"RedrivePolicy": {"deadLetterTargetArn": "arn:other"}}, "dead-letter queue"),
        ("WorkPolicy", {"PolicyDocument": {"Statement": []}}, "Policy"),
        ("WorkRule", {"EventPattern": {"source": ["other"]}}, "EventPattern"),
        ("Minute", {"ScheduleExpression": "rate(2 minutes)"}, "expression"),
        ("Document", {"Content": {}}, "Content"),
        (
            "Template",
            {"LaunchTemplateData": {"UserData": "x", "MetadataOptions": {"HttpTokens": "optional"}}},
            "HttpTokens",
        ),
        ("Profile", {"Roles": ["nobody"]}, "Roles"),
        ("NodeRole", {"AssumeRolePolicyDocument": {"Statement": []}}, "trust"),
    ],
)
def test_a_property_that_was_not_taken_over_is_named(
    stack: Stack, logical_id: str, changes: dict[str, Any], named: str
) -> None:
    with properties(stack, logical_id, **changes):
        found = findings(stack)
    assert len(found) >= 1
    assert all(f"plane/{logical_id} " in line for line in found)
    assert any(named in line for line in found)


def test_a_type_that_the_gate_does_not_know_is_a_finding(stack: Stack) -> None:
    deployed = stack.region.deployed
    metadata = deployed.get("plane", "Metadata")
    assert metadata is not None
    deployed._resources["plane", "Metadata"] = dataclasses.replace(metadata, type="AWS::New::Thing")
    try:
        assert any("AWS::New::Thing" in line and "does not know" in line for line in findings(stack))
    finally:
        deployed._resources["plane", "Metadata"] = metadata


def test_a_resource_that_was_not_created_is_a_finding(stack: Stack) -> None:
    deployed = stack.region.deployed
    alarm = deployed._resources.pop(("plane", "Alarm"))
    try:
        assert findings(stack) == ["plane/Alarm (AWS::CloudWatch::Alarm) was not created"]
    finally:
        deployed._resources["plane", "Alarm"] = alarm


def test_coverage_names_what_nothing_touched(stack: Stack) -> None:
    coverage = stack.region.report()
    empty: Callable[[dict[str, int]], dict[str, int]] = lambda counts: dict.fromkeys(counts, 0)  # noqa: E731
    untouched = dataclasses.replace(
        coverage,
        rules=empty(coverage.rules),
        queues=empty(coverage.queues),
        functions=empty(coverage.functions),
        schedules=empty(coverage.schedules),
        document_steps=empty(coverage.document_steps),
    )
    kinds = {line.split(" ")[0] for line in untouched.unused()}
    assert kinds == {"rule", "queue", "function", "schedule", "document"}


def again(source: str, action: str) -> str:
    statement = {"Effect": "Allow", "Action": action, "Resource": "*"}
    trust = {"Effect": "Allow", "Principal": {"Service": "lambda.amazonaws.com"}, "Action": "sts:AssumeRole"}
    role = {
        "AssumeRolePolicyDocument": {"Version": "2012-10-17", "Statement": [trust]},
        "Policies": [{"PolicyName": "own", "PolicyDocument": {"Version": "2012-10-17", "Statement": [statement]}}],
    }
    resources = {
        "Role": {"Type": "AWS::IAM::Role", "Properties": role},
        "Rule": {"Type": "AWS::Events::Rule", "Properties": {"EventPattern": {"source": [source]}}},
    }
    return json.dumps({"Resources": resources})


def test_a_second_deployment_renews_the_roles_policies_and_keeps_the_rules_name(stack: Stack) -> None:
    region = stack.region
    region.deploy_template("again", again("again-1", "sqs:ListQueues"), check=False)
    role, rule = region.deployed.get("again", "Role"), region.deployed.get("again", "Rule")
    assert role is not None
    assert rule is not None
    region.deploy_template("again", again("again-2", "sns:ListTopics"), check=False)
    events = region.client("events")
    policy = deployed.policy(region, role.physical_id, "own")
    assert policy["Statement"][0]["Action"] == "sns:ListTopics"
    assert events.describe_rule(Name=rule.model.name)["EventPattern"].count("again-2") == 1
    region.client("cloudformation").delete_stack(StackName="again")

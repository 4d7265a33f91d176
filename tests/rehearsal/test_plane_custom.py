"""Custom resources in the emulated account: asked when a stack is made and deleted, and a refusal is one."""

from __future__ import annotations

import json
from typing import Any

import pytest

from rehearsal.plane.stacks import unguarded
from tests.rehearsal import handmade
from tests.rehearsal.conftest import Stack

FUNCTION = """
import json, urllib.request

def handler(event, context):
    wish = event["ResourceProperties"].get(event["RequestType"], "yes")
    if wish == "silent":
        return
    body = {name: event[name] for name in ("StackId", "RequestId", "LogicalResourceId")}
    status = "SUCCESS" if wish == "yes" else "FAILED"
    body |= {"Status": status, "Reason": wish, "PhysicalResourceId": event.get("PhysicalResourceId", "made-once")}
    urllib.request.urlopen(urllib.request.Request(event["ResponseURL"], json.dumps(body).encode(), method="PUT"))
"""


def template(**answers: str) -> str:
    """A queue, and a custom resource that depends on all and answers as told."""
    resources: dict[str, Any] = {
        "Role": handmade.role("lambda.amazonaws.com"),
        "Function": {
            "Type": "AWS::Lambda::Function",
            "Properties": {
                "Code": {"ZipFile": FUNCTION},
                "Handler": "index.handler",
                "Runtime": "python3.13",
                "Timeout": 20,
                "Role": {"Fn::GetAtt": ["Role", "Arn"]},
            },
        },
        "Queue": {"Type": "AWS::SQS::Queue"},
        "Custom": {
            "Type": "Custom::Thing",
            "DependsOn": ["Queue"],
            "Properties": {"ServiceToken": {"Fn::GetAtt": ["Function", "Arn"]}, **answers},
        },
    }
    return json.dumps({"Resources": resources})


def status(stack: Stack, name: str) -> tuple[str, str]:
    """Status of the newest stack of that name ('' for gone), and everything that was said about it."""
    cloudformation = stack.region.client("cloudformation")
    found = [one for one in cloudformation.describe_stacks()["Stacks"] if one["StackName"] == name]
    if not found:
        return "", ""
    events = cloudformation.describe_stack_events(StackName=name)["StackEvents"]
    return found[0]["StackStatus"], " ".join(str(one.get("ResourceStatusReason", "")) for one in events)


def queues(stack: Stack, name: str) -> list[str]:
    return [one for one in stack.region.queues.names() if one.startswith(f"{name}-")]


def test_a_refused_deletion_leaves_the_stack_and_an_allowed_one_takes_it(stack: Stack) -> None:
    region, cloudformation = stack.region, stack.region.client("cloudformation")
    region.deploy_template("kept", template(Delete="runs are live"))
    made = region.deployed.get("kept", "Custom")
    assert made is not None
    assert (made.physical_id, made.model.physical_resource_id) != ("", "")
    assert made.model.physical_resource_id == "made-once"
    cloudformation.delete_stack(StackName="kept")
    assert status(stack, "kept")[0] == "DELETE_FAILED"
    assert "runs are live" in status(stack, "kept")[1]
    assert len(queues(stack, "kept")) == 1
    region.deploy_template("kept", template(Delete="yes"))
    cloudformation.delete_stack(StackName="kept")
    assert status(stack, "kept")[0] == ""
    assert queues(stack, "kept") == []
    assert "kept" not in region.deployed.stacks()


@pytest.mark.parametrize(("answer", "reason"), [("does not fit", "does not fit"), ("silent", "failed to stabilize")])
def test_a_creation_that_is_refused_is_rolled_back_and_can_be_made_again(
    stack: Stack, answer: str, reason: str
) -> None:
    region, cloudformation, name = stack.region, stack.region.client("cloudformation"), f"half-{len(answer)}"
    region.deploy_template(name, template(Create=answer))
    assert status(stack, name)[0] == "ROLLBACK_COMPLETE"
    assert reason in status(stack, name)[1]
    assert queues(stack, name) == []
    cloudformation.delete_stack(StackName=name)
    region.deploy_template(name, template())
    assert status(stack, name)[0] == "CREATE_COMPLETE"
    cloudformation.delete_stack(StackName=name)
    assert status(stack, name)[0] == ""
    region.raise_problems()


def test_a_stack_that_went_past_the_account_is_not_remembered(stack: Stack) -> None:
    beside = json.dumps({"Resources": {"Topic": {"Type": "AWS::SNS::Topic"}}})
    backend = stack.region.account.backend("cloudformation")
    backend.create_stack("beside", beside, parameters={})
    assert "beside" in stack.region.deployed.stacks()
    backend.delete_stack("beside")
    assert "beside" not in stack.region.deployed.stacks()


def test_what_a_guard_does_not_depend_on_is_named() -> None:
    resources = json.loads(template())["Resources"]
    assert unguarded(resources, "Custom") == []
    resources["Custom"]["DependsOn"] = []
    assert unguarded(resources, "Custom") == ["Queue"]

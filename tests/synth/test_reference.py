"""Derivations, attacks and grants speak of what AWS's own reference knows: a made-up key would prove nothing."""

from __future__ import annotations

from rehearsal.permissions.derive import derive
from rehearsal.permissions.escalations import attempts
from rehearsal.permissions.requests import Request
from rehearsal.plane.calls import Answered, Call
from spotproof.contract import tags
from tests.rehearsal.test_permissions_derive import WORLD, fleet
from tests.synth.policy import estate_of, statements_of
from tests.synth.reference import findings, resource_type
from tests.synth.template import Assembly

ENDS = {"i-1": tags.of_launch(stack="s", run="r", launch=1)}
KEYED = {"TableName": "t", "Key": {"pk": {"S": "NODE#r"}, "sk": {"S": "A"}}}
QUERY = {
    "TableName": "t",
    "KeyConditionExpression": "pk = :pk",
    "ExpressionAttributeValues": {":pk": {"S": "NODE#r"}},
}
NOTE = {"Item": {"pk": {"S": "HIST#r"}, "sk": {"S": "1"}}}
OBJECT = {"Bucket": "b", "Key": "runs/r/a", "Query": "", "Bytes": 0}
CALLS = (
    Call(service="ec2", operation="CreateFleet", params=fleet()),
    Call(service="ec2", operation="TerminateInstances", params={"InstanceIds": ["i-1"]}, seen=ENDS),
    Call(service="ec2", operation="DescribeInstances", params={}),
    Call(service="ec2", operation="DescribeSpotPriceHistory", params={}),
    Call(service="ec2", operation="GetSpotPlacementScores", params={}),
    Call(service="ssm", operation="SendCommand", params={"DocumentName": "d", "DocumentVersion": "1"}, seen=ENDS),
    Call(service="dynamodb", operation="GetItem", params=KEYED),
    Call(service="dynamodb", operation="UpdateItem", params=KEYED),
    Call(service="dynamodb", operation="DeleteItem", params=KEYED),
    Call(service="dynamodb", operation="Query", params=QUERY),
    Call(service="dynamodb", operation="BatchGetItem", params={"RequestItems": {"t": {"Keys": [KEYED["Key"]]}}}),
    Call(service="dynamodb", operation="BatchWriteItem", params={"RequestItems": {"t": [{"PutRequest": NOTE}]}}),
    Call(service="dynamodb", operation="TransactWriteItems", params={"TransactItems": [{"ConditionCheck": KEYED}]}),
    Call(service="s3", operation="GET object", params=OBJECT),
    Call(service="s3", operation="PUT object", params=OBJECT),
    Call(service="sqs", operation="SendMessageBatch", params={"QueueUrl": "https://sqs/1/q"}),
    Call(service="sns", operation="Publish", params={"TopicArn": "arn:aws:sns:us-east-1:1:t"}),
    Call(service="ecr", operation="GetAuthorizationToken", params={}),
)


def asked() -> list[Request]:
    return [request for call in CALLS for request in derive(Answered(call=call, status=404), WORLD)]


def test_every_derived_request_is_one_that_aws_can_make() -> None:
    assert [said for request in asked() for said in findings(request)] == []


def test_every_twin_of_an_attack_is_a_request_that_aws_can_make(assembly: Assembly) -> None:
    tried = attempts(estate_of(assembly))
    assert sorted({said for one in tried for said in findings(one.twin)}) == []


def test_no_grant_is_for_a_resource_that_its_action_does_not_know(
    assembly: Assembly, strict_assembly: Assembly, nat_assembly: Assembly
) -> None:
    idle = {
        f"{one.sid}: {action} on {resource}"
        for stack in (assembly, strict_assembly, nat_assembly)
        for one in statements_of(stack)
        for action in one.actions
        for resource in one.resources
        if resource_type(action, resource) is None
    }
    assert sorted(idle) == []


def test_the_reference_notices() -> None:
    group = "arn:aws:ec2:us-east-1:1:security-group/sg-1"
    assert findings(Request(action="ec2:CreateFleet", resource=group)) == [f"ec2:CreateFleet knows no {group}"]
    made_up = Request(action="ec2:RunInstances", resource=group, context={"ec2:Colour": "red"})
    assert findings(made_up) == ["ec2:RunInstances on security-group knows no ec2:Colour"]
    assert findings(Request(action="ec2:Fly", resource="*")) == ["ec2:Fly: not in the reference"]
    assert resource_type("dynamodb:GetItem", "*") == ""

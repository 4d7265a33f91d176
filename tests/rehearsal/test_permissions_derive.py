"""Each recorded call becomes everything that IAM is asked for it; a call that nobody has thought of is an error."""

from __future__ import annotations

import json
from typing import Any

import pytest

from lambdas.decisions import request as product
from lambdas.decisions.pools import Asked, Candidate
from rehearsal.permissions.derive import derive
from rehearsal.permissions.requests import Request
from rehearsal.permissions.world import Template, Underivable, World
from rehearsal.plane.calls import Answered, Call
from spotproof.contract import tags
from spotproof.contract.runspec import Placement
from spotproof.contract.states import Market

STATIC = {tags.MANAGED: "true", tags.STACK: "s"}
WORLD = World(
    partition="aws",
    region="us-east-1",
    account="111122223333",
    templates={
        ("lt-1", "3"): Template(
            profile="arn:aws:iam::111122223333:instance-profile/p",
            role="arn:aws:iam::111122223333:role/node",
            image="ami-1",
            image_owner="amazon",
            security_groups=("sg-1",),
            tags={"volume": STATIC, "network-interface": STATIC},
        )
    },
)
EC2 = "arn:aws:ec2:us-east-1:111122223333:"


def asked(
    service: str, operation: str, params: dict[str, Any], *, status: int = 200, seen: Any = None
) -> list[Request]:
    call = Call(service=service, operation=operation, params=params, seen=seen or {})
    return list(derive(Answered(call=call, status=status), WORLD))


def told(requests: list[Request]) -> set[tuple[str, str]]:
    return {(one.action, one.resource) for one in requests}


def fleet(market: Market = Market.SPOT) -> dict[str, Any]:
    """The product's own request."""
    placement = Placement(template="lt-1", template_version="3", subnets=("subnet-1=us-east-1a",))
    candidates = (Candidate(instance_type="g5.xlarge", zone="us-east-1a", subnet="subnet-1", market=market),)
    text = product.fleet_request(
        Asked(market=market, candidates=candidates),
        placement,
        wants=1,
        launch_tags=tags.of_launch(stack="s", run="r", launch=1),
    )
    body: dict[str, Any] = json.loads(text)
    return body


def test_a_fleet_is_itself_every_part_of_a_machine_its_tags_and_the_role() -> None:
    got = told(asked("ec2", "CreateFleet", fleet()))
    parts = {
        "ec2:CreateFleet": {
            f"{EC2}fleet/*",
            f"{EC2}launch-template/lt-1",
            f"{EC2}subnet/subnet-1",
            f"{EC2}instance/*",
            f"{EC2}volume/*",
            "arn:aws:ec2:us-east-1::image/ami-1",
        },
        "ec2:RunInstances": {
            f"{EC2}launch-template/lt-1",
            f"{EC2}subnet/subnet-1",
            f"{EC2}security-group/sg-1",
            f"{EC2}instance/*",
            f"{EC2}volume/*",
            f"{EC2}network-interface/*",
            f"{EC2}spot-instances-request/*",
            "arn:aws:ec2:us-east-1::image/ami-1",
            "arn:aws:ec2:us-east-1::snapshot/*",
        },
        "ec2:CreateTags": {f"{EC2}{kind}/*" for kind in ("fleet", "instance", "volume", "network-interface")},
        "iam:PassRole": {"arn:aws:iam::111122223333:role/node"},
    }
    assert got == {(action, resource) for action, resources in parts.items() for resource in resources}


def test_an_on_demand_fleet_makes_no_spot_request() -> None:
    got = told(asked("ec2", "CreateFleet", fleet(market=Market.ON_DEMAND)))
    assert ("ec2:RunInstances", f"{EC2}spot-instances-request/*") not in got


def test_a_machine_shows_its_tags_and_its_profile() -> None:
    (made,) = [
        one
        for one in asked("ec2", "CreateFleet", fleet())
        if (one.action, one.resource) == ("ec2:RunInstances", f"{EC2}instance/*")
    ]
    assert made.context[f"aws:RequestTag/{tags.LAUNCH}"] == "1"
    assert made.context["ec2:InstanceProfile"] == WORLD.templates["lt-1", "3"].profile
    assert made.context["ec2:LaunchTemplate"] == f"{EC2}launch-template/lt-1"


@pytest.mark.parametrize("version", ["$Latest", "$Default", ""])
def test_a_template_version_that_may_be_another_tomorrow_is_refused(version: str) -> None:
    body = fleet()
    body["LaunchTemplateConfigs"][0]["LaunchTemplateSpecification"]["Version"] = version
    with pytest.raises(Underivable, match="later version"):
        asked("ec2", "CreateFleet", body)


@pytest.mark.parametrize(
    "field", ["ImageId", "IamInstanceProfile", "KeyName", "BlockDeviceMappings", "MetadataOptions"]
)
def test_an_override_of_what_the_template_fixes_is_refused(field: str) -> None:
    body = fleet()
    body["LaunchTemplateConfigs"][0]["Overrides"][0][field] = "anything"
    with pytest.raises(Underivable, match=field):
        asked("ec2", "CreateFleet", body)


def test_another_template_is_refused() -> None:
    body = fleet()
    body["LaunchTemplateConfigs"][0]["LaunchTemplateSpecification"]["LaunchTemplateId"] = "lt-2"
    with pytest.raises(Underivable, match="unknown template lt-2"):
        asked("ec2", "CreateFleet", body)


def test_a_command_is_the_document_and_every_machine_with_its_tags() -> None:
    params = {"DocumentName": "flush", "DocumentVersion": "1"}
    document, machine = asked("ssm", "SendCommand", params, seen={"i-1": {tags.STACK: "s"}})
    assert document.resource == "arn:aws:ssm:us-east-1:111122223333:document/flush"
    assert machine.resource == f"{EC2}instance/i-1"
    assert machine.context[f"ssm:resourceTag/{tags.STACK}"] == "s"
    (amazons, *_) = asked("ssm", "SendCommand", params | {"DocumentName": "AWS-RunShellScript"})
    assert amazons.resource == "arn:aws:ssm:us-east-1::document/AWS-RunShellScript"


@pytest.mark.parametrize("version", [None, "$LATEST", "$DEFAULT"])
def test_a_document_version_that_may_be_another_tomorrow_is_refused(version: str | None) -> None:
    params = {"DocumentName": "flush"} | ({"DocumentVersion": version} if version else {})
    with pytest.raises(Underivable, match="fixed DocumentVersion"):
        asked("ssm", "SendCommand", params)


def test_an_end_is_every_machine_with_its_tags() -> None:
    (one, other) = asked("ec2", "TerminateInstances", {"InstanceIds": ["i-1", "i-2"]}, seen={"i-1": {tags.STACK: "s"}})
    assert one.context[f"ec2:ResourceTag/{tags.STACK}"] == "s"
    assert other.context == {}


def keyed(pk: str) -> dict[str, Any]:
    return {"TableName": "t", "Key": {"pk": {"S": pk}, "sk": {"S": "A"}}}


def test_a_transaction_is_each_of_its_items() -> None:
    put = {"TableName": "t", "Item": {"pk": {"S": "P"}, "sk": {"S": "A"}}}
    entries = [{"Put": put}, {"Update": keyed("U")}, {"Delete": keyed("D")}, {"ConditionCheck": keyed("C")}]
    got = asked("dynamodb", "TransactWriteItems", {"TransactItems": entries})
    assert [(one.action, one.context["dynamodb:LeadingKeys"]) for one in got] == [
        ("dynamodb:PutItem", ("P",)),
        ("dynamodb:UpdateItem", ("U",)),
        ("dynamodb:DeleteItem", ("D",)),
        ("dynamodb:ConditionCheckItem", ("C",)),
    ]


def test_a_query_is_its_partition() -> None:
    params = {
        "TableName": "t",
        "KeyConditionExpression": "#pk = :pk AND #sk BETWEEN :from AND :to",
        "ExpressionAttributeNames": {"#pk": "pk", "#sk": "sk"},
        "ExpressionAttributeValues": {":pk": {"S": "NODE#r"}, ":from": {"S": "a"}, ":to": {"S": "b"}},
    }
    (got,) = asked("dynamodb", "Query", params)
    assert got.context == {"dynamodb:LeadingKeys": ("NODE#r",)}
    with pytest.raises(Underivable, match="index"):
        asked("dynamodb", "Query", params | {"IndexName": "i"})
    with pytest.raises(Underivable, match="partition"):
        asked("dynamodb", "Query", params | {"KeyConditionExpression": "#sk = :from"})


OBJECTS = [
    ("GET object", "", {"s3:GetObject"}),
    ("HEAD object", "", {"s3:GetObject"}),
    ("PUT object", "x-id=PutObject", {"s3:PutObject"}),
    ("POST object", "uploads", {"s3:PutObject"}),
    ("PUT object", "partNumber=1&uploadId=u", {"s3:PutObject"}),
    ("POST object", "uploadId=u", {"s3:PutObject"}),
    ("DELETE object", "uploadId=u", {"s3:AbortMultipartUpload"}),
    ("DELETE object", "", {"s3:DeleteObject"}),
]


def exchange(query: str) -> dict[str, Any]:
    return {"Bucket": "b", "Key": "runs/r/a", "Query": query, "Bytes": 0}


@pytest.mark.parametrize(("operation", "query", "actions"), OBJECTS)
def test_objects(operation: str, query: str, actions: set[str]) -> None:
    got = told(asked("s3", operation, exchange(query)))
    assert got == {(action, "arn:aws:s3:::b/runs/r/a") for action in actions}


def test_an_object_that_is_not_there_is_told_only_to_who_may_list() -> None:
    got = told(asked("s3", "GET object", exchange(""), status=404))
    assert got == {("s3:GetObject", "arn:aws:s3:::b/runs/r/a"), ("s3:ListBucket", "arn:aws:s3:::b")}


def test_a_listing_is_of_its_prefix() -> None:
    params = {"Bucket": "b", "Key": "", "Query": "list-type=2&prefix=runs%2Fr&encoding-type=url", "Bytes": 0}
    (got,) = asked("s3", "GET bucket", params)
    assert (got.action, got.resource, got.context) == ("s3:ListBucket", "arn:aws:s3:::b", {"s3:prefix": "runs/r"})


UNKNOWN = [
    ("ec2", "RunInstances", {}),
    ("iam", "PutRolePolicy", {}),
    ("dynamodb", "Scan", {"TableName": "t"}),
    ("dynamodb", "BatchExecuteStatement", {}),
    ("s3", "GET object", exchange("acl")),
    ("s3", "PUT object", exchange("tagging")),
    ("s3", "GET bucket", {"Bucket": "b", "Key": "", "Query": "policy", "Bytes": 0}),
    ("s3", "GET bucket", {"Bucket": "b", "Key": "", "Query": "", "Bytes": 0}),
    ("s3", "DELETE bucket", {"Bucket": "b", "Key": "", "Query": "", "Bytes": 0}),
    ("", "GET /", {}),
]


@pytest.mark.parametrize(("service", "operation", "params"), UNKNOWN)
def test_a_call_without_a_row_is_an_error(service: str, operation: str, params: dict[str, Any]) -> None:
    with pytest.raises(Underivable):
        asked(service, operation, params)


def test_a_batch_is_asked_once_with_the_partitions_of_all_its_items() -> None:
    keys = [{"pk": {"S": pk}, "sk": {"S": "1"}} for pk in ("RUN#a", "RUN#b", "RUN#a")]
    [read] = asked("dynamodb", "BatchGetItem", {"RequestItems": {"t": {"Keys": keys}}})
    assert (read.action, read.resource) == ("dynamodb:BatchGetItem", "arn:aws:dynamodb:us-east-1:111122223333:table/t")
    assert read.context == {"dynamodb:LeadingKeys": ("RUN#a", "RUN#b")}
    [write] = asked("dynamodb", "BatchWriteItem", {"RequestItems": {"t": [{"PutRequest": {"Item": keys[0]}}]}})
    assert (write.action, write.context) == ("dynamodb:BatchWriteItem", {"dynamodb:LeadingKeys": ("RUN#a",)})


def test_a_batch_that_deletes_is_nobodys_call() -> None:
    entry = {"DeleteRequest": {"Key": {"pk": {"S": "HIST#r"}, "sk": {"S": "1"}}}}
    with pytest.raises(Underivable, match="deletes"):
        asked("dynamodb", "BatchWriteItem", {"RequestItems": {"t": [entry]}})

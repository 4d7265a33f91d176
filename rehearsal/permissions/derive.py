"""The derivation table: for each operation that roles of the stack call, what IAM is asked.

It is knowledge written by hand and reviewed against the Service Authorization Reference; a call that has no row here
raises, so that a new call cannot pass unseen.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from rehearsal.permissions import items, machines, objects
from rehearsal.permissions.requests import ANY, Request
from rehearsal.permissions.world import Underivable, World
from rehearsal.plane.calls import Answered, Call

Derivation = Callable[[Call, World], tuple[Request, ...]]


def _of_queue(call: Call, world: World) -> tuple[Request, ...]:
    """SendMessage and SendMessageBatch are one action, on the queue that the URL ends with."""
    name = str(call.params["QueueUrl"]).rsplit("/", 1)[-1]
    return (Request(action="sqs:SendMessage", resource=world.arn("sqs", name)),)


def _publish(call: Call, world: World) -> tuple[Request, ...]:
    del world
    return (Request(action="sns:Publish", resource=str(call.params["TopicArn"])),)


def _login(call: Call, world: World) -> tuple[Request, ...]:
    del call, world
    return (Request(action="ecr:GetAuthorizationToken", resource=ANY),)


_TABLE: Final[Mapping[tuple[str, str], Derivation]] = {
    ("dynamodb", "GetItem"): items.on_item,
    ("dynamodb", "PutItem"): items.on_item,
    ("dynamodb", "UpdateItem"): items.on_item,
    ("dynamodb", "DeleteItem"): items.on_item,
    ("dynamodb", "BatchGetItem"): items.batch_get,
    ("dynamodb", "BatchWriteItem"): items.batch_write,
    ("dynamodb", "Query"): items.query,
    ("dynamodb", "TransactWriteItems"): items.transaction,
    ("ec2", "CreateFleet"): machines.create_fleet,
    ("ec2", "DescribeInstances"): machines.describe,
    ("ec2", "DescribeSpotPriceHistory"): machines.describe,
    ("ec2", "GetSpotPlacementScores"): machines.describe,
    ("ec2", "TerminateInstances"): machines.terminate,
    ("ecr", "GetAuthorizationToken"): _login,
    ("sns", "Publish"): _publish,
    ("sqs", "SendMessage"): _of_queue,
    ("sqs", "SendMessageBatch"): _of_queue,
    ("ssm", "SendCommand"): machines.send_command,
}


def derive(answered: Answered, world: World) -> tuple[Request, ...]:
    """What this call asked of IAM. Raises Underivable for an operation, or a form of it, that has no row."""
    call = answered.call
    if call.service == "s3":
        return objects.derive(answered, world)
    known = _TABLE.get((call.service, call.operation))
    if known is None:
        raise Underivable(f"{call.service} {call.operation}")
    return known(call, world)

"""DynamoDB: a transaction is authorized item by item, as the action that each item would be alone.

Source: Service Authorization Reference, DynamoDB; Developer Guide, "Using IAM policy conditions for fine-grained
access control" (dynamodb:LeadingKeys) and "IAM for transactions" (ConditionCheckItem has an action of its own).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from rehearsal.permissions.requests import Request
from rehearsal.permissions.world import Underivable, World
from rehearsal.plane.calls import Call
from spotproof.contract import keys

_IN_TRANSACTION: Final = {
    "Put": "PutItem",
    "Update": "UpdateItem",
    "Delete": "DeleteItem",
    "ConditionCheck": "ConditionCheckItem",
}
_EQUALS: Final = re.compile(r"([#\w]+)\s*=\s*(:\w+)")


def on_item(call: Call, world: World) -> tuple[Request, ...]:
    """GetItem, PutItem, UpdateItem, DeleteItem: the operation's own name."""
    return (_request(call.operation, call.params, world),)


def batch_get(call: Call, world: World) -> tuple[Request, ...]:
    """BatchGetItem: an action of its own, asked once for each table with the partitions of all its keys."""
    tables = call.params["RequestItems"].items()
    return tuple(
        _batch("BatchGetItem", table, [key[keys.PK]["S"] for key in asked["Keys"]], world) for table, asked in tables
    )


def batch_write(call: Call, world: World) -> tuple[Request, ...]:
    """BatchWriteItem: likewise; a delete in it would be this action too, which is why it may name history only."""
    found = []
    for table, entries in call.params["RequestItems"].items():
        if any(set(entry) != {"PutRequest"} for entry in entries):
            raise Underivable("a batch that deletes")
        partitions = [entry["PutRequest"]["Item"][keys.PK]["S"] for entry in entries]
        found.append(_batch("BatchWriteItem", table, partitions, world))
    return tuple(found)


def query(call: Call, world: World) -> tuple[Request, ...]:
    """Query: the partition that its key condition names. An index would be a resource of its own."""
    params = call.params
    if "IndexName" in params:
        raise Underivable(f"Query of the index {params['IndexName']}")
    named = params.get("ExpressionAttributeNames", {})
    for name, placeholder in _EQUALS.findall(params["KeyConditionExpression"]):
        if named.get(name, name) == keys.PK:
            pk = params["ExpressionAttributeValues"][placeholder]
            return (_request("Query", {"TableName": params["TableName"], "Key": {keys.PK: pk}}, world),)
    raise Underivable(f"Query without a partition: {params['KeyConditionExpression']}")


def transaction(call: Call, world: World) -> tuple[Request, ...]:
    """TransactWriteItems: one request per item."""
    found = []
    for entry in call.params["TransactItems"]:
        ((kind, body),) = entry.items()
        if kind not in _IN_TRANSACTION:
            raise Underivable(f"a transaction with {kind}")
        found.append(_request(_IN_TRANSACTION[kind], body, world))
    return tuple(found)


def _request(action: str, body: Mapping[str, Any], world: World) -> Request:
    key = body.get("Item") or body["Key"]
    return Request(
        action=f"dynamodb:{action}",
        resource=world.arn("dynamodb", f"table/{body['TableName']}"),
        context={"dynamodb:LeadingKeys": (key[keys.PK]["S"],)},
    )


def _batch(action: str, table: str, partitions: list[str], world: World) -> Request:
    return Request(
        action=f"dynamodb:{action}",
        resource=world.arn("dynamodb", f"table/{table}"),
        context={"dynamodb:LeadingKeys": tuple(dict.fromkeys(partitions))},
    )

"""The table on AWS: `Table` over a low-level DynamoDB client."""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, TypeVar, assert_never

from spotproof.contract.keys import PK, SK, Key
from spotproof.errors import Lost
from spotproof.store.awserrors import Failure, answer_of, aws_failures, code_of, kind_of, throttled
from spotproof.store.conditions import Expression
from spotproof.store.retry import Patience
from spotproof.store.table import Check, Delete, Item, Op, Put, Update, Write
from spotproof.store.values import Wire, item_from_wire, item_to_wire, key_to_wire

__all__ = ["DynamoTable"]

PATIENCE: Final = Patience(total_s=10)
"""Enough for a hot partition to split its load; a notice has 120 s for everything."""

READS: Final = 100  # keys of one BatchGetItem
PUTS: Final = 25  # items of one BatchWriteItem
_CANCELED: Final = "TransactionCanceledException"
_TOP_OF_KEYS: Final = "\U0010ffff"

T = TypeVar("T")


class DynamoTable:
    """See `Table` for the promises.

    A transaction is sent with one ClientRequestToken over all of its tries, so a try whose answer was lost counts once.
    """

    def __init__(self, client: Any, name: str, *, patience: Patience = PATIENCE) -> None:
        self._client = client
        self._name = name
        self._patience = patience

    def get(self, key: Key) -> Item | None:
        """See `Table`."""
        answer = self._call(
            lambda: self._client.get_item(TableName=self._name, Key=key_to_wire(key), ConsistentRead=True),
            doing=f"read {_name(key)}",
        )
        return item_from_wire(answer["Item"]) if "Item" in answer else None

    def get_many(self, keys: Sequence[Key]) -> list[Item | None]:
        """See `Table`."""
        found: dict[tuple[object, object], Item] = {}
        for some in _chunks(dict.fromkeys(keys), READS):
            for wire in self._read_some([key_to_wire(key) for key in some]):
                item = item_from_wire(wire)
                found[item[PK], item[SK]] = item
        return [found.get((key.pk, key.sk)) for key in keys]

    def put_many(self, items: Mapping[Key, Item]) -> None:
        """See `Table`."""
        for some in _chunks(items.items(), PUTS):
            self._put_some([{"PutRequest": {"Item": item_to_wire(key, item)}} for key, item in some])

    def _read_some(self, keys: list[dict[str, Wire]]) -> list[dict[str, Wire]]:
        """Read until nothing is left unprocessed: DynamoDB leaves out what it has no capacity for in this moment."""
        left, found = keys, list[dict[str, Wire]]()

        def attempt() -> None:
            nonlocal left
            answer = self._client.batch_get_item(RequestItems={self._name: {"Keys": left, "ConsistentRead": True}})
            found.extend(answer["Responses"].get(self._name, ()))
            left = answer.get("UnprocessedKeys", {}).get(self._name, {}).get("Keys", [])
            if left:
                raise throttled("BatchGetItem")

        self._patience.call(attempt, doing=f"read {len(keys)} items")
        return found

    def _put_some(self, requests: list[dict[str, Any]]) -> None:
        left = requests

        def attempt() -> None:
            nonlocal left
            answer = self._client.batch_write_item(RequestItems={self._name: left})
            left = answer.get("UnprocessedItems", {}).get(self._name, [])
            if left:
                raise throttled("BatchWriteItem")

        self._patience.call(attempt, doing=f"put {len(requests)} items")

    def query(
        self, pk: str, *, prefix: str = "", since: str = "", limit: int | None = None, newest_first: bool = False
    ) -> list[Item]:
        """See `Table`."""
        request: dict[str, Any] = {
            "TableName": self._name,
            "ConsistentRead": True,
            "ScanIndexForward": not newest_first,
            **_range(pk, prefix=prefix, since=since),
        }
        found: list[Item] = []
        while limit is None or len(found) < limit:
            if limit is not None:
                request["Limit"] = limit - len(found)
            answer = self._call(lambda: self._client.query(**request), doing=f"query {pk} {prefix}")
            found += [item_from_wire(item) for item in answer["Items"]]
            if "LastEvaluatedKey" not in answer:
                break
            request["ExclusiveStartKey"] = answer["LastEvaluatedKey"]
        return found

    def write(self, op: Write) -> Item:
        """See `Table`."""
        doing = f"write {_name(op.key)}"
        try:
            match op:
                case Put():
                    request = _put(op)
                    self._call(lambda: self._client.put_item(TableName=self._name, **_alone(request)), doing=doing)
                    return item_from_wire(request["Item"])
                case Update():
                    request = _update(op) | {"ReturnValues": "ALL_NEW"}
                    answer = self._call(
                        lambda: self._client.update_item(TableName=self._name, **_alone(request)), doing=doing
                    )
                case Delete():
                    request = _delete(op) | {"ReturnValues": "ALL_OLD"}
                    answer = self._call(
                        lambda: self._client.delete_item(TableName=self._name, **_alone(request)), doing=doing
                    )
                case _:
                    assert_never(op)
        except _ConditionFailed as failed:
            raise Lost(f"{doing}: its condition does not hold", current=failed.current) from failed
        return item_from_wire(answer.get("Attributes", {}))

    def transact(self, ops: Sequence[Op]) -> None:
        """See `Table`."""
        actions = [_action(op, self._name) for op in ops]
        token = str(uuid.uuid4())
        doing = f"transaction over {', '.join(_name(op.key) for op in ops)}"
        try:
            self._call(
                lambda: self._client.transact_write_items(TransactItems=actions, ClientRequestToken=token),
                doing=doing,
            )
        except _ConditionFailed as failed:
            lost = ops[failed.op].key
            what = f"{doing}: the condition on {_name(lost)} does not hold"
            raise Lost(what, current=failed.current, op=failed.op) from failed

    def _call(self, attempt: Callable[[], T], *, doing: str) -> T:
        def conditions_apart() -> T:
            try:
                return attempt()
            except aws_failures() as failure:
                if (failed := _failed_condition(failure)) is not None:
                    raise failed from failure
                if code_of(failure) == _CANCELED:
                    raise _by_its_reasons(failure) from failure
                raise

        return self._patience.call(conditions_apart, doing=doing)


def _chunks(values: Iterable[T], size: int) -> Iterator[list[T]]:
    left = iter(values)
    while some := list(itertools.islice(left, size)):
        yield some


class _ConditionFailed(Exception):
    """A condition did not hold: no AWS failure, so nothing tries again."""

    def __init__(self, *, op: int, item: dict[str, Wire] | None) -> None:
        super().__init__(op)
        self.op = op
        self.current = None if item is None else dict(item_from_wire(item))


def _failed_condition(failure: Exception) -> _ConditionFailed | None:
    """Return the lost condition that a failure tells of, with the item that stood there; of several the first."""
    answer = answer_of(failure)
    if code_of(failure) == _CANCELED:
        for op, reason in enumerate(answer.get("CancellationReasons", [])):
            if reason.get("Code") == "ConditionalCheckFailed":
                return _ConditionFailed(op=op, item=reason.get("Item") or None)
        return None
    if kind_of(failure) is Failure.CONDITION:
        return _ConditionFailed(op=0, item=answer.get("Item") or None)
    return None


def _by_its_reasons(failure: Exception) -> Exception:
    """Return a cancelled transaction's failure under the code of its cause, so that the one classification serves."""
    reasons = answer_of(failure).get("CancellationReasons", [])
    causes = [reason for reason in reasons if reason.get("Code", "None") != "None"]
    if not causes:
        return failure
    cause = {"Code": causes[0]["Code"], "Message": causes[0].get("Message", "")}
    return type(failure)({**answer_of(failure), "Error": cause}, "TransactWriteItems")


def _alone(request: dict[str, Any]) -> dict[str, Any]:
    """Return the request asking for the item that stood in the way, which costs no second round trip."""
    if "ConditionExpression" not in request:
        return request
    return request | {"ReturnValuesOnConditionCheckFailure": "ALL_OLD"}


def _action(op: Op, table: str) -> dict[str, Any]:
    match op:
        case Put():
            kind, request = "Put", _put(op)
        case Update():
            kind, request = "Update", _update(op)
        case Delete():
            kind, request = "Delete", _delete(op)
        case Check():
            kind, request = "ConditionCheck", _delete(Delete(key=op.key, when=op.when))
        case _:
            assert_never(op)
    return {kind: {"TableName": table, **_alone(request)}}


def _put(op: Put) -> dict[str, Any]:
    return {"Item": item_to_wire(op.key, op.item), **_when(op, Expression())}


def _update(op: Update) -> dict[str, Any]:
    expression = Expression()
    changes = expression.update(op)
    request = {"Key": key_to_wire(op.key), **({"UpdateExpression": changes} if changes else {})}
    return request | _when(op, expression)


def _delete(op: Delete) -> dict[str, Any]:
    return {"Key": key_to_wire(op.key), **_when(op, Expression())}


def _when(op: Write, expression: Expression) -> dict[str, Any]:
    condition = {} if op.when is None else {"ConditionExpression": expression.condition(op.when)}
    return condition | expression.arguments()


def _range(pk: str, *, prefix: str, since: str) -> dict[str, Any]:
    """Return the key condition; DynamoDB takes one condition on the sort key, so prefix and since become a range."""
    names = {"#pk": PK}
    values: dict[str, Wire] = {":pk": {"S": pk}}
    texts = ["#pk = :pk"]
    if prefix or since:
        names["#sk"] = SK
        values[":from"] = {"S": max(prefix, since)}
        texts.append("#sk BETWEEN :from AND :to" if prefix else "#sk >= :from")
    if prefix:
        values[":to"] = {"S": prefix + _TOP_OF_KEYS}
    return {
        "KeyConditionExpression": " AND ".join(texts),
        "ExpressionAttributeNames": names,
        "ExpressionAttributeValues": values,
    }


def _name(key: Key) -> str:
    return f"{key.pk} / {key.sk}"

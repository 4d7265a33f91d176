"""What the table does when DynamoDB answers with the failures that DynamoDB has."""

from __future__ import annotations

from typing import Any

import pytest
from botocore.exceptions import ReadTimeoutError

from spotproof.contract.keys import Key
from spotproof.errors import Denied, Lost, StoreError, Unavailable
from spotproof.store.dynamo import DynamoTable
from spotproof.store.retry import Patience
from spotproof.store.table import Absent, Check, Eq, Op, Put, Update
from tests.unit.store.wire import Answer, Wire, dynamo, dynamo_error

QUICK = Patience(total_s=5, first_s=0.0, longest_s=0.0)
KEY, OTHER = Key(pk="RUN#r", sk="A"), Key(pk="RUN#r", sk="B")
PUT = Put(key=KEY, item={"n": 1}, when=Absent("pk"))
BOTH: list[Op] = [PUT, Check(key=OTHER, when=Eq("n", 1))]
STORED = {"pk": {"S": "RUN#r"}, "sk": {"S": "B"}, "n": {"N": "7"}}


def table(wire: Wire, patience: Patience = QUICK) -> DynamoTable:
    return DynamoTable(wire.client("dynamodb"), "table", patience=patience)


def canceled(*reasons: dict[str, Any]) -> Answer:
    return dynamo_error("TransactionCanceledException", CancellationReasons=list(reasons))


NONE: dict[str, Any] = {"Code": "None"}
FAILED: dict[str, Any] = {"Code": "ConditionalCheckFailed", "Message": "text", "Item": STORED}
CONFLICT: dict[str, Any] = {"Code": "TransactionConflict", "Message": "text"}


@pytest.mark.parametrize(
    "failure",
    [
        dynamo_error("ThrottlingException"),
        dynamo_error("ProvisionedThroughputExceededException"),
        dynamo_error("RequestLimitExceeded"),
        dynamo_error("InternalServerError", 500),
        dynamo_error("TransactionConflictException"),
        ReadTimeoutError(endpoint_url="http://x"),
    ],
    ids=["throttled", "hot-partition", "account-limit", "server-error", "conflict", "no-answer"],
)
def test_a_write_is_tried_again(failure: Answer | Exception) -> None:
    wire = Wire(failure, dynamo({}))
    assert table(wire).write(PUT)["n"] == 1
    assert len(wire.sent) == 2


def test_a_lost_condition_is_not_tried_again_and_carries_the_item() -> None:
    wire = Wire(dynamo_error("ConditionalCheckFailedException", Item=STORED))
    with pytest.raises(Lost) as caught:
        table(wire).write(PUT)
    assert caught.value.current == {"pk": "RUN#r", "sk": "B", "n": 7}
    assert wire.bodies()[0]["ReturnValuesOnConditionCheckFailure"] == "ALL_OLD"


def test_a_transaction_that_conflicts_is_sent_again_with_its_token() -> None:
    wire = Wire(
        canceled(NONE, CONFLICT),
        dynamo_error("TransactionInProgressException"),
        canceled({"Code": "ThrottlingError"}, NONE),
        ReadTimeoutError(endpoint_url="http://x"),
        dynamo({}),
    )
    table(wire).transact(BOTH)
    tokens = {body["ClientRequestToken"] for body in wire.bodies()}
    assert len(wire.sent) == 5
    assert len(tokens) == 1
    assert 1 <= len(tokens.pop()) <= 36


def test_two_transactions_have_two_tokens() -> None:
    wire = Wire(dynamo({}), dynamo({}))
    both = table(wire)
    both.transact(BOTH)
    both.transact(BOTH)
    assert len({body["ClientRequestToken"] for body in wire.bodies()}) == 2


def test_a_lost_condition_counts_although_another_item_was_busy() -> None:
    with pytest.raises(Lost) as caught:
        table(Wire(canceled(CONFLICT, FAILED))).transact(BOTH)
    assert (caught.value.op, caught.value.current) == (1, {"pk": "RUN#r", "sk": "B", "n": 7})


def test_a_transaction_that_is_refused_for_another_reason_is_an_error() -> None:
    with pytest.raises(StoreError, match="ValidationError") as caught:
        table(Wire(canceled(NONE, {"Code": "ValidationError", "Message": "text"}))).transact(BOTH)
    assert not isinstance(caught.value, Lost | Unavailable)


def test_throttling_that_lasts_is_unavailable_and_names_the_item() -> None:
    wire = Wire(*[dynamo_error("ThrottlingException")] * 2)
    with pytest.raises(Unavailable, match="RUN#r / A"):
        table(wire, Patience(total_s=0.02, first_s=0.02, chance=lambda: 0.6)).write(PUT)


def test_denied_is_said_at_once() -> None:
    with pytest.raises(Denied):
        table(Wire(dynamo_error("AccessDeniedException"))).get(KEY)


def test_every_read_is_consistent() -> None:
    wire = Wire(dynamo({}), dynamo({"Items": []}))
    reading = table(wire)
    reading.get(KEY)
    reading.query("RUN#r")
    assert [body["ConsistentRead"] for body in wire.bodies()] == [True, True]


def test_reserved_words_go_through_placeholders() -> None:
    wire = Wire(dynamo({}))
    table(wire).write(Update(key=KEY, set={"status": "x", "owner": "y"}, when=Eq("state", "z")))
    [body] = wire.bodies()
    assert not {"status", "owner", "state"} & set((body["UpdateExpression"] + body["ConditionExpression"]).split())
    assert set(body["ExpressionAttributeNames"].values()) == {"status", "owner", "state"}


def test_what_dynamodb_leaves_out_of_a_batch_is_asked_again_and_only_that() -> None:
    left = {"table": {"Keys": [{"pk": {"S": "RUN#r"}, "sk": {"S": "A"}}]}}
    first = dynamo({"Responses": {"table": [STORED]}, "UnprocessedKeys": left})
    second = dynamo({"Responses": {"table": []}, "UnprocessedKeys": {}})
    wire = Wire(first, second)
    found = {"pk": "RUN#r", "sk": "B", "n": 7}
    assert table(wire).get_many([KEY, OTHER, OTHER]) == [None, found, found]
    asked = [body["RequestItems"]["table"] for body in wire.bodies()]
    assert [len(one["Keys"]) for one in asked] == [2, 1]
    assert all(one["ConsistentRead"] for one in asked)


def test_what_dynamodb_leaves_out_of_many_puts_is_put_again_and_only_that() -> None:
    left = {"table": [{"PutRequest": {"Item": STORED}}]}
    wire = Wire(dynamo({"UnprocessedItems": left}), dynamo({"UnprocessedItems": {}}))
    table(wire).put_many({KEY: {"n": 1}, OTHER: {"n": 7}})
    assert [len(body["RequestItems"]["table"]) for body in wire.bodies()] == [2, 1]


def test_a_batch_that_is_never_processed_is_unavailable() -> None:
    left = {"table": [{"PutRequest": {"Item": STORED}}]}
    wire = Wire(*[dynamo({"UnprocessedItems": left})] * 3)
    once = Patience(total_s=0)
    with pytest.raises(Unavailable, match="put 1 items"):
        table(wire, once).put_many({OTHER: {"n": 7}})


def test_many_items_are_put_and_read_in_requests_of_the_size_that_dynamodb_takes() -> None:
    empty = dynamo({"UnprocessedItems": {}})
    wire = Wire(empty, empty, empty)
    table(wire).put_many({Key(pk="HIST#r", sk=str(n)): {"n": n} for n in range(51)})
    assert [len(body["RequestItems"]["table"]) for body in wire.bodies()] == [25, 25, 1]
    nothing = dynamo({"Responses": {"table": []}})
    wire = Wire(nothing, nothing)
    assert table(wire).get_many([Key(pk="HIST#r", sk=str(n)) for n in range(101)]) == [None] * 101
    assert [len(body["RequestItems"]["table"]["Keys"]) for body in wire.bodies()] == [100, 1]

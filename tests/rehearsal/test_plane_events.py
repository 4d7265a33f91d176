"""From the bus through queues into functions, by what was deployed."""

from __future__ import annotations

import json
import socket
import uuid
from urllib.parse import urlsplit

import pytest
from botocore.exceptions import ClientError

from rehearsal.plane.bus import Delivery
from rehearsal.plane.calls import Call
from rehearsal.plane.faults import ANY, FOREVER
from tests.rehearsal.conftest import Stack

pytestmark = [pytest.mark.emulator]


def mark() -> str:
    return uuid.uuid4().hex


def seen(stack: Stack, token: str) -> int:
    """How often the function saw the event that carries `token`."""
    return written(stack).count(token)


def written(stack: Stack) -> str:
    return stack.region.functions.log_text(stack.outputs["Function"])


def emit(stack: Stack, token: str, *, do: str = "", source: str = "work") -> None:
    stack.region.emit({"source": source, "detail-type": "test", "detail": {"token": token, "do": do}})


def test_an_event_reaches_the_deployed_function_once(stack: Stack) -> None:
    token = mark()
    emit(stack, token)
    stack.region.wait(lambda: seen(stack, token), what="the function saw it")
    stack.region.quiet(for_s=0.3)
    assert seen(stack, token) == 1


def test_an_event_that_no_rule_names_goes_nowhere(stack: Stack) -> None:
    token = mark()
    emit(stack, token, source="nobody")
    emit(stack, token + "x")
    stack.region.wait(lambda: seen(stack, token + "x"), what="the next one arrives")
    assert seen(stack, token) == 1  # the longer token holds the shorter one


def test_the_function_has_its_deployed_environment_its_role_and_nothing_of_ours(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LEAK", "from the harness")
    token = mark()
    emit(stack, token, do="whoami")
    stack.region.wait(lambda: "ENV" in written(stack), what="the function's environment")
    log = written(stack)
    names = json.loads(log.split("ENV ", 1)[1].splitlines()[0])
    assert "DEPLOYED" in names
    assert "LEAK" not in names
    assert "plane-FunctionRole" in log.split("ROLE ", 1)[1].splitlines()[0]


@pytest.mark.parametrize("do", ["fail", "raise", "exit"])
def test_what_fails_comes_again_and_ends_in_the_dead_letter_queue(stack: Stack, do: str) -> None:
    token = mark()
    emit(stack, token, do=do)
    stack.region.wait(lambda: any(token in body for body in stack.region.queues.bodies(stack.queue("Dead"))), what=do)
    assert seen(stack, token) >= 3


def test_a_function_that_hangs_is_killed_at_its_deployed_timeout(stack: Stack) -> None:
    before = len(stack.region.functions.invocations)
    token = mark()
    emit(stack, token, do="hang")
    stack.region.wait(
        lambda: any(i.error == "TimedOut" for i in stack.region.functions.invocations[before:]), what="a timeout"
    )
    timed_out = next(i for i in stack.region.functions.invocations[before:] if i.error == "TimedOut")
    assert 1.9 <= timed_out.seconds < 10
    stack.region.wait(
        lambda: any(token in b for b in stack.region.queues.bodies(stack.queue("Dead"))), what="dead letter"
    )


def test_a_queue_that_does_not_permit_the_rule_gets_nothing_and_the_dead_letter_says_why(stack: Stack) -> None:
    token = mark()
    emit(stack, token, source="closed")
    stack.region.wait(
        lambda: any(token in b for b in stack.region.queues.bodies(stack.queue("Dead"))), what="dead letter"
    )
    assert stack.region.queues.waiting(stack.queue("Closed")) == 0
    assert any("ClosedRule" in line for line in stack.region.bus.refused)


def test_a_delivery_that_fails_is_tried_again(stack: Stack) -> None:
    token = mark()
    fault = stack.region.faults.add(
        "sqs", "SendMessage", "ThrottlingException", when=lambda call: call.role == "events"
    )
    emit(stack, token)
    stack.region.wait(lambda: seen(stack, token), what="it arrives after all")
    assert fault.hits == 1


def test_an_unkind_bus_delivers_twice(stack: Stack) -> None:
    token = mark()
    stack.region.bus.delivery = Delivery(duplicates=1.0, jitter_s=0.1)
    try:
        emit(stack, token)
    finally:
        stack.region.bus.delivery = Delivery()
    stack.region.wait(lambda: seen(stack, token) == 2, what="both copies")


def test_clients_may_not_speak_for_aws(stack: Stack) -> None:
    entry = {"Source": "aws.ec2", "DetailType": "x", "Detail": "{}"}
    answer = stack.region.client("events").put_events(Entries=[entry, entry | {"Source": "spotproof.drill"}])
    assert answer["FailedEntryCount"] == 1
    assert answer["Entries"][0]["ErrorCode"] == "NotAuthorizedForSourceException"


def test_a_tick_fires_the_deployed_schedule_with_its_input(stack: Stack) -> None:
    assert any("Minute" in name for name in stack.region.schedules.tick())
    stack.region.wait(lambda: '"tick": "20' in written(stack), what="the tick arrives")


def test_faults_on_the_wire_hit_the_call_that_they_name(stack: Stack) -> None:
    table, client = stack.outputs["Table"], stack.region.client("dynamodb")
    stack.region.faults.add("dynamodb", "PutItem", "ValidationException")
    with pytest.raises(ClientError, match="ValidationException"):
        client.put_item(TableName=table, Item={"pk": {"S": "never"}})
    assert "Item" not in client.get_item(TableName=table, Key={"pk": {"S": "never"}})


def test_an_answer_that_is_lost_took_effect(stack: Stack) -> None:
    table, client = stack.outputs["Table"], stack.region.client("dynamodb")
    key = mark()
    stack.region.faults.lose_answer("dynamodb", "PutItem", when=lambda call: call.params["Item"]["pk"]["S"] == key)
    with pytest.raises(ClientError, match="ConditionalCheckFailed"):
        # botocore tries again by itself, and the second try finds what the first one wrote.
        client.put_item(TableName=table, Item={"pk": {"S": key}}, ConditionExpression="attribute_not_exists(pk)")


def test_a_function_that_is_killed_after_its_call_is_asked_again(stack: Stack) -> None:
    token = mark()
    kills = stack.region.faults.kill_caller("sts", "GetCallerIdentity", when=lambda call: "FunctionRole" in call.role)
    emit(stack, token, do="whoami")
    stack.region.wait(lambda: seen(stack, token) == 2, what="the message comes again")
    crashed = [one for one in stack.region.functions.invocations if token in str(one.event) and one.error]
    assert [one.error for one in crashed] == ["Crashed"]
    stack.region.faults.remove(kills)
    assert kills not in stack.region.faults.rows


def test_a_whole_service_can_be_out_for_some_callers(stack: Stack) -> None:
    row = stack.region.faults.add("sns", ANY, "InternalServerError", times=FOREVER, when=lambda call: bool(call.role))
    assert stack.region.client("sns").list_topics()["Topics"] == []
    assert row.hits == 0
    assert row.meets(Call(service="sns", operation="Publish", params={}, role="somebody"))
    stack.region.faults.remove(row)


def test_a_rewritten_call_loses_its_condition(stack: Stack) -> None:
    table, client = stack.outputs["Table"], stack.region.client("dynamodb")
    key = mark()
    client.put_item(TableName=table, Item={"pk": {"S": key}})
    fault = stack.region.faults.rewrite(
        "dynamodb",
        "PutItem",
        lambda params: {name: value for name, value in params.items() if name != "ConditionExpression"},
        when=lambda call: "ConditionExpression" in call.params and call.params["Item"]["pk"]["S"] == key,
    )
    client.put_item(TableName=table, Item={"pk": {"S": key}}, ConditionExpression="attribute_not_exists(pk)")
    assert fault.hits == 1


def test_a_client_that_dies_in_the_middle_of_a_request_disturbs_nobody(stack: Stack) -> None:
    address = urlsplit(stack.region.functions.endpoints["AWS_ENDPOINT_URL"])
    with socket.create_connection((str(address.hostname), int(address.port or 0))) as connection:
        head = "POST / HTTP/1.1\r\nHost: x\r\nX-Amz-Target: DynamoDB_20120810.GetItem\r\nContent-Length: 500\r\n\r\n"
        connection.sendall(head.encode() + b'{"TableName"')
    stack.region.client("dynamodb").describe_table(TableName=stack.outputs["Table"])
    assert stack.region.problems() == []


def test_every_call_is_recorded_with_who_made_it(stack: Stack) -> None:
    token = mark()
    emit(stack, token, do="whoami")
    stack.region.wait(lambda: seen(stack, token), what="it arrives")

    def is_recorded() -> bool:
        # Nodes of other tests ask the same: the region is the session's.
        return any("FunctionRole" in record.call.role for record in stack.region.calls.of("sts", "GetCallerIdentity"))

    stack.region.wait(is_recorded, what="the function's call is recorded under its role")

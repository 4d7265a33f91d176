"""The guard: a stack with live runs is not destroyed; nothing else about a stack is ever held up by it."""

from __future__ import annotations

import http.server
import json
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from lambdas.decisions import guarding
from lambdas.decisions.guarding import Answer, Asked, AttachedBucket, AttachedTable, Wish
from lambdas.effects.formation import REASON_BYTES, respond
from lambdas.handlers import guard
from spotproof.contract import keys, names
from spotproof.contract.settings import ControlSettings
from spotproof.errors import Unavailable
from spotproof.store.clients import Clients
from spotproof.store.dynamo import DynamoTable
from spotproof.store.live import LiveIndex

STACK, OURS = "team-a", guarding.id_of("team-a")
WHOLE = AttachedBucket(name="b", versioned=True, abort_uploads_days=1, expire_noncurrent_days=1)


def asked(wish: Wish, guard_id: str = OURS) -> Asked:
    return Asked(wish=wish, stack=STACK, guard=guard_id)


# ------------------------------------------------------------------------------------------------ decisions
def test_a_stack_with_live_runs_is_not_destroyed_and_they_are_named_with_the_next_step() -> None:
    answer = guarding.of_deletion(asked(Wish.DELETE), ["b-run", "a-run"])
    assert "team-a is not destroyed, there are 2 live runs: a-run, b-run." in answer.refusal
    assert "`spotproof stop a-run --stack team-a`" in answer.refusal
    assert answer.guard == OURS


def test_a_thousand_live_runs_are_a_short_refusal() -> None:
    refusal = guarding.of_deletion(asked(Wish.DELETE), [f"run-{n:060}" for n in range(1000)]).refusal
    assert "and 990 more" in refusal
    assert len(refusal.encode()) <= REASON_BYTES


def test_without_live_runs_it_may_go() -> None:
    assert guarding.of_deletion(asked(Wish.DELETE), ()) == Answer(guard=OURS)


@pytest.mark.parametrize("guard_id", ["", guarding.NOT_MADE, "team-a-Guard-1XYZ"])
def test_what_a_failed_creation_left_can_always_be_deleted(guard_id: str) -> None:
    assert not guarding.protects(asked(Wish.DELETE, guard_id))
    assert guarding.of_deletion(asked(Wish.DELETE, guard_id), ["run"]) == Answer(guard=guard_id)


def test_an_update_keeps_the_guards_id_and_never_fails() -> None:
    assert guarding.of_making(asked(Wish.UPDATE), ["broken"]) == Answer(guard=OURS)


def test_what_does_not_fit_is_not_attached() -> None:
    answer = guarding.of_making(asked(Wish.CREATE, ""), ["this", "that"])
    assert answer.guard == guarding.NOT_MADE
    assert "this; that" in answer.refusal


@pytest.mark.parametrize(
    ("bucket", "problem"),
    [
        (WHOLE, ""),
        (AttachedBucket(name="b", versioned=False, abort_uploads_days=1, expire_noncurrent_days=0), "not versioned"),
        (AttachedBucket(name="b", versioned=True, abort_uploads_days=0, expire_noncurrent_days=1), "aborts incomplete"),
        (AttachedBucket(name="b", versioned=True, abort_uploads_days=7, expire_noncurrent_days=1), "aborts incomplete"),
        (AttachedBucket(name="b", versioned=True, abort_uploads_days=1, expire_noncurrent_days=0), "noncurrent"),
    ],
)
def test_an_attached_bucket_cleans_up_after_itself(bucket: AttachedBucket, problem: str) -> None:
    found = guarding.problems_of_bucket(bucket)
    assert len(found) == bool(problem)
    assert all(problem in one for one in found)


@pytest.mark.parametrize(
    ("schema", "expires", "count"),
    [((keys.PK, keys.SK), keys.TTL, 0), ((keys.PK,), keys.TTL, 1), (("id", "at"), "", 2)],
)
def test_an_attached_table_has_our_keys(schema: tuple[str, ...], expires: str, count: int) -> None:
    assert len(guarding.problems_of_table(AttachedTable(name="t", keys=schema, expires_by=expires))) == count


# ------------------------------------------------------------------------------------------------ the answer
class Formation:
    """Listens where CloudFormation listens, and keeps what it is told."""

    def __init__(self, status: int = 200) -> None:
        self.told: list[dict[str, Any]] = []
        self.types: list[str | None] = []
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_PUT(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                outer.told.append(json.loads(body))
                outer.types.append(self.headers["Content-Type"])
                self.send_response(status)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - its own name
                """Requests are not news."""

        self.server = http.server.HTTPServer(("127.0.0.1", 0), Handler)

    def request(self, wish: Wish, *, guard_id: str = "", attached: dict[str, str] | None = None) -> dict[str, Any]:
        return {
            "RequestType": wish.value,
            "ResponseURL": f"http://127.0.0.1:{self.server.server_port}/answer?signed=yes",
            "StackId": "arn:stack",
            "RequestId": "request-1",
            "LogicalResourceId": "Guard",
            **({"PhysicalResourceId": guard_id} if guard_id else {}),
            "ResourceProperties": {"ServiceToken": "arn", **({names.GUARD_ATTACHED: attached} if attached else {})},
        }


@contextmanager
def listening(status: int = 200) -> Iterator[Formation]:
    formation = Formation(status)
    thread = threading.Thread(target=formation.server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield formation
    finally:
        formation.server.shutdown()
        formation.server.server_close()
        thread.join(5)


def test_the_answer_echoes_the_request_without_a_content_type() -> None:
    with listening() as formation:
        respond(formation.request(Wish.CREATE), Answer(guard=OURS))
    assert formation.told == [
        {
            "Status": "SUCCESS",
            "Reason": "",
            "PhysicalResourceId": OURS,
            "StackId": "arn:stack",
            "RequestId": "request-1",
            "LogicalResourceId": "Guard",
        }
    ]
    assert formation.types == [""]


def test_an_answer_that_is_not_taken_fails_the_call_so_that_it_is_repeated() -> None:
    with listening(status=403) as formation, pytest.raises(Unavailable, match="answer CloudFormation"):
        respond(formation.request(Wish.CREATE), Answer(guard=OURS))


# ------------------------------------------------------------------------------------------------ on an emulator
@pytest.fixture
def settings(moto_url: str, monkeypatch: pytest.MonkeyPatch) -> ControlSettings:
    name = f"guard-{uuid.uuid4().hex[:12]}"
    made = ControlSettings(
        stack=STACK,
        table=name,
        bucket=name,
        region="us-east-1",
        account="1",
        document="d",
        document_version="1",
        topic="t",
    )
    for key, value in {**made.to_env(), "AWS_ENDPOINT_URL": moto_url, "AWS_REGION": "us-east-1"}.items():
        monkeypatch.setenv(key, value)
    return made


def make_table(name: str, *, ttl: bool = True) -> None:
    client = Clients(region="us-east-1").dynamodb
    client.create_table(
        TableName=name,
        KeySchema=[{"AttributeName": keys.PK, "KeyType": "HASH"}, {"AttributeName": keys.SK, "KeyType": "RANGE"}],
        AttributeDefinitions=[{"AttributeName": one, "AttributeType": "S"} for one in (keys.PK, keys.SK)],
        BillingMode="PAY_PER_REQUEST",
    )
    if ttl:
        given = {"Enabled": True, "AttributeName": keys.TTL}
        client.update_time_to_live(TableName=name, TimeToLiveSpecification=given)


def make_bucket(name: str, *, rules: bool = True) -> None:
    client = Clients(region="us-east-1").s3
    client.create_bucket(Bucket=name)
    client.put_bucket_versioning(Bucket=name, VersioningConfiguration={"Status": "Enabled"})
    if rules:
        rule = {
            "ID": "clean",
            "Status": "Enabled",
            "Filter": {"Prefix": ""},
            "AbortIncompleteMultipartUpload": {"DaysAfterInitiation": 1},
            "NoncurrentVersionExpiration": {"NoncurrentDays": 1},
        }
        client.put_bucket_lifecycle_configuration(Bucket=name, LifecycleConfiguration={"Rules": [rule]})


@pytest.mark.emulator
def test_deletion_reads_every_shard_of_the_index(settings: ControlSettings) -> None:
    make_table(settings.table)
    live = LiveIndex(DynamoTable(Clients(region="us-east-1").dynamodb, settings.table))
    runs = [f"run-{number}" for number in range(8)]
    for run in runs:
        live.hasten(run, due_at=2**33)  # far away, and alive all the same
    with listening() as formation:
        guard.handler(formation.request(Wish.DELETE, guard_id=OURS), None)
        for run in runs:
            live.remove(run)
        guard.handler(formation.request(Wish.DELETE, guard_id=OURS), None)
    refused, allowed = formation.told
    assert refused["Status"] == "FAILED"
    assert all(run in refused["Reason"] for run in runs)
    assert allowed["Status"] == "SUCCESS"


@pytest.mark.emulator
def test_a_table_that_is_gone_has_no_live_runs(settings: ControlSettings) -> None:
    with listening() as formation:
        guard.handler(formation.request(Wish.DELETE, guard_id=OURS), None)
    assert formation.told[0]["Status"] == "SUCCESS"
    assert settings.table


def test_a_table_that_cannot_be_read_is_a_refusal_with_its_reason(
    settings: ControlSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    def denied(*_: Any, **__: Any) -> Any:
        raise Unavailable("no answer", next_step="try again")

    monkeypatch.setattr(LiveIndex, "due", denied)
    with listening() as formation:
        answer = guard.answer_to(formation.request(Wish.DELETE, guard_id=OURS), Clients(), settings)
    assert answer == Answer(guard=OURS, refusal="no answer. Next: try again")


@pytest.mark.emulator
def test_what_is_attached_is_looked_at_when_the_guard_is_made(settings: ControlSettings) -> None:
    make_table(settings.table)
    make_bucket(settings.bucket)
    given = {names.ATTACHED_TABLE: settings.table, names.ATTACHED_BUCKET: settings.bucket}
    with listening() as formation:
        guard.handler(formation.request(Wish.CREATE, attached=given), None)
    assert (formation.told[0]["Status"], formation.told[0]["PhysicalResourceId"]) == ("SUCCESS", OURS)


@pytest.mark.emulator
def test_what_does_not_fit_fails_the_deployment_by_name(settings: ControlSettings) -> None:
    make_table(settings.table, ttl=False)
    make_bucket(settings.bucket, rules=False)
    given = {names.ATTACHED_TABLE: settings.table, names.ATTACHED_BUCKET: settings.bucket}
    with listening() as formation:
        guard.handler(formation.request(Wish.CREATE, attached=given), None)
        guard.handler(formation.request(Wish.DELETE, guard_id=formation.told[0]["PhysicalResourceId"]), None)
    failed, deleted = formation.told
    assert failed["Status"] == "FAILED"
    for words in ("time to live", "aborts incomplete", "noncurrent"):
        assert words in failed["Reason"]
    assert deleted["Status"] == "SUCCESS"


@pytest.mark.emulator
def test_what_is_not_there_cannot_be_attached(settings: ControlSettings) -> None:
    with listening() as formation:
        guard.handler(formation.request(Wish.CREATE, attached={names.ATTACHED_TABLE: settings.table}), None)
    assert formation.told[0]["Status"] == "FAILED"
    assert settings.table in formation.told[0]["Reason"]

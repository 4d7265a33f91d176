"""What no rehearsal can place, a death between two requests, is recorded here: repair's own commit, call by call."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from lambdas.effects.commit import commit
from lambdas.effects.stores import Stores, stores_of
from rehearsal.permissions.derive import derive
from rehearsal.permissions.evaluate import Part, decide, needed, parts_of
from rehearsal.permissions.excuses import EXCUSES
from rehearsal.permissions.requests import Request
from rehearsal.plane.calls import Answered, Call
from spotproof.contract import s3keys
from spotproof.contract.manifest import encode
from spotproof.contract.states import SaveKind
from spotproof.errors import Missing
from spotproof.store.clients import Clients
from spotproof.store.digest import digest_of
from spotproof.store.dynamo import DynamoTable
from spotproof.store.s3 import Checksum, S3Objects
from tests.conformance.makers import generation, part
from tests.synth.policy import WORLD, estate_of
from tests.synth.template import Assembly

pytestmark = pytest.mark.emulator
AS_SENT = {"GetObject": "GET object", "HeadObject": "HEAD object", "PutObject": "PUT object"}
NOW = 1_796_000_000


class Recorder:
    """Every call of two clients, as the rehearsal's plane would have recorded it."""

    def __init__(self) -> None:
        self.calls: list[Answered] = []

    def of(self, client: Any) -> Any:
        for operation in ("provide-client-params", "after-call"):
            client.meta.events.register(f"{operation}.*.*", getattr(self, operation.replace("-", "_")))
        return client

    def provide_client_params(self, params: Any, model: Any, **_: Any) -> None:
        service, operation = model.service_model.service_name, model.name
        if service == "s3":
            params = {"Bucket": params["Bucket"], "Key": params["Key"], "Query": ""}
            operation = AS_SENT[operation]
        self.calls.append(Answered(call=Call(service=service, operation=operation, params=params), status=0))

    def after_call(self, http_response: Any, **_: Any) -> None:
        self.calls[-1] = replace(self.calls[-1], status=http_response.status_code)


@pytest.fixture
def world(moto_url: str, monkeypatch: pytest.MonkeyPatch) -> tuple[Stores, Recorder, str]:
    monkeypatch.setenv("AWS_ENDPOINT_URL", moto_url)
    name, recorder, clients = f"dead-{uuid.uuid4().hex[:12]}", Recorder(), Clients(region="us-east-1")
    clients.dynamodb.create_table(
        TableName=name,
        KeySchema=[{"AttributeName": "pk", "KeyType": "HASH"}, {"AttributeName": "sk", "KeyType": "RANGE"}],
        AttributeDefinitions=[{"AttributeName": key, "AttributeType": "S"} for key in ("pk", "sk")],
        BillingMode="PAY_PER_REQUEST",
    )
    clients.s3.create_bucket(Bucket=name)
    table = DynamoTable(recorder.of(clients.dynamodb), name)
    return stores_of(table, S3Objects(recorder.of(clients.s3), name, checksum=Checksum.CRC32)), recorder, name


def whole_but_uncommitted(stores: Stores) -> None:
    """What a node leaves that dies after it has stored the last part."""
    stores.memberships.seal(generation("r", 1), pointer=None)
    stored = part("r", 1, 40, 0, 1)
    data = encode(stored)
    stores.objects.put(s3keys.part("r", 1, 40, 0), data, digest=digest_of(data))
    stores.checkpoints.add_part(stored, kind=SaveKind.FLUSH, now=NOW)


def requests(recorder: Recorder, rename: Callable[[str], str]) -> list[Request]:
    found = [request for answered in recorder.calls for request in derive(answered, WORLD)]
    return [replace(one, resource=rename(one.resource)) for one in found]


def test_repair_may_do_all_that_its_commit_asks_for_and_needs_all_that_it_has_for_it(
    assembly: Assembly, world: tuple[Stores, Recorder, str]
) -> None:
    stores, recorder, name = world
    whole_but_uncommitted(stores)
    recorder.calls.clear()
    for _ in range(2):  # the second time it finds its own manifest
        commit(stores, run="r", generation=1, step=40, world=1, now=NOW)
    with pytest.raises(Missing):
        commit(stores, run="r", generation=1, step=41, world=1, now=NOW)
    estate = estate_of(assembly)
    own = {f"table/{name}": estate.table, f"s3:::{name}": estate.bucket}

    def rename(arn: str) -> str:
        there, instead = next((there, instead) for there, instead in own.items() if there in arn)
        return instead + arn.partition(there)[2]

    asked, statements = requests(recorder, rename), estate.statements["repair"]
    assert {one.action for one in asked} >= {"s3:PutObject", "s3:ListBucket", "dynamodb:ConditionCheckItem"}
    assert [str(one) for one in asked if not decide(statements, one).allowed] == []
    used = {piece for one in asked for by in decide(statements, one).by for piece in needed(by, one)}
    assert excused(statements) - used == set()


def excused(statements: Any) -> set[Part]:
    """The grants of repair that the rehearsal's list excuses: all of them for this very reason."""
    (sids,) = [one.sids for one in EXCUSES if "CommitInTable" in one.sids]
    found = {piece for one in statements if one.sid in sids for piece in parts_of(one)}
    assert len(found) >= 6
    return found

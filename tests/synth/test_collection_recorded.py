"""What no rehearsal can place, checkpoints of yesterday, is recorded here: a collection's own calls, one by one."""

from __future__ import annotations

import logging
import time
import uuid
from dataclasses import replace
from typing import Any

import pytest

from lambdas.collecting import Collector
from rehearsal.permissions.derive import derive
from rehearsal.permissions.evaluate import decide, needed, parts_of
from rehearsal.plane.calls import Answered, Call
from spotproof.contract import s3keys
from spotproof.contract.manifest import Manifest, encode
from spotproof.contract.names import Function
from spotproof.plan.retention import DAY_S
from spotproof.store.checkpoints import Checkpoints
from spotproof.store.clients import Clients
from spotproof.store.digest import digest_of
from spotproof.store.dynamo import DynamoTable
from spotproof.store.erase import S3Eraser
from spotproof.store.members import Memberships
from spotproof.store.pointer import Pointers
from spotproof.store.s3 import Checksum, S3Objects
from spotproof.store.s3runs import runs_in
from spotproof.store.spec import Specs
from spotproof.store.starts import Stores
from tests.conformance.makers import generation, part
from tests.synth.policy import WORLD, estate_of
from tests.synth.template import Assembly

pytestmark = pytest.mark.emulator
OF_BUCKET = {"ListObjectsV2": ("GET bucket", "list-type=2"), "DeleteObjects": ("POST bucket", "delete=")}
GRANTS = ("ReadWhatIsKept", "ReadSpecs", "ListCheckpoints", "ReadManifests", "Collect")


class Recorder:
    """Every call of two clients, as the rehearsal's plane would have recorded it."""

    def __init__(self) -> None:
        self.calls: list[Answered] = []

    def of(self, client: Any) -> Any:
        client.meta.events.register("provide-client-params.*.*", self.called)
        return client

    def called(self, params: Any, model: Any, **_: Any) -> None:
        service, operation = model.service_model.service_name, model.name
        if service == "s3":
            operation, query = OF_BUCKET.get(operation, ("GET object", ""))
            keys = tuple(one["Key"] for one in params.get("Delete", {}).get("Objects", ()))
            params = {"Bucket": params["Bucket"], "Key": params.get("Key", ""), "Query": query, "Keys": keys}
        self.calls.append(Answered(call=Call(service=service, operation=operation, params=params), status=200))


class World:
    """An emulated bucket with an old run in it."""

    def __init__(self, name: str, recorder: Recorder) -> None:
        clients = Clients(region="us-east-1")
        clients.dynamodb.create_table(
            TableName=name,
            KeySchema=[{"AttributeName": "pk", "KeyType": "HASH"}, {"AttributeName": "sk", "KeyType": "RANGE"}],
            AttributeDefinitions=[{"AttributeName": key, "AttributeType": "S"} for key in ("pk", "sk")],
            BillingMode="PAY_PER_REQUEST",
        )
        clients.s3.create_bucket(Bucket=name)
        table, self.s3 = DynamoTable(clients.dynamodb, name), clients.s3
        self.objects = S3Objects(clients.s3, name, checksum=Checksum.CRC32)
        memberships = Memberships(table)
        memberships.seal(generation("r", 1), pointer=None)
        for step in range(1, 6):
            self._commit(step)
        for key in (s3keys.blob("r", "c" * 64), s3keys.blob("r", "0" * 64), "runs/r/other", "runs/Not a run/x"):
            self.objects.put(key, b"x", digest=digest_of(b"x"))
        for client in (clients.dynamodb, clients.s3):
            recorder.of(client)
        self.collector = Collector(
            runs=lambda: runs_in(clients.s3, name),
            stores=Stores(
                objects=self.objects,
                checkpoints=Checkpoints(table),
                pointers=Pointers(table),
                memberships=memberships,
            ),
            specs=Specs(table),
            eraser=S3Eraser(clients.s3, name),
            log=logging.getLogger("collection"),
            clock=lambda: time.time() + 30 * DAY_S,
        )

    def _commit(self, step: int) -> None:
        one = part("r", 1, step, 0, 1)
        manifest = encode(Manifest(run="r", generation=1, step=step, world=1, parts=(one,)))
        for key, data in ((s3keys.part("r", 1, step, 0), encode(one)), (s3keys.manifest("r", 1, step), manifest)):
            self.objects.put(key, data, digest=digest_of(data))


def test_a_collection_may_do_all_that_it_asks_for_and_needs_all_that_it_has(
    assembly: Assembly, moto_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", moto_url)
    recorder, name = Recorder(), f"old-{uuid.uuid4().hex[:12]}"
    world = World(name, recorder)
    done = world.collector.collect(until=time.time() + 40 * DAY_S)
    left = {info.key for info in world.objects.list("runs/")}
    assert done["runs"] == 1
    assert {s3keys.order_of(key) for key in left} - {None} == {(1, step) for step in (3, 4, 5)}
    assert {s3keys.blob("r", "c" * 64), "runs/r/other", "runs/Not a run/x"} <= left
    assert s3keys.blob("r", "0" * 64) not in left
    estate = estate_of(assembly)
    statements = estate.statements[Function.COLLECT]
    own = {f"table/{name}": estate.table, f"s3:::{name}": estate.bucket}

    def rename(arn: str) -> str:
        there, instead = next((there, instead) for there, instead in own.items() if there in arn)
        return instead + arn.partition(there)[2]

    derived = [request for answered in recorder.calls for request in derive(answered, WORLD)]
    asked = [replace(one, resource=rename(one.resource)) for one in derived]
    assert [str(one) for one in asked if not decide(statements, one).allowed] == []
    used = {piece for one in asked for by in decide(statements, one).by for piece in needed(by, one)}
    granted = {piece for one in statements if one.sid in GRANTS for piece in parts_of(one)}
    assert granted - used == set()

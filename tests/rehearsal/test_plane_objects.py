"""The object server and the wire in front of it."""

from __future__ import annotations

from typing import Any

import boto3
import pytest
from botocore.config import Config
from botocore.exceptions import ClientError, HTTPClientError

from rehearsal.plane.object_faults import ObjectFault, ObjectKind
from spotproof.errors import Denied
from spotproof.store.digest import digest_of
from spotproof.store.objects import PutOutcome
from spotproof.store.s3 import S3Objects
from spotproof.store.sender import Sender, address_of
from tests.rehearsal.conftest import Stack

pytestmark = [pytest.mark.emulator]


def client(stack: Stack, *, secret: str = "", attempts: int = 1) -> Any:
    """S3 as a node sees it: through the proxy, with the deployed role's keys."""
    role = stack.region.deployed.get("plane", "NodeRole")
    assert role is not None
    keys = stack.region.account.assume(role.model.arn, "test")
    return boto3.client(
        "s3",
        endpoint_url=stack.region.functions.endpoints["AWS_ENDPOINT_URL_S3"],
        region_name="us-east-1",
        aws_access_key_id=keys.access_key,
        aws_secret_access_key=secret or keys.secret_key,
        aws_session_token=keys.token,
        config=Config(retries={"total_max_attempts": attempts}),
    )


def test_the_deployed_bucket_is_there_with_its_versioning_and_lifecycle(stack: Stack) -> None:
    s3, bucket = stack.region.client("s3"), stack.outputs["Bucket"]
    assert s3.get_bucket_versioning(Bucket=bucket)["Status"] == "Enabled"
    assert [r["ID"] for r in s3.get_bucket_lifecycle_configuration(Bucket=bucket)["Rules"]] == ["parts"]


def test_the_second_creator_of_a_key_loses(stack: Stack) -> None:
    s3, bucket = client(stack), stack.outputs["Bucket"]
    s3.put_object(Bucket=bucket, Key="once", Body=b"1", IfNoneMatch="*")
    with pytest.raises(ClientError, match="PreconditionFailed"):
        s3.put_object(Bucket=bucket, Key="once", Body=b"2", IfNoneMatch="*")


def test_a_wrong_checksum_is_refused_by_the_server(stack: Stack) -> None:
    with pytest.raises(ClientError, match="BadDigest"):
        client(stack).put_object(Bucket=stack.outputs["Bucket"], Key="bad", Body=b"x", ChecksumCRC64NVME="AAAAAAAAAAA=")


def test_an_uploaders_sender_is_understood_and_judged_like_any_client(stack: Stack) -> None:
    bucket, keys = stack.outputs["Bucket"], client(stack)._request_signer._credentials.get_frozen_credentials()
    found = {"keys": keys}
    sender = Sender(
        address=lambda: address_of(client(stack), bucket), region="us-east-1", find_credentials=lambda _: found["keys"]
    )
    objects = S3Objects(client(stack), bucket, sender=sender)
    assert objects.put_if_absent("sent", b"1", digest=digest_of(b"1")) is PutOutcome.CREATED
    assert objects.put_if_absent("sent", b"1", digest=digest_of(b"1")) is PutOutcome.SAME
    stack.region.object_faults.add(ObjectFault(kind=ObjectKind.ALTER, method="PUT", key="^al", alter=lambda _: b"x"))
    objects.put("altered", memoryview(b"whole"), digest=digest_of(b"whole"))
    assert objects.get("altered", digest=digest_of(b"whole")) == b"whole"
    found["keys"] = keys._replace(secret_key="guessed")
    with pytest.raises(Denied, match="SignatureDoesNotMatch"):
        objects.put("sent", b"2", digest=digest_of(b"2"))
    sender.close()


def test_a_wrong_secret_is_refused(stack: Stack) -> None:
    with pytest.raises(ClientError, match="SignatureDoesNotMatch"):
        client(stack, secret="guessed").put_object(Bucket=stack.outputs["Bucket"], Key="x", Body=b"x")


def test_keys_with_unusual_characters_keep_their_name(stack: Stack) -> None:
    s3, key = client(stack), "a b/ü+%41=&?x"
    s3.put_object(Bucket=stack.outputs["Bucket"], Key=key, Body=b"1")
    assert key in list(stack.region.objects.keys(stack.outputs["Bucket"], "a b/"))


def test_transfers_are_recorded_with_the_role(stack: Stack) -> None:
    client(stack).put_object(Bucket=stack.outputs["Bucket"], Key="recorded", Body=b"1")
    records = [r for r in stack.region.calls.of("s3", "PUT object") if r.call.params["Key"] == "recorded"]
    assert "NodeRole" in records[0].call.role


@pytest.mark.parametrize(
    ("kind", "stored"), [(ObjectKind.DROP, False), (ObjectKind.LOSE_ANSWER, True), (ObjectKind.ERROR, False)]
)
def test_a_fault_fails_the_transfer_before_or_after_it_took_effect(
    stack: Stack, kind: ObjectKind, stored: bool
) -> None:
    key = f"fault-{kind}"
    stack.region.object_faults.add(ObjectFault(kind=kind, method="PUT", key=f"^{key}$"))
    with pytest.raises((ClientError, HTTPClientError)):
        client(stack).put_object(Bucket=stack.outputs["Bucket"], Key=key, Body=b"1")
    assert (key in list(stack.region.objects.keys(stack.outputs["Bucket"], "fault-"))) is stored


def test_a_lying_server_answers_success_and_stores_nothing(stack: Stack) -> None:
    stack.region.object_faults.add(ObjectFault(kind=ObjectKind.SWALLOW, method="PUT", key="^lie$"))
    client(stack).put_object(Bucket=stack.outputs["Bucket"], Key="lie", Body=b"1")
    assert "lie" not in list(stack.region.objects.keys(stack.outputs["Bucket"], "lie"))


def test_a_transient_fault_is_absorbed_by_a_client_that_tries_again(stack: Stack) -> None:
    fault = stack.region.object_faults.add(ObjectFault(kind=ObjectKind.ERROR, method="PUT", key="^again$"))
    client(stack, attempts=3).put_object(Bucket=stack.outputs["Bucket"], Key="again", Body=b"1")
    assert fault.hits == 1


def test_skip_spares_the_first_transfers(stack: Stack) -> None:
    stack.region.object_faults.add(ObjectFault(kind=ObjectKind.ERROR, method="PUT", key="^k$", skip=2))
    s3 = client(stack)
    for _ in range(2):
        s3.put_object(Bucket=stack.outputs["Bucket"], Key="k", Body=b"1")
    with pytest.raises(ClientError, match="SlowDown"):
        s3.put_object(Bucket=stack.outputs["Bucket"], Key="k", Body=b"1")


def test_damage_changes_one_byte_and_keeps_the_size(stack: Stack) -> None:
    s3, bucket = client(stack), stack.outputs["Bucket"]
    s3.put_object(Bucket=bucket, Key="whole", Body=b"abcdef")
    stack.region.objects.damage(bucket, "whole")
    there = s3.get_object(Bucket=bucket, Key="whole")["Body"].read()
    assert len(there) == 6
    assert sum(a != b for a, b in zip(there, b"abcdef", strict=True)) == 1

"""What only the real bucket can show: pages, checksums, and an object that another tool wrote or damaged."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from spotproof.errors import Damaged, Denied, Missing
from spotproof.store.digest import digest_of
from spotproof.store.objects import Objects, PutOutcome
from spotproof.store.s3 import Checksum, S3Objects
from tests.conformance.conftest import BUCKET, MOTO, SEAWEEDFS, client_for

pytestmark = pytest.mark.emulator
Bucket = tuple[Any, Objects]


@pytest.fixture(params=[MOTO, SEAWEEDFS])
def bucket(request: pytest.FixtureRequest, emulated_bucket: Callable[[str], Bucket]) -> Bucket:
    return emulated_bucket(request.param)


@pytest.fixture
def checking_bucket(emulated_bucket: Callable[[str], Bucket]) -> Bucket:
    """The one emulator that verifies what it is sent."""
    return emulated_bucket(SEAWEEDFS)


def test_a_listing_reads_every_page(bucket: Bucket, run: str) -> None:
    client, objects = bucket
    keys = [f"runs/{run}/blobs/{number:03d}" for number in range(7)]
    for key in keys:
        objects.put(key, b"", digest=digest_of(b""))
    pages: list[int] = []

    def two_a_page(params: dict[str, Any], **_: Any) -> None:
        params["MaxKeys"] = 2
        pages.append(1)

    client.meta.events.register("provide-client-params.s3.ListObjectsV2", two_a_page, unique_id="two-a-page")
    try:
        assert [entry.key for entry in objects.list(f"runs/{run}/")] == keys
    finally:
        client.meta.events.unregister("provide-client-params.s3.ListObjectsV2", unique_id="two-a-page")
    assert len(pages) == 4


def test_an_object_of_another_tool_is_compared_by_its_bytes(bucket: Bucket, run: str) -> None:
    client, objects = bucket
    client.put_object(Bucket=BUCKET, Key=f"runs/{run}/a", Body=b"ours after all")
    same, other = b"ours after all", b"not these"
    assert objects.put_if_absent(f"runs/{run}/a", same, digest=digest_of(same)) is PutOutcome.SAME
    assert objects.put_if_absent(f"runs/{run}/a", other, digest=digest_of(other)) is PutOutcome.DIFFERENT
    assert objects.read(f"runs/{run}/a") == same


def test_reading_checks_the_digest_that_was_stored_beside(bucket: Bucket, run: str) -> None:
    client, objects = bucket
    client.put_object(Bucket=BUCKET, Key=f"runs/{run}/a", Body=b"rotten", Metadata={"blake3": digest_of(b"fresh")})
    with pytest.raises(Damaged):
        objects.read(f"runs/{run}/a")


def test_a_body_damaged_on_the_way_is_not_stored(checking_bucket: Bucket, run: str) -> None:
    client, objects = checking_bucket

    def flip(request: Any, **_: Any) -> None:
        if request.method == "PUT":
            body = request.body if isinstance(request.body, bytes) else request.body.read()
            request.body = body.replace(b"payload", b"pAyload")

    client.meta.events.register("before-send.s3", flip, unique_id="flip")
    body, soon = b"the payload of a chunk", time.monotonic() + 1.0  # damage on the way is worth another try until then
    try:
        with pytest.raises(Exception, match=r"BadDigest|XAmzContent|Checksum"):
            objects.put(f"runs/{run}/a", body, digest=digest_of(body), until=soon)
    finally:
        client.meta.events.unregister("before-send.s3", unique_id="flip")
    assert objects.head(f"runs/{run}/a") is None


def test_the_checksum_of_a_function_without_awscrt_works_too(bucket: Bucket, run: str) -> None:
    client, _ = bucket
    objects = S3Objects(client, BUCKET, checksum=Checksum.CRC32)
    assert objects.put_if_absent(f"runs/{run}/a", b"x", digest=digest_of(b"x")) is PutOutcome.CREATED
    assert objects.get(f"runs/{run}/a", digest=digest_of(b"x")) == b"x"


def test_a_bucket_that_is_not_there_is_missing_and_wrong_credentials_are_denied(
    checking_bucket: Bucket, seaweedfs_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    client, _ = checking_bucket
    with pytest.raises(Missing, match="no-such-bucket"):
        list(S3Objects(client, "no-such-bucket").list("runs/"))
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
    with pytest.raises(Denied):
        S3Objects(client_for("s3", seaweedfs_url), BUCKET).put("runs/x", b"", digest=digest_of(b""))

"""What every bucket promises, on each of them."""

from __future__ import annotations

import threading
import time

import pytest

from spotproof.errors import Damaged, Missing
from spotproof.store.digest import digest_of
from spotproof.store.objects import Objects, PutOutcome

EMPTY, SMALL, BINARY = b"", b'{"step": 1}', bytes(range(256)) * 5000


def put(objects: Objects, key: str, data: bytes) -> PutOutcome:
    return objects.put_if_absent(key, data, digest=digest_of(data))


@pytest.mark.parametrize("data", [EMPTY, SMALL, BINARY], ids=["empty", "small", "binary"])
def test_what_was_put_comes_back(objects: Objects, run: str, data: bytes) -> None:
    key = f"runs/{run}/blobs/{digest_of(data)}"
    objects.put(key, data, digest=digest_of(data))
    assert objects.get(key, digest=digest_of(data)) == data
    assert objects.read(key) == data
    target = bytearray(len(data))
    objects.get_into(key, memoryview(target), digest=digest_of(data))
    assert target == data


@pytest.mark.parametrize("kind", [bytearray, memoryview])
def test_any_buffer_can_be_put(objects: Objects, run: str, kind: type[bytearray | memoryview]) -> None:
    objects.put(f"runs/{run}/a", kind(BINARY), digest=digest_of(BINARY))
    assert objects.put_if_absent(f"runs/{run}/b", kind(SMALL), digest=digest_of(SMALL)) is PutOutcome.CREATED
    assert objects.read(f"runs/{run}/a") == BINARY
    assert objects.read(f"runs/{run}/b") == SMALL


def test_a_put_replaces(objects: Objects, run: str) -> None:
    key = f"runs/{run}/a"
    objects.put(key, BINARY, digest=digest_of(BINARY))
    objects.put(key, SMALL, digest=digest_of(SMALL))
    assert objects.get(key, digest=digest_of(SMALL)) == SMALL


def test_a_put_if_absent_never_overwrites_and_says_what_is_there(objects: Objects, run: str) -> None:
    key = f"runs/{run}/checkpoints/00000001-000000000005/manifest.json"
    assert put(objects, key, SMALL) is PutOutcome.CREATED
    assert put(objects, key, SMALL) is PutOutcome.SAME
    assert put(objects, key, BINARY) is PutOutcome.DIFFERENT
    assert objects.read(key) == SMALL


def test_bytes_without_the_promised_digest_are_damaged(objects: Objects, run: str) -> None:
    key = f"runs/{run}/blobs/{digest_of(BINARY)}"
    torn = BINARY[:-1]
    objects.put(key, torn, digest=digest_of(torn))
    with pytest.raises(Damaged, match=key):
        objects.get(key, digest=digest_of(BINARY))
    for size in (len(BINARY), len(torn), 0):
        with pytest.raises(Damaged, match=key):
            objects.get_into(key, memoryview(bytearray(size)), digest=digest_of(BINARY))
    objects.get_into(key, memoryview(bytearray(len(torn))), digest=digest_of(torn))  # the connections are whole


def test_what_is_not_there_is_missing(objects: Objects, run: str) -> None:
    with pytest.raises(Missing, match="nothing"):
        objects.get(f"runs/{run}/nothing", digest=digest_of(b""))
    with pytest.raises(Missing, match="nothing"):
        objects.get_into(f"runs/{run}/nothing", memoryview(bytearray(1)), digest=digest_of(b""))
    with pytest.raises(Missing):
        objects.read(f"runs/{run}/nothing")
    assert objects.head(f"runs/{run}/nothing") is None
    assert list(objects.list(f"runs/{run}/")) == []


def test_head_tells_size_and_time(objects: Objects, run: str) -> None:
    objects.put(f"runs/{run}/a", BINARY, digest=digest_of(BINARY))
    found = objects.head(f"runs/{run}/a")
    assert found is not None
    assert found.bytes == len(BINARY)
    assert abs(found.modified_at - time.time()) < 60
    assert objects.head(f"runs/{run}") is None


def test_a_listing_is_in_key_order_and_only_of_the_prefix(objects: Objects, run: str) -> None:
    keys = [f"runs/{run}/checkpoints/{n:08d}-{n:012d}/part-00000.json" for n in (3, 1, 2, 10)]
    for key in (*keys, f"runs/{run}/blobs/x", f"runs/{run}x/checkpoints/y"):
        objects.put(key, SMALL, digest=digest_of(SMALL))
    listed = list(objects.list(f"runs/{run}/checkpoints/"))
    assert [entry.key for entry in listed] == sorted(keys)
    assert {entry.bytes for entry in listed} == {len(SMALL)}
    assert [entry.key for entry in objects.list(f"runs/{run}/checkpoints/00000001")] == [keys[1]]
    assert len(list(objects.list(f"runs/{run}/"))) == 5


def test_of_several_creators_exactly_one_creates(objects: Objects, run: str) -> None:
    """Different bytes under one name: one wins, all others are told so, and the winner's bytes stand."""
    key, outcomes, together = f"runs/{run}/manifest.json", {}, threading.Barrier(4)

    def create(number: int) -> None:
        data = SMALL + str(number).encode()
        together.wait()
        outcomes[number] = put(objects, key, data)

    threads = [threading.Thread(target=create, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    winners = [number for number, outcome in outcomes.items() if outcome is PutOutcome.CREATED]
    assert len(winners) == 1
    assert [outcome for outcome in outcomes.values() if outcome is PutOutcome.DIFFERENT] == [PutOutcome.DIFFERENT] * 3
    assert objects.read(key) == SMALL + str(winners[0]).encode()

"""Chunks go out while later ones are still being hashed; what the bucket has taken is not sent again."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from spotproof.checkpoint import describing
from spotproof.checkpoint.chunks import digest
from spotproof.checkpoint.commit import make_part
from spotproof.checkpoint.content import Content
from spotproof.checkpoint.describing import Describing
from spotproof.errors import Unavailable
from tests.fakes.checkpoints import RUN, Rig, save_of

IMAGE = b"".join(bytes([number]) * 1000 for number in (1, 2, 1, 3, 4))


def content(image: bytes = IMAGE) -> Content:
    return Content(image=memoryview(image), layout=b"{}", metadata=b"m", chunk_bytes=1000)


def described(image: bytes = IMAGE) -> Describing:
    return Describing(save_of(5), content(image), image_name="image")


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Semaphore]:
    """Each digest waits for a permit."""
    permits = threading.Semaphore(0)

    def slow(data: bytes | memoryview) -> str:
        permits.acquire()
        return digest(data)

    monkeypatch.setattr(describing, "digest", slow)
    yield permits
    permits.release(100)


def test_it_describes_what_make_part_describes() -> None:
    with described() as source:
        part = source.part()
        pieces = [(chunk, bytes(data)) for chunk, data in source.pieces()]
    assert part == make_part(save_of(5), content(), image_name="image")
    assert pieces[:5] == [(chunk, IMAGE[n * 1000 : n * 1000 + 1000]) for n, chunk in enumerate(part.image.chunks)]
    assert [data for _, data in pieces[5:]] == [b"{}", b"m"]


def test_an_image_of_no_bytes_and_no_metadata_is_described_too() -> None:
    nothing = Content(image=memoryview(b""), layout=b"{}", metadata=b"", chunk_bytes=10)
    with Describing(save_of(5), nothing, image_name="image") as source:
        assert source.part().image.bytes == 0
        assert source.part().metadata is None


def test_the_first_chunk_is_there_before_the_last_is_hashed(held: threading.Semaphore) -> None:
    with described() as source:
        pieces = source.pieces()
        held.release()
        assert bytes(next(pieces)[1]) == IMAGE[:1000]
        held.release(6)
        assert len(list(pieces)) == 6


def test_it_can_be_left_before_everything_is_hashed(held: threading.Semaphore) -> None:
    with described() as source:
        held.release(2)
        pieces = source.pieces()
        next(pieces)
        held.release(100)
    assert source._thread is not None
    assert not source._thread.is_alive()


def test_a_failure_of_the_hashing_is_everybodys(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: object) -> str:
        raise MemoryError("none left")

    monkeypatch.setattr(describing, "digest", fail)
    with described() as source:
        with pytest.raises(MemoryError):
            list(source.pieces())
        with pytest.raises(MemoryError):
            source.part()


def test_each_chunk_is_sent_once_and_a_second_try_sends_only_what_is_missing(rig: Rig) -> None:
    rig.objects.fails = lambda number, key: number == 3 and "/blobs/" in key
    with described() as source:
        with pytest.raises(Unavailable):
            rig.committer().commit_from(source)
        tried = len(rig.objects.puts)
        assert rig.committer().commit_from(source).manifest is not None
    blobs = [key for key in rig.objects.puts if "/blobs/" in key]
    assert tried >= 3
    assert len(blobs) - len(set(blobs)) == 1  # the one that failed
    assert len(set(blobs)) == 6  # five chunks, of which two are equal, layout and metadata
    rig.assert_pointer_names_whole_data()


def test_only_what_the_newest_manifest_lists_is_skipped(rig: Rig) -> None:
    """A frozen half is found by its digests; an object that merely exists is put again."""
    frozen, first, second = bytes([9]) * 3000, bytes([1]) * 2000, bytes([2]) * 2000
    rig.commit(1, frozen + first)
    rig.objects.put(f"runs/{RUN}/blobs/{digest(second[:1000])}", b"torn", digest="d")
    rig.objects.puts.clear()
    committed = rig.commit(2, frozen + second)
    blobs = [key for key in rig.objects.puts if "/blobs/" in key]
    assert f"runs/{RUN}/blobs/{digest(second[:1000])}" in blobs
    assert f"runs/{RUN}/blobs/{digest(frozen[:1000])}" not in blobs
    assert committed.sent_bytes < 2000
    rig.assert_pointer_names_whole_data()


def test_keys_are_spread_from_their_first_character_on(rig: Rig) -> None:
    """S3 splits a busy prefix by the characters that follow: any of them must be able to come first."""
    with described(b"".join(number.to_bytes(2, "big") * 500 for number in range(400))) as source:
        firsts = {chunk.digest[0] for chunk, _ in source.pieces()}
    assert firsts == set("0123456789abcdef")

from __future__ import annotations

import pytest

from spotproof.checkpoint.chunks import MIB, chunk_bytes_for, digest, file_digest, file_of, placed
from spotproof.store.digest import digest_of


@pytest.mark.parametrize(("gbit_s", "mib"), [(0.1, 8), (2.5, 8), (5, 16), (10, 32), (25, 64), (100, 64)])
def test_chunks_grow_with_the_network(gbit_s: float, mib: int) -> None:
    assert chunk_bytes_for(gbit_s * 1e9 / 8) == mib * MIB


def test_a_file_is_the_concatenation_of_its_chunks() -> None:
    data = bytes(range(256)) * 10
    file = file_of("image", memoryview(data), chunk_bytes=1000)
    assert [chunk.bytes for chunk in file.chunks] == [1000, 1000, 560]
    assert [offset for offset, _ in placed(file)] == [0, 1000, 2000]
    assert [chunk.digest for chunk in file.chunks] == [digest_of(data[at : at + 1000]) for at in (0, 1000, 2000)]


def test_many_threads_and_one_agree_on_a_digest() -> None:
    data = bytes(3 * MIB)
    assert digest(data) == digest_of(data)


def test_an_empty_file_has_no_chunks() -> None:
    assert file_of("empty", memoryview(b""), chunk_bytes=10).chunks == ()


def test_the_digest_of_a_file_changes_with_order_and_content() -> None:
    one = file_of("x", memoryview(b"abcd"), chunk_bytes=2)
    other = file_of("x", memoryview(b"cdab"), chunk_bytes=2)
    assert file_digest(one) != file_digest(other)

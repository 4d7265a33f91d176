"""blake3 in plain Python is blake3."""

from __future__ import annotations

import random
import sys

import pytest
from blake3 import blake3

from spotproof.store.blake3_pure import blake3_hex
from spotproof.store.digest import digest_of

# Around a block, a chunk, and trees of two to nine chunks, whole and not.
SIZES = [0, 1, 63, 64, 65, 1023, 1024, 1025, 2048, 2049, 3072, 3073, 4096, 4097, 8192, 8193, 9216]


@pytest.mark.parametrize("size", SIZES)
def test_the_plain_one_equals_the_wheel(size: int) -> None:
    data = random.Random(size).randbytes(size)
    assert blake3_hex(data) == blake3(data).hexdigest() == digest_of(data)


def test_any_buffer_has_the_digest_of_its_bytes() -> None:
    data = b"some bytes"
    assert digest_of(bytearray(data)) == digest_of(memoryview(data)) == digest_of(data)


def test_a_process_without_the_wheel_gets_the_same_digest(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = digest_of(b"x" * 3000)
    monkeypatch.setitem(sys.modules, "blake3", None)
    assert digest_of(memoryview(b"x" * 3000)) == expected

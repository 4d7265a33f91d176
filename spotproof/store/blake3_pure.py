"""BLAKE3 (hash mode, 32 bytes) in plain Python, after the specification's reference implementation.

For processes whose package must run on any machine, on data of some KB: about 5,000 times slower than the wheel,
and equal to it (tests compare them).
"""

from __future__ import annotations

import struct
from typing import Final

__all__ = ["blake3_hex"]

_IV: Final = (
    0x6A09E667, 0xBB67AE85, 0x3C6EF372, 0xA54FF53A, 0x510E527F, 0x9B05688C, 0x1F83D9AB, 0x5BE0CD19,
)  # fmt: skip
_PERMUTATION: Final = (2, 6, 3, 10, 7, 0, 4, 13, 1, 11, 12, 5, 9, 14, 15, 8)
_MIXES: Final = (
    (0, 4, 8, 12), (1, 5, 9, 13), (2, 6, 10, 14), (3, 7, 11, 15),
    (0, 5, 10, 15), (1, 6, 11, 12), (2, 7, 8, 13), (3, 4, 9, 14),
)  # fmt: skip
_MASK: Final = 0xFFFFFFFF
_CHUNK_BYTES: Final = 1024
_BLOCK_BYTES: Final = 64
_CHUNK_START, _CHUNK_END, _PARENT, _ROOT = 1, 2, 4, 8

_Words = tuple[int, ...]


def blake3_hex(data: bytes) -> str:
    """Return the digest of `data` as 64 hex digits."""
    return struct.pack("<8I", *_tree(data, 0, _ROOT)).hex()


def _tree(data: bytes, first_chunk: int, root: int) -> _Words:
    """Return the chaining value of the subtree over `data`, whose first chunk has this number."""
    if len(data) <= _CHUNK_BYTES:
        return _chunk(data, first_chunk, root)
    # The left subtree is the largest complete one that leaves at least a byte for the right one.
    left_chunks = 1 << ((len(data) - 1) // _CHUNK_BYTES).bit_length() - 1
    cut = left_chunks * _CHUNK_BYTES
    left = _tree(data[:cut], first_chunk, 0)
    right = _tree(data[cut:], first_chunk + left_chunks, 0)
    return _compress(_IV, left + right, 0, _BLOCK_BYTES, _PARENT | root)


def _chunk(data: bytes, number: int, root: int) -> _Words:
    chaining: _Words = _IV
    blocks = max(1, -(-len(data) // _BLOCK_BYTES))
    for index in range(blocks):
        block = data[index * _BLOCK_BYTES : (index + 1) * _BLOCK_BYTES]
        flags = (_CHUNK_START if index == 0 else 0) | (_CHUNK_END | root if index == blocks - 1 else 0)
        words = struct.unpack("<16I", block.ljust(_BLOCK_BYTES, b"\0"))
        chaining = _compress(chaining, words, number, len(block), flags)
    return chaining


def _compress(chaining: _Words, block: _Words, counter: int, block_bytes: int, flags: int) -> _Words:
    state = [*chaining, *_IV[:4], counter & _MASK, counter >> 32 & _MASK, block_bytes, flags]
    for _ in range(7):
        for (a, b, c, d), x, y in zip(_MIXES, block[::2], block[1::2], strict=True):
            _mix(state, (a, b, c, d), x, y)
        block = tuple(block[index] for index in _PERMUTATION)
    return tuple(state[index] ^ state[index + 8] for index in range(8))


def _mix(state: list[int], places: tuple[int, int, int, int], x: int, y: int) -> None:
    a, b, c, d = places
    state[a] = state[a] + state[b] + x & _MASK
    state[d] = _rotated(state[d] ^ state[a], 16)
    state[c] = state[c] + state[d] & _MASK
    state[b] = _rotated(state[b] ^ state[c], 12)
    state[a] = state[a] + state[b] + y & _MASK
    state[d] = _rotated(state[d] ^ state[a], 8)
    state[c] = state[c] + state[d] & _MASK
    state[b] = _rotated(state[b] ^ state[c], 7)


def _rotated(word: int, by: int) -> int:
    return (word >> by | word << 32 - by) & _MASK

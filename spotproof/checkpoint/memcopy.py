"""Bytes from many places to many places with hardly any Python: what the copier thread runs while training goes on.

Large pieces go by memmove; small ones a thousand at a time by one system call that reads this process's own memory.
Both let go of the interpreter's lock. Where the system call is forbidden (an old container runtime), memmove does all.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

_LARGE: Final = 256 * 1024  # from here on the lock costs less than the kernel's copying does
_BATCH: Final = 1024  # IOV_MAX
_SAMPLE: Final = 64  # bytes that are looked at ...
_SAMPLE_EVERY: Final = 256 * 1024  # ... in every so many, and at least at one place of each piece


class _Iovec(ctypes.Structure):
    _fields_ = (("base", ctypes.c_void_p), ("length", ctypes.c_size_t))


def _system_call() -> Any:  # Any: a C function, or None where the C library has none
    call = getattr(ctypes.CDLL(None, use_errno=True), "process_vm_readv", None)
    if call is not None:
        call.restype = ctypes.c_ssize_t
        unsigned, pointer = ctypes.c_ulong, ctypes.c_void_p
        call.argtypes = (ctypes.c_int, pointer, unsigned, pointer, unsigned, unsigned)
    return call


_READ: Final = _system_call()


@dataclass(frozen=True, slots=True)
class Piece:
    """`length` bytes at address `source` that belong to address `target`. Both stay mapped while a Mover has them."""

    target: int
    source: int
    length: int


class Mover:
    """Copies its pieces as often as it is asked to; made once for pieces that stay where they are."""

    def __init__(self, pieces: Sequence[Piece]) -> None:
        self._large = [piece for piece in pieces if piece.length >= _LARGE]
        self._small = _Gather([piece for piece in pieces if 0 < piece.length < _LARGE])
        samples = [(index, *sample) for index, piece in enumerate(pieces) for sample in _samples(piece)]
        self._seen = ctypes.create_string_buffer(max(1, sum(length for _, _, length in samples)))
        at, placed = ctypes.addressof(self._seen), []
        for _, source, length in samples:
            placed.append(Piece(at, source, length))
            at += length
        self._sampled = _Gather(placed)
        self._owners = [(index, length) for index, _, length in samples]

    def move(self) -> None:
        """Copy everything."""
        for piece in self._large:
            ctypes.memmove(piece.target, piece.source, piece.length)
        self._small.move()

    def sample(self) -> bytes:
        """Some bytes of every source: two answers that differ mean that a source was written to in between."""
        self._sampled.move()
        return self._seen.raw

    def differs(self, before: bytes, after: bytes) -> int | None:
        """The index of the first piece whose samples differ."""
        if before == after:
            return None
        at = 0
        for index, length in self._owners:
            if before[at : at + length] != after[at : at + length]:
                return index
            at += length
        return None


class _Gather:
    """Small pieces, moved together."""

    def __init__(self, pieces: Sequence[Piece]) -> None:
        self._batches = [pieces[first : first + _BATCH] for first in range(0, len(pieces), _BATCH)]
        self._lengths = [sum(piece.length for piece in batch) for batch in self._batches]
        self._to = (_Iovec * len(pieces))(*[_Iovec(piece.target, piece.length) for piece in pieces])
        self._from = (_Iovec * len(pieces))(*[_Iovec(piece.source, piece.length) for piece in pieces])

    def move(self) -> None:
        for index, batch in enumerate(self._batches):
            if not self._read(index * _BATCH, len(batch), self._lengths[index]):
                for piece in batch:
                    ctypes.memmove(piece.target, piece.source, piece.length)

    def _read(self, first: int, count: int, length: int) -> bool:
        """Whether the kernel copied the whole batch."""
        if _READ is None:
            return False
        skipped = first * ctypes.sizeof(_Iovec)
        to, source = ctypes.addressof(self._to) + skipped, ctypes.addressof(self._from) + skipped
        return bool(_READ(os.getpid(), to, count, source, count, 0) == length)


def _samples(piece: Piece) -> list[tuple[int, int]]:
    """(address, length) of the bytes of a piece that `sample` looks at: its first ones, and then at even distances."""
    return [(piece.source + at, min(_SAMPLE, piece.length - at)) for at in range(0, piece.length, _SAMPLE_EVERY)]

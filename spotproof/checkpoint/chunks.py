"""Images as content-addressed chunks: of one fixed size per layout, named by blake3 of their bytes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from blake3 import blake3

from spotproof.contract.manifest import Chunk, File

MIB: Final = 1024 * 1024
_SMALLEST_MIB: Final = 8  # at 2.5 Gb/s
_LARGEST_MIB: Final = 64  # at 25 Gb/s and more
_MIB_PER_GBIT: Final = 64 / 25
_PARALLEL_FROM_BYTES: Final = 1 * MIB  # below it a second hashing thread costs more than it saves


def digest(data: bytes | memoryview) -> str:
    """blake3 in hex. Large data is hashed by several threads without holding Python's lock."""
    threads = blake3.AUTO if len(data) >= _PARALLEL_FROM_BYTES else 1
    return blake3(data, max_threads=threads).hexdigest()


def chunk_bytes_for(rate_bytes_s: float) -> int:
    """The chunk size for a network rate: a power of two, 8 MiB at 2.5 Gb/s up to 64 MiB at 25 Gb/s.

    A chunk then takes some 25 ms: long enough to fill the pipe, short enough that a node that dies loses little.
    """
    wanted = rate_bytes_s * 8 / 1e9 * _MIB_PER_GBIT
    size = _SMALLEST_MIB
    while size < min(wanted, _LARGEST_MIB):
        size *= 2
    return size * MIB


def spans(size: int, chunk_bytes: int) -> Iterator[tuple[int, int]]:
    """(offset, bytes) of each chunk of `size` bytes; the last one may be shorter."""
    for offset in range(0, size, chunk_bytes):
        yield offset, min(chunk_bytes, size - offset)


def file_of(name: str, data: memoryview, *, chunk_bytes: int) -> File:
    """`data` as a file made of chunks; reads every byte once."""
    chunks = [
        Chunk(digest=digest(data[offset : offset + size]), bytes=size) for offset, size in spans(len(data), chunk_bytes)
    ]
    return File(name=name, chunks=tuple(chunks))


def placed(file: File) -> Iterator[tuple[int, Chunk]]:
    """Each chunk of `file` with its offset, in order."""
    offset = 0
    for chunk in file.chunks:
        yield offset, chunk
        offset += chunk.bytes


def file_digest(file: File) -> str:
    """One digest for a whole file: blake3 over its chunks' digests, so that no byte is read again."""
    return digest("".join(chunk.digest for chunk in file.chunks).encode("ascii"))

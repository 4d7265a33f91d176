"""Chunks into one image in memory: several at once, each straight into its place, checked there.

No more memory is used than the image itself. What is there already, in an image that was given back or in one that
turned out damaged, and has the right digest at the right place, is not read again.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from typing import Final

from spotproof.checkpoint.arena import sealed_memory
from spotproof.checkpoint.chunks import placed
from spotproof.checkpoint.meter import Meter
from spotproof.contract import layout
from spotproof.contract.manifest import Chunk, File, Part
from spotproof.errors import BadManifest, Damaged, Missing

__all__ = ["THREADS", "ImageRead", "Images", "ReadChunk"]

# One connection of S3 brings some 90 MB/s (Performance Guidelines for Amazon S3): a fast network needs many.
THREADS: Final = max(8, min(32, 4 * (os.cpu_count() or 1)))

ReadChunk = Callable[[Chunk, memoryview], None]
"""Fills memory of the chunk's size with its bytes, which have its digest. Raises Damaged or Missing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageRead:
    """A verified image in a memfd, which is the receiver's; `kept_bytes` of it were there already."""

    fd: int
    layout: bytes
    bytes: int
    kept_bytes: int


@dataclass(slots=True, kw_only=True)
class _Memory:
    """A memfd and which chunk is known to be at which offset."""

    fd: int
    bytes: int
    verified: dict[int, str] = field(default_factory=dict)


@dataclass(slots=True, kw_only=True)
class Images:
    """Reads images one after the other. `close` lets go of memory that nobody took."""

    threads: int = THREADS
    meter: Meter = field(default_factory=Meter)
    _spare: _Memory | None = None

    def read(self, part: Part, read: ReadChunk) -> ImageRead:
        """The image of `part` and its layout.

        Raises:
            Damaged, Missing, BadManifest: it is not whole. What was good of it is kept for the next one.
            Whatever else `read` raises; then nothing is kept.
        """
        memory = self._memory(part.image.bytes)
        try:
            found = self._fill(memory, part, read)
        except (Damaged, Missing, BadManifest):
            self._spare = memory
            raise
        except BaseException:
            os.close(memory.fd)
            raise
        return found

    def give_back(self, image_fd: int, file: File) -> None:
        """Take an image that `read` returned and that nobody else has seen: the next one may have much of it."""
        self.close()
        verified = {offset: chunk.digest for offset, chunk in placed(file)}
        self._spare = _Memory(fd=image_fd, bytes=file.bytes, verified=verified)

    def close(self) -> None:
        """Let go."""
        spare, self._spare = self._spare, None
        if spare is not None:
            os.close(spare.fd)

    def _memory(self, size: int) -> _Memory:
        spare, self._spare = self._spare, None
        if spare is not None and spare.bytes == size:
            return spare
        if spare is not None:
            os.close(spare.fd)
        return _Memory(fd=sealed_memory(size, name="restore"), bytes=size)

    def _fill(self, memory: _Memory, part: Part, read: ReadChunk) -> ImageRead:
        """The layout and every chunk that is not there yet, at once."""
        wanted = [
            (offset, chunk) for offset, chunk in placed(part.image) if memory.verified.get(offset) != chunk.digest
        ]
        missing = sum(chunk.bytes for _, chunk in wanted)
        described = bytearray(part.layout.bytes)
        self.meter.begin(f"restore of step {part.step}, generation {part.generation}", missing)
        # Not closed by hand: the frames of a read that has failed hold pieces of it until the error is forgotten.
        view, head = memoryview(mmap.mmap(memory.fd, memory.bytes)), memoryview(described)

        def place(offset: int, chunk: Chunk) -> None:
            memory.verified.pop(offset, None)
            read(chunk, view[offset : offset + chunk.bytes])
            memory.verified[offset] = chunk.digest
            self.meter.moved(chunk.bytes)

        def describe(offset: int, chunk: Chunk) -> None:
            read(chunk, head[offset : offset + chunk.bytes])

        work = [(describe, *one) for one in placed(part.layout)] + [(place, *one) for one in wanted]
        self._all(work)
        expected = layout.decode(bytes(described)).image_bytes
        if expected != part.image.bytes:
            raise Damaged(f"the image has {part.image.bytes} bytes, its layout says {expected}")
        self.meter.end(kept_bytes=memory.bytes - missing)
        return ImageRead(fd=memory.fd, layout=bytes(described), bytes=memory.bytes, kept_bytes=memory.bytes - missing)

    def _all(self, work: Sequence[tuple[Callable[[int, Chunk], None], int, Chunk]]) -> None:
        """Each of them, several at once; the first failure ends the rest: a damaged image is not read to its end."""
        with ThreadPoolExecutor(self.threads, thread_name_prefix="fetch") as pool:
            reads = [pool.submit(call, offset, chunk) for call, offset, chunk in work]
            _cancel(wait(reads, return_when=FIRST_EXCEPTION).not_done)
        # None is left in a name: an error's frames would hold its own future, and the two the image, for long.
        ended = [one for one in reads if not one.cancelled()]
        reads.clear()
        while ended:
            ended.pop(0).result()


def _cancel(reads: Iterable[Future[None]]) -> None:
    for read in reads:
        read.cancel()

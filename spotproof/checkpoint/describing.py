"""A rank's part while it is still being described: chunks can be sent before the last byte has been hashed.

Hashing runs at memory's speed and sending at the wire's, so the two are done side by side: the first PUT waits for one
chunk's digest, the local copy and the part for all of them.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Final, Protocol, Self, TypeAlias

from spotproof.checkpoint.chunks import digest, file_digest, spans
from spotproof.checkpoint.content import LAYOUT_FILE, METADATA_FILE, Content, Save
from spotproof.contract.manifest import Chunk, File, Part, Receipt

Piece: TypeAlias = tuple[Chunk, memoryview]


class Source(Protocol):
    """What can be committed. `sent` remembers what the bucket has taken of it, over several tries."""

    save: Save
    sent: dict[str, int]

    def pieces(self) -> Iterator[Piece]:
        """Every chunk with its bytes, in order; waits for those that are not known yet."""

    def part(self) -> Part:
        """The part, once everything is known."""


class Described:
    """A part that is known already, with its bytes."""

    def __init__(self, part: Part, content: Content, save: Save) -> None:
        self.save = save
        self.sent: dict[str, int] = {}
        self._part = part
        self._content = content

    def pieces(self) -> Iterator[Piece]:
        """See `Source`."""
        for file, data in zip(
            (self._part.image, self._part.layout, self._part.metadata), _buffers(self._content), strict=True
        ):
            offset = 0
            for chunk in file.chunks if file is not None else ():
                yield chunk, data[offset : offset + chunk.bytes]
                offset += chunk.bytes

    def part(self) -> Part:
        """See `Source`."""
        return self._part


class Describing:
    """Hashes `content` on a thread of its own. A context manager: at its end the thread has ended."""

    def __init__(self, save: Save, content: Content, *, image_name: str) -> None:
        self.save = save
        self.sent: dict[str, int] = {}
        self._content = content
        self._names: Final = (image_name, LAYOUT_FILE, METADATA_FILE)
        self._pieces: list[tuple[int, Chunk, memoryview]] = []  # with the number of the file
        self._is_over = False
        self._is_left = False
        self._failure: BaseException | None = None
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._work, name="hash", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_left = True
        self._thread.join()
        self._pieces.clear()  # views of memory that its owner wants to unmap

    def pieces(self) -> Iterator[Piece]:
        """See `Source`."""
        at = 0
        while fresh := self._from(at):
            at += len(fresh)
            for _, chunk, data in fresh:
                yield chunk, data

    def part(self) -> Part:
        """See `Source`."""
        with self._changed:
            self._changed.wait_for(lambda: self._is_over)
            self._check()
        image, layout, metadata = (self._file(number) for number in range(3))
        return part_of(self.save, image, layout, metadata if metadata.chunks else None)

    def _from(self, at: int) -> list[tuple[int, Chunk, memoryview]]:
        """What there is from number `at` on, at least one; none if there is no more."""
        with self._changed:
            self._changed.wait_for(lambda: self._is_over or len(self._pieces) > at)
            self._check()
            return self._pieces[at:]

    def _file(self, number: int) -> File:
        return File(name=self._names[number], chunks=tuple(chunk for of, chunk, _ in self._pieces if of == number))

    def _check(self) -> None:
        if self._failure is not None:
            raise self._failure

    def _work(self) -> None:
        failure: BaseException | None = None
        try:
            for number, data in enumerate(_buffers(self._content)):
                for offset, size in spans(len(data), self._content.chunk_bytes):
                    if self._is_left:
                        return
                    view = data[offset : offset + size]
                    found = number, Chunk(digest=digest(view), bytes=size), view
                    with self._changed:
                        self._pieces.append(found)
                        self._changed.notify_all()
        except BaseException as error:  # noqa: BLE001 -- the boundary of a thread: whoever waits is told
            failure = error
        finally:
            with self._changed:
                self._failure, self._is_over = failure, True
                self._changed.notify_all()


def part_of(save: Save, image: File, layout: File, metadata: File | None) -> Part:
    """The part that `save` makes of its files."""
    return Part(
        run=save.run,
        generation=save.generation,
        step=save.step,
        rank=save.rank,
        world=save.world,
        image=image,
        layout=layout,
        metadata=metadata,
        receipt=Receipt(
            rank=save.rank,
            step=save.step,
            samples=save.samples,
            sample_chain=save.sample_chain,
            state_digest=file_digest(image),
        ),
    )


def _buffers(content: Content) -> tuple[memoryview, memoryview, memoryview]:
    return content.image, memoryview(content.layout), memoryview(content.metadata)

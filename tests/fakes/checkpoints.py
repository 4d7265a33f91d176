"""A run's stores in a folder, images made of plain bytes, and a bucket that can be told to fail."""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from spotproof.checkpoint.chunks import digest
from spotproof.checkpoint.commit import Commit, Committer, Content, Save, make_part
from spotproof.checkpoint.fetch import Fetched, Fetcher
from spotproof.checkpoint.localcopy import LocalCopies
from spotproof.contract import layout, s3keys
from spotproof.contract.items import Generation
from spotproof.contract.layout import Layout, TensorEntry, image_name
from spotproof.contract.manifest import decode_manifest
from spotproof.contract.states import SaveKind
from spotproof.errors import Unavailable
from spotproof.store.checkpoints import Checkpoints
from spotproof.store.folder import FolderObjects
from spotproof.store.local import LocalTable
from spotproof.store.members import Memberships
from spotproof.store.objects import NO_DEADLINE, Buffer, ObjectInfo, Objects, PutOutcome
from spotproof.store.pointer import Pointers
from spotproof.store.starts import Stores

RUN = "r"
CHUNK_BYTES = 1000


@dataclass
class FailingObjects:
    """Objects that fail a put for good when `fails(number, key)` says so; puts are counted from 1."""

    inner: Objects
    fails: Callable[[int, str], bool] = field(default=lambda number, key: False)
    puts: list[str] = field(default_factory=list)

    def _count(self, key: str) -> None:
        self.puts.append(key)
        if self.fails(len(self.puts), key):
            raise Unavailable(f"put {len(self.puts)} of {key}: told to fail")

    def put(self, key: str, data: Buffer, *, digest: str, until: float = NO_DEADLINE) -> None:
        self._count(key)
        self.inner.put(key, data, digest=digest, until=until)

    def put_if_absent(self, key: str, data: Buffer, *, digest: str, until: float = NO_DEADLINE) -> PutOutcome:
        self._count(key)
        return self.inner.put_if_absent(key, data, digest=digest, until=until)

    def get(self, key: str, *, digest: str, until: float = NO_DEADLINE) -> bytes:
        return self.inner.get(key, digest=digest, until=until)

    def get_into(self, key: str, target: memoryview, *, digest: str, until: float = NO_DEADLINE) -> None:
        self.inner.get_into(key, target, digest=digest, until=until)

    def read(self, key: str, *, until: float = NO_DEADLINE) -> bytes:
        return self.inner.read(key, until=until)

    def head(self, key: str, *, until: float = NO_DEADLINE) -> ObjectInfo | None:
        return self.inner.head(key, until=until)

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        return self.inner.list(prefix)


@dataclass
class Rig:
    """Everything a run needs but its agent. Generation 1 is sealed."""

    folder: Path
    objects: FailingObjects = field(init=False)
    table: LocalTable = field(init=False)
    local: LocalCopies = field(init=False)

    def __post_init__(self) -> None:
        self.objects = FailingObjects(FolderObjects(self.folder / "bucket"))
        self.table = LocalTable(self.folder / "table.sqlite")
        self.local = LocalCopies(self.folder / "scratch", RUN)
        self.seal(1, start=None)

    @property
    def stores(self) -> Stores:
        return Stores(
            objects=self.objects,
            checkpoints=Checkpoints(self.table),
            pointers=Pointers(self.table),
            memberships=Memberships(self.table),
        )

    def seal(self, generation: int, *, start: tuple[int, int] | None) -> None:
        self.stores.memberships.seal(
            Generation(
                run=RUN,
                generation=generation,
                members=(f"0:{generation}:i-{generation}",),
                sealed_at=0,
                start_generation=None if start is None else start[0],
                start_step=None if start is None else start[1],
            ),
            pointer=self.stores.pointers.read(RUN),
        )

    def committer(self) -> Committer:
        stores = self.stores
        return Committer(
            objects=stores.objects,
            checkpoints=stores.checkpoints,
            pointers=stores.pointers,
            clock=lambda: 1.0,
            threads=1,
        )

    def commit(self, step: int, image: bytes, *, generation: int = 1, committer: Committer | None = None) -> Commit:
        content = content_of(image)
        part = make_part(save_of(step, generation=generation), content, image_name=image_name(0))
        return (committer or self.committer()).commit(part, content, kind=SaveKind.PERIODIC)

    def stage(self, step: int, image: bytes, *, generation: int = 1) -> None:
        content = content_of(image)
        part = make_part(save_of(step, generation=generation), content, image_name=image_name(0))
        self.local.stage(part, {part.image.name: content.image, "layout.json": content.layout, ".metadata": b"m"})

    def fetcher(self, *, local: bool = False) -> Fetcher:
        return Fetcher(stores=self.stores, run=RUN, clock=lambda: 2.0, local=self.local if local else None, threads=2)

    def path(self, key: str) -> Path:
        return self.folder / "bucket" / key

    def blob_paths(self, step: int, *, generation: int = 1) -> list[Path]:
        """Files of the image's chunks of a committed checkpoint, in order."""
        manifest = decode_manifest(self.objects.read(s3keys.manifest(RUN, generation, step)))
        return [self.path(s3keys.blob(RUN, chunk.digest)) for chunk in manifest.parts[0].image.chunks]

    def assert_pointer_names_whole_data(self) -> None:
        """Every object that the pointed manifest names exists with the size and digest that it lists."""
        pointer = self.stores.pointers.read(RUN)
        if pointer is None:
            return
        manifest = decode_manifest(self.objects.get(pointer.manifest_key, digest=pointer.manifest_digest))
        for chunk in manifest.chunks():
            data = self.objects.read(s3keys.blob(RUN, chunk.digest))
            assert (len(data), digest(data)) == (chunk.bytes, chunk.digest)


def layout_of(image: bytes) -> bytes:
    entry = TensorEntry(key="model.w", dtype="uint8", shape=(len(image),), offset=0, bytes=len(image))
    return layout.encode(Layout(image_bytes=len(image), tensors=(entry,)))


def content_of(image: bytes) -> Content:
    return Content(image=memoryview(image), layout=layout_of(image), metadata=b"m", chunk_bytes=CHUNK_BYTES)


def save_of(step: int, *, generation: int = 1, rank: int = 0, world: int = 1) -> Save:
    return Save(
        run=RUN, generation=generation, step=step, kind=SaveKind.PERIODIC, rank=rank, world=world, samples=step * 8
    )


def image_of(step: int, size: int = 3500) -> bytes:
    """Bytes that differ from step to step in every chunk."""
    return bytes((step * 31 + index) % 251 for index in range(size))


def bytes_of(fetched: Fetched) -> bytes:
    """The fetched image; closes its memory."""
    try:
        with mmap.mmap(fetched.image_fd, 0, access=mmap.ACCESS_READ) as mapped:
            return bytes(mapped)
    finally:
        os.close(fetched.image_fd)

"""For people who call DCP themselves: `dcp.load(state, storage_reader=StorageReader("s3://BUCKET", run="my-run"))`.

Reads what `StorageWriter` has written and what `Run` has saved, into any sharding. Every chunk is read whole and
verified; nothing is unpickled that came from the bucket: DCP's plan is made from the layouts, which are JSON.

Calls, in order, as DCP makes them: `reset`; `read_metadata` (the coordinator, in some versions every rank);
`set_up_storage_reader`, the prepare calls and `read_data` on every rank.
"""

from __future__ import annotations

import io
import json
import mmap
import os
from collections.abc import Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any, Final

import torch
from torch import Tensor
from torch.distributed._shard._utils import narrow_tensor_by_index
from torch.distributed.checkpoint.metadata import (
    BytesStorageMetadata,
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import LoadItemType, LoadPlan, LoadPlanner, ReadItem
from torch.distributed.checkpoint.storage import StorageReader as DcpStorageReader
from torch.futures import Future

from spotproof.checkpoint import place
from spotproof.checkpoint.chunks import placed
from spotproof.checkpoint.dcp import payload
from spotproof.checkpoint.inventory import read_manifest
from spotproof.checkpoint.source import value_of
from spotproof.checkpoint.writer import PATHS, THREADS, VALUES
from spotproof.contract import ids, layout, s3keys
from spotproof.contract.layout import STATE_KEY, Layout, TensorEntry
from spotproof.contract.manifest import Chunk, File, Manifest, Part
from spotproof.errors import BadManifest, MismatchedState
from spotproof.plan.candidates import Order
from spotproof.store.objects import Objects

_RNG: Final = "rng."
_VALUES: Final = f"{VALUES}."
_NO_OFFSET: Final = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Spot:
    """Where a tensor, or a part of one, lies: in which rank's image."""

    rank: int
    entry: TensorEntry

    @property
    def offset(self) -> tuple[int, ...]:
        """Of the part in the whole."""
        return self.entry.at if self.entry.at is not None else (0,) * len(self.entry.shape)

    @property
    def size(self) -> tuple[int, ...]:
        """Of the whole."""
        return self.entry.whole if self.entry.whole is not None else self.entry.shape


class StorageReader(DcpStorageReader):
    """Reads a checkpoint of `run` at `where`: the newest whole one, or `at` (STEP or GENERATION-STEP).

    `may_convert` names tensors whose dtype may differ from that of the target between floating types; DCP itself would
    convert anything without a word.
    """

    def __init__(
        self,
        where: place.Place,
        *,
        run: str,
        at: str | int | None = None,
        may_convert: AbstractSet[str] = frozenset(),
        threads: int = THREADS,
    ) -> None:
        super().__init__()
        self._objects = place.objects_at(where)
        self._run = ids.run_id(run)
        self._given = None if at is None else str(at)
        self._at = self._given
        self._may_convert = may_convert
        self._threads = threads
        self._content: Content | None = None

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        """Whether it is STEP or GENERATION-STEP."""
        return str(checkpoint_id).replace("-", "", 1).isdecimal()

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        """Begin another load."""
        self._at = self._given if checkpoint_id is None else str(checkpoint_id)
        self._content = None

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:  # noqa: ARG002 -- DCP passes the rank
        """DCP's metadata, made from the manifest and the layouts. Raises Missing, Damaged, BadManifest."""
        if self._content is None:
            order = place.newest(self._objects, self._run) if self._at is None else self._named(self._at)
            self._content = Content.of(self._objects, self._run, order, threads=self._threads)
        return self._content.metadata()

    def set_up_storage_reader(self, metadata: Metadata, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:  # noqa: FBT001, ARG002
        """Where only the coordinator has read the metadata, it says which checkpoint is meant."""
        if self._content is None:
            self._content = Content.of(self._objects, self._run, metadata.storage_data, threads=self._threads)

    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        """Nothing to add."""
        return plan

    def prepare_global_plan(self, plans: list[LoadPlan]) -> list[LoadPlan]:
        """Nothing to add."""
        return plans

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        """Read, verify, scatter; one rank's image after another.

        Raises MismatchedState (a dtype that differs), Damaged (naming the chunk), Missing, Unavailable.
        """
        content = self._content
        if content is None:
            raise AssertionError("DCP reads the metadata first")
        tensors = [item for item in plan.items if item.type is not LoadItemType.BYTE_IO]
        self._check_dtypes(content, tensors, planner)
        by_rank: dict[int, list[tuple[ReadItem, TensorEntry]]] = {}
        for item in tensors:
            spot = content.spots[_index(item.storage_index)]
            by_rank.setdefault(spot.rank, []).append((item, spot.entry))
        for rank, wanted in sorted(by_rank.items()):
            whole = content.read(rank, [entry for _, entry in wanted])
            for item, entry in wanted:
                saved = narrow_tensor_by_index(payload(entry, whole), item.storage_offsets, item.lengths)
                target = planner.resolve_tensor(item)
                with torch.no_grad():
                    target.copy_(saved)
                planner.commit_tensor(item, target)
        for item in plan.items:
            if item.type is LoadItemType.BYTE_IO:
                planner.load_bytes(item, _pickled(content.values[item.storage_index.fqn]))
        done: Future[None] = Future()
        done.set_result(None)
        return done

    def _named(self, name: str) -> Order:
        return place.order_named(self._objects, self._run, name)

    def _check_dtypes(self, content: Content, items: Iterable[ReadItem], planner: LoadPlanner) -> None:
        problems = []
        for item in items:
            saved = getattr(torch, content.spots[_index(item.storage_index)].entry.dtype)
            here = planner.resolve_tensor(item).dtype
            name = item.storage_index.fqn
            may = name in self._may_convert and saved.is_floating_point and here.is_floating_point
            if saved != here and not may:
                problems.append(f"{name}: {saved} in the checkpoint, {here} here".replace("torch.", ""))
        if problems:
            raise MismatchedState("; ".join(dict.fromkeys(problems)), next_step="name it in may_convert, or change it")


@dataclass(frozen=True, slots=True, kw_only=True)
class Content:
    """One checkpoint: its manifest, its layouts, and its values that are no tensors."""

    objects: Objects
    manifest: Manifest
    layouts: tuple[Layout, ...]
    spots: Mapping[tuple[str, tuple[int, ...]], Spot]
    values: Mapping[str, object]
    paths: Mapping[str, tuple[str | int, ...]]
    threads: int

    @classmethod
    def of(cls, objects: Objects, run: str, order: Order, *, threads: int) -> Content:
        """Read everything but the tensors. Raises Missing, Damaged, BadManifest."""
        manifest = read_manifest(objects, run, order)
        layouts = tuple(_layout(objects, run, part) for part in manifest.parts)
        spots: dict[tuple[str, tuple[int, ...]], Spot] = {}
        for rank, described in enumerate(layouts):
            for name, entry in _named_entries(described):
                # What every rank has is taken from the first that has it.
                spots.setdefault((name, Spot(rank=rank, entry=entry).offset), Spot(rank=rank, entry=entry))
        bare = cls(
            objects=objects, manifest=manifest, layouts=layouts, spots=spots, values={}, paths={}, threads=threads
        )
        values, paths = bare._values()
        return replace(bare, values=values, paths=paths)

    def metadata(self) -> Metadata:
        """What DCP plans with. The place of the checkpoint travels with it to the other ranks."""
        found: dict[str, TensorStorageMetadata | BytesStorageMetadata] = {
            name: BytesStorageMetadata() for name in self.values
        }
        for (name, offset), spot in self.spots.items():
            dtype = getattr(torch, spot.entry.dtype, None)
            if not isinstance(dtype, torch.dtype):
                raise BadManifest(f"tensor {name!r} has the unknown dtype {spot.entry.dtype!r}")
            whole = found.setdefault(
                name, TensorStorageMetadata(TensorProperties(dtype=dtype), torch.Size(spot.size), [])
            )
            if isinstance(whole, TensorStorageMetadata):
                whole.chunks.append(ChunkStorageMetadata(torch.Size(offset), torch.Size(spot.entry.shape)))
        by_top = {
            name: tuple(name.split(".", 1)) for name in found
        }  # as `Run` stores: {"model": {"layer.weight": ...}}
        return Metadata(found, planner_data={**by_top, **self.paths}, storage_data=self.manifest.order)

    def read(self, rank: int, entries: Iterable[TensorEntry]) -> Tensor:
        """The bytes of a rank's image, of which those chunks are there, verified, that `entries` lie in."""
        part = self.manifest.parts[rank]
        memory = mmap.mmap(-1, max(1, part.image.bytes))
        view = memoryview(memory)

        def fetch(one: tuple[int, Chunk]) -> None:
            offset, chunk = one
            key = s3keys.blob(self.manifest.run, chunk.digest)
            self.objects.get_into(key, view[offset : offset + chunk.bytes], digest=chunk.digest)

        with ThreadPoolExecutor(self.threads, thread_name_prefix="read") as pool:
            for _ in pool.map(fetch, _wanted(part.image, entries)):
                pass
        return torch.frombuffer(memory, dtype=torch.uint8)

    def _values(self) -> tuple[dict[str, object], dict[str, tuple[str | int, ...]]]:
        found: dict[str, object] = {}
        paths: dict[str, tuple[str | int, ...]] = {}
        for rank, described in enumerate(self.layouts):
            ours = [entry for entry in described.tensors if entry.key == STATE_KEY or entry.key.startswith(_VALUES)]
            whole = self.read(rank, ours)
            tensors = {entry.key: payload(entry, whole) for entry in ours}
            document = _document(tensors)
            for name, node in document.get(VALUES, {}).items():
                found.setdefault(name, value_of(node, f"{VALUES}.{name}", tensors))
            paths |= {name: tuple(path) for name, path in document.get(PATHS, {}).items()}
        return found, paths


def _layout(objects: Objects, run: str, part: Part) -> Layout:
    body = b"".join(objects.get(s3keys.blob(run, chunk.digest), digest=chunk.digest) for chunk in part.layout.chunks)
    described = layout.decode(body)
    if described.image_bytes != part.image.bytes:
        raise BadManifest(f"rank {part.rank}: the layout is of {described.image_bytes} bytes, not {part.image.bytes}")
    return described


def _named_entries(described: Layout) -> Iterator[tuple[str, TensorEntry]]:
    """Every tensor that is the user's, under each of its names."""
    aliases: dict[str, list[str]] = {}
    for name, key in described.aliases:
        aliases.setdefault(key, []).append(name)
    for entry in described.tensors:
        if entry.key != STATE_KEY and not entry.key.startswith((_RNG, _VALUES)):
            for name in (entry.key, *aliases.get(entry.key, ())):
                yield name, entry


def _wanted(image: File, entries: Iterable[TensorEntry]) -> list[tuple[int, Chunk]]:
    """The chunks that hold any byte of `entries`, each once."""
    ranges = sorted((entry.offset, entry.offset + entry.bytes) for entry in entries if entry.bytes)
    found, at = [], 0
    for offset, chunk in placed(image):
        while at < len(ranges) and ranges[at][1] <= offset:
            at += 1
        if at < len(ranges) and ranges[at][0] < offset + chunk.bytes:
            found.append((offset, chunk))
    return found


def _document(tensors: Mapping[str, Tensor]) -> Mapping[str, Any]:
    if STATE_KEY not in tensors:
        raise BadManifest(f"the layout has no {STATE_KEY}")
    try:
        document = json.loads(bytes(tensors[STATE_KEY].numpy()))
    except ValueError as error:
        raise BadManifest(f"the state document does not parse: {error}") from error
    if not isinstance(document, dict) or not all(isinstance(document.get(part, {}), dict) for part in (VALUES, PATHS)):
        raise BadManifest("the state document is not one of ours")
    return document


def _index(index: MetadataIndex) -> tuple[str, tuple[int, ...]]:
    return index.fqn, tuple(index.offset or _NO_OFFSET)


def _pickled(value: object) -> io.BytesIO:
    """DCP takes values as pickles: this one is made here, of a value that JSON gave, and read here."""
    data = io.BytesIO()
    torch.save(value, data)
    data.seek(0)
    return data

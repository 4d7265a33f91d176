"""For people who call DCP themselves: `dcp.save(state, storage_writer=StorageWriter("s3://BUCKET", run="my-run"))`.

What it leaves is a checkpoint like any other of spotproof: chunks named by their content, a part for each rank, one
manifest that is written last and only if there is none. `dcp.async_save` takes it as well.

Calls, in order, as DCP makes them: every rank `reset`, `set_up_storage_writer`, `prepare_local_plan`; the coordinator
`prepare_global_plan`, which names the checkpoint; every rank `write_data`, which sends its chunks and puts its part;
the coordinator `finish`, which puts its own part, with `.metadata`, and the manifest. A failure anywhere leaves no
manifest, so the checkpoint does not exist.
"""

from __future__ import annotations

import io
import mmap
import os
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any, Final

import torch
from torch import Tensor
from torch.distributed.checkpoint.filesystem import _StorageInfo
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import SavePlan, SavePlanner, WriteItem, WriteItemType
from torch.distributed.checkpoint.storage import StorageWriter as DcpStorageWriter
from torch.distributed.checkpoint.storage import WriteResult
from torch.futures import Future

from spotproof.checkpoint import place, tagged
from spotproof.checkpoint.chunks import digest, file_of, placed
from spotproof.checkpoint.commit import METADATA_FILE, Content, Save, assemble, make_part, put_manifest
from spotproof.checkpoint.dcp import Frame, aligned, frame_around, metadata_blob, payload, write_frame
from spotproof.checkpoint.inventory import read_manifest
from spotproof.checkpoint.state import DOCUMENT_FORMAT, TensorSink
from spotproof.checkpoint.tagged import Json
from spotproof.contract import ids, layout, s3keys
from spotproof.contract.layout import STATE_KEY, Layout, image_name
from spotproof.contract.manifest import Chunk, File, Part, encode
from spotproof.contract.states import SaveKind
from spotproof.errors import Damaged, UnstorableState
from spotproof.plan.candidates import Order
from spotproof.store.objects import PutOutcome

CHUNK_BYTES: Final = 16 * 1024 * 1024
VALUES: Final = "values"  # of the state document: each value that is no tensor, by its DCP name
PATHS: Final = "paths"  # of the state document: where in the nested state each name stood
THREADS: Final = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Assigned:
    """What the coordinator tells each rank. `base`: the checkpoint whose chunks need not be sent again."""

    order: Order
    rank: int
    world: int
    base: Order | None


class StorageWriter(DcpStorageWriter):
    """Writes checkpoints of `run` to `place`: `s3://BUCKET`, a folder, or any `Objects`.

    The checkpoint is `step`, or what `checkpoint_id` of the DCP call says, or the step behind the newest one. It
    becomes the newest whatever its step is: where that has been passed, the generation rises. Tensors are stored as
    they are, everything else as tagged JSON; a value that has no safe form is refused by its name before anything is
    sent. Use a run id of its own, not one that `Run` trains under.
    """

    def __init__(
        self,
        where: place.Place,
        *,
        run: str,
        step: int | None = None,
        chunk_bytes: int = CHUNK_BYTES,
        threads: int = THREADS,
    ) -> None:
        super().__init__()
        self._objects = place.objects_at(where)
        self._run = ids.run_id(run)
        self._given = step
        self._step = step
        self._chunk_bytes = chunk_bytes
        self._threads = threads
        self._pending: tuple[Part, AbstractSet[str], Frame] | None = None  # of the coordinator: waits for `.metadata`
        self._is_coordinator = False
        self.saved: Order | None = None

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        """Whether it is a step."""
        return str(checkpoint_id).isdecimal()

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        """Begin another save."""
        self._pending, self.saved = None, None
        self._step = self._given if checkpoint_id is None else int(str(checkpoint_id))

    def set_up_storage_writer(self, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:  # noqa: FBT001, ARG002
        """Remember who names and finishes the checkpoint."""
        self._is_coordinator = is_coordinator

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        """Nothing to add."""
        return plan

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        """Name the checkpoint. Coordinator only."""
        whole, begun = place.orders(self._objects, self._run)
        order, base = place.next_order(begun, self._step), max(whole, default=None)
        return [
            replace(plan, storage_data=Assigned(order=order, rank=rank, world=len(plans), base=base))
            for rank, plan in enumerate(plans)
        ]

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        """Send this rank's image in chunks and put its part; the coordinator's waits for `finish`.

        Raises UnstorableState, Unavailable, Denied.
        """
        assigned: Assigned = plan.storage_data
        image = RankImage.of(plan, planner, assigned)
        content = Content(
            image=image.memory(), layout=layout.encode(image.layout()), metadata=b"", chunk_bytes=self._chunk_bytes
        )
        save = Save(
            run=self._run,
            generation=assigned.order[0],
            step=assigned.order[1],
            kind=SaveKind.MANUAL,
            rank=assigned.rank,
            world=assigned.world,
        )
        part = make_part(save, content, image_name=image_name(assigned.rank))
        listed = self._listed(assigned.base)
        self._send(part.image, content.image, listed)
        self._send(part.layout, memoryview(content.layout), listed)
        if self._is_coordinator:
            self._pending = (part, listed, image.frames[-1][0])
        else:
            self._put_part(part)
        done: Future[list[WriteResult]] = Future()
        done.set_result(image.results())
        return done

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        """Put `.metadata` for stock DCP, the coordinator's part and the manifest. Coordinator only.

        Raises Damaged where another save has taken the name meanwhile.
        """
        if self._pending is None:
            raise AssertionError("DCP calls finish where it has called write_data")
        part, listed, document = self._pending
        storage = {result.index: result.storage_data for of_rank in results for result in of_rank}
        index = MetadataIndex(STATE_KEY, torch.Size([0]))
        storage[index] = _StorageInfo(part.image.name, document.offset, document.end - document.offset)
        blob = metadata_blob(_with_document(metadata, document.entry.bytes), storage)
        file = file_of(METADATA_FILE, memoryview(blob), chunk_bytes=self._chunk_bytes)
        self._send(file, memoryview(blob), listed)
        part = replace(part, metadata=file)
        self._put_part(part)
        put_manifest(self._objects, assemble(self._objects, part))
        self._pending, self.saved = None, (part.generation, part.step)

    def _listed(self, base: Order | None) -> AbstractSet[str]:
        if base is None:
            return frozenset()
        return frozenset(chunk.digest for chunk in read_manifest(self._objects, self._run, base).chunks())

    def _send(self, file: File, data: memoryview, listed: AbstractSet[str]) -> None:
        """Each chunk once. It is skipped only if the newest manifest lists it: that it exists proves nothing."""
        wanted = {chunk.digest: (chunk, offset) for offset, chunk in placed(file) if chunk.digest not in listed}

        def send(one: tuple[Chunk, int]) -> None:
            chunk, offset = one
            body = data[offset : offset + chunk.bytes]
            self._objects.put(s3keys.blob(self._run, chunk.digest), body, digest=chunk.digest)

        with ThreadPoolExecutor(self._threads, thread_name_prefix="send") as pool:
            for _ in pool.map(send, wanted.values()):
                pass

    def _put_part(self, part: Part) -> None:
        key, data = s3keys.part(part.run, part.generation, part.step, part.rank), encode(part)
        if self._objects.put_if_absent(key, data, digest=digest(data)) is PutOutcome.DIFFERENT:
            raise Damaged(
                f"{key} is another save's: two processes save run {part.run}", next_step="give each a run id of its own"
            )


@dataclass(slots=True, kw_only=True)
class RankImage:
    """What one rank writes, and where each piece of it lies in the image."""

    rank: int
    end: int = 0
    frames: list[tuple[Frame, Tensor]] = field(default_factory=list)
    pickles: list[tuple[int, bytes]] = field(default_factory=list)  # of values, for stock DCP; we never read them
    places: dict[MetadataIndex, _StorageInfo] = field(default_factory=dict)

    @classmethod
    def of(cls, plan: SavePlan, planner: SavePlanner, assigned: Assigned) -> RankImage:
        """Look at everything first, so that what cannot be stored is known before a byte is copied."""
        image, sink, values = cls(rank=assigned.rank), TensorSink(), dict[str, Json]()
        for item in plan.items:
            if item.type is WriteItemType.BYTE_IO:
                name = item.index.fqn
                values[name] = _encoded(name, _object(planner, item), sink)
                image._add_pickle(item, planner)
        for item in plan.items:
            if item.type is not WriteItemType.BYTE_IO:
                image._add_tensor(item, planner)
        for key, tensor in sink.tensors.items():
            image._add_frame(key, tensor)
        image._add_frame(STATE_KEY, _document(values, plan.planner_data or {}, assigned.order))
        return image

    def layout(self) -> Layout:
        """Where each tensor lies."""
        return Layout(image_bytes=self.end, tensors=tuple(frame.entry for frame, _ in self.frames))

    def memory(self) -> memoryview:
        """The image's bytes, in memory of their own."""
        memory = mmap.mmap(-1, self.end)
        view = memoryview(memory)
        whole = torch.frombuffer(memory, dtype=torch.uint8)
        for frame, tensor in self.frames:
            write_frame(frame, view)
            payload(frame.entry, whole).copy_(tensor)
        for offset, data in self.pickles:
            view[offset : offset + len(data)] = data
        return view

    def results(self) -> list[WriteResult]:
        """What DCP's metadata says of the image."""
        return [
            WriteResult(index=index, size_in_bytes=place.length, storage_data=place)
            for index, place in self.places.items()
        ]

    def _add_tensor(self, item: WriteItem, planner: SavePlanner) -> None:
        tensor = planner.resolve_data(item)
        if not isinstance(tensor, Tensor) or item.tensor_data is None:
            raise UnstorableState("DCP gives no tensor for it", path=item.index.fqn)
        frame = self._add_frame(item.index.fqn, tensor.detach())
        chunk = item.tensor_data.chunk
        if item.type is WriteItemType.SHARD and chunk is not None:
            entry = replace(frame.entry, whole=tuple(item.tensor_data.size), at=tuple(chunk.offsets))
            self.frames[-1] = (replace(frame, entry=entry), tensor.detach())
        self.places[item.index] = _StorageInfo(image_name(self.rank), frame.offset, frame.end - frame.offset)

    def _add_frame(self, key: str, tensor: Tensor) -> Frame:
        if tensor.layout is not torch.strided or tensor.is_quantized or tensor.is_meta:
            raise tagged.refuse(tensor, key, "only plain strided tensors are stored")
        frame = frame_around(key, tensor, at=aligned(self.end))
        self.frames.append((frame, tensor))
        self.end = frame.end
        return frame

    def _add_pickle(self, item: WriteItem, planner: SavePlanner) -> None:
        data = planner.resolve_data(item)
        if not isinstance(data, io.BytesIO):
            raise UnstorableState("DCP gives no bytes for it", path=item.index.fqn)
        body, at = data.getvalue(), aligned(self.end)
        self.pickles.append((at, body))
        self.places[item.index] = _StorageInfo(image_name(self.rank), at, len(body))
        self.end = at + len(body)


def _object(planner: SavePlanner, item: WriteItem) -> object:
    """The value itself: of DCP's pickle nothing could be said."""
    look_up = getattr(planner, "lookup_object", None)
    if look_up is None:
        raise UnstorableState(
            f"{type(planner).__name__} does not tell its value", path=item.index.fqn, next_step="use DefaultSavePlanner"
        )
    return look_up(item.index)


def _encoded(name: str, value: object, sink: TensorSink) -> Json:
    node = tagged.encode(value, path=f"{VALUES}.{name}", hook=sink.hook)
    if sink.wholes:
        raise UnstorableState(
            "a sharded tensor within a tuple is none that DCP sees", path=name, next_step="use a list"
        )
    return node


def _with_document(metadata: Metadata, document_bytes: int) -> Metadata:
    """`metadata` with the state document: who reads it knows these frames for ours, which have no CRC."""
    size = torch.Size([document_bytes])
    described = TensorStorageMetadata(
        TensorProperties(dtype=torch.uint8), size, [ChunkStorageMetadata(torch.Size([0]), size)]
    )
    return replace(
        metadata,
        state_dict_metadata={**metadata.state_dict_metadata, STATE_KEY: described},
        planner_data={**(metadata.planner_data or {}), STATE_KEY: tuple(STATE_KEY.split("."))},
    )


def _document(values: Mapping[str, Json], paths: Mapping[str, Any], order: Order) -> Tensor:
    run = {"generation": order[0], "step": order[1]}
    document: dict[str, Any] = {"format": DOCUMENT_FORMAT, "objects": {}, "rng": {}, "run": run, VALUES: dict(values)}
    document[PATHS] = {name: list(path) for name, path in paths.items()}
    return torch.frombuffer(bytearray(tagged.dumps(document)), dtype=torch.uint8)

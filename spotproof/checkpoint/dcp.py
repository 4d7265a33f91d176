"""The image of a rank: byte for byte the `.distcp` file that stock torch DCP would have written.

DCP frames each tensor as a small `torch.save` zip. The frames are laid out once; a save overwrites only the payloads
inside them (stock DCP loads that: it does not look at the zip's CRC). Plans, `.metadata` included, come from DCP's own
planner. Order of calls, all in the trainer: `plan_image` once per layout, `write_frames` once per arena, then
`payload_views` for every save and restore.
"""

from __future__ import annotations

import io
import mmap
import pickle
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from typing import Any, Final

import torch
from torch import Tensor
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.filesystem import (
    CURRENT_DCP_VERSION,
    _StorageInfo,
)
from torch.distributed.checkpoint.metadata import Metadata, MetadataIndex, StorageMeta
from torch.distributed.checkpoint.planner import SavePlan, WriteItem
from torch.distributed.tensor import DTensor

from spotproof.checkpoint.chunks import MIB
from spotproof.checkpoint.sharded import Gather, form_of
from spotproof.contract.layout import STATE_KEY, Layout, TensorEntry, image_name
from spotproof.errors import BadManifest

_MAP_NORESERVE: Final = 0x4000  # Linux; Python 3.11 has no name for it
FRAME_ALIGN: Final = 64  # torch.save aligns payloads to 64 inside a frame: aligned frames make aligned payloads
_CHUNK: Final = 8 * MIB  # the smallest; larger ones are multiples of it
_STILL_FROM_BYTES: Final = 4 * _CHUNK  # for less than this the gap behind what stays still is too much


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """One tensor's frame: `head`, then the payload (`entry.offset`, `entry.bytes`), then `tail`."""

    entry: TensorEntry
    offset: int
    head: bytes
    tail: bytes

    @property
    def end(self) -> int:
        """The offset behind the frame."""
        return self.entry.offset + self.entry.bytes + len(self.tail)


@dataclass(frozen=True, slots=True, kw_only=True)
class ImagePlan:
    """Everything about an image but its payloads. `metadata` is the `.metadata` pickle, for stock DCP only."""

    layout: Layout
    frames: tuple[Frame, ...]
    metadata: bytes


def plan_image(
    tensors: Mapping[str, Tensor],
    aliases: Mapping[str, str],
    *,
    state_capacity: int,
    rank: int = 0,
    shared: Shared | None = None,
    still: AbstractSet[str] = frozenset(),
) -> ImagePlan:
    """The plan for `tensors` and a state document of up to `state_capacity` bytes. Reads no value of any tensor.

    `shared`: what this rank has a part of only. Those parts come first in the image, so that the rest may change its
    form on one rank alone; `.metadata`, on rank 0, lists the parts of every rank.
    `still`: what training does not change. It lies together and ends where a chunk does: its chunks are sent once.
    """
    wholes = {} if shared is None else shared.wholes
    stored: dict[str, Tensor] = {**tensors, STATE_KEY: torch.empty(state_capacity, dtype=torch.uint8)}
    planner = DefaultSavePlanner()
    planner.set_up_planner(_as_two_levels({**stored, **wholes}), is_coordinator=True)
    local = planner.create_local_plan()
    items = sorted(local.items, key=lambda item: (item.index.fqn not in wholes, item.index.fqn not in still))
    frames = _frames(items, stored, still)
    end = frames[-1].end
    layout = Layout(
        image_bytes=end, tensors=tuple(frame.entry for frame in frames), aliases=tuple(sorted(aliases.items()))
    )
    own = Contribution.of(replace(local, items=items), frames, rank)
    everyone = [own]
    if shared is not None:
        everyone += [one for one in shared.peers.contributions(own, wholes) if one.rank != rank]
    metadata = b"" if rank and shared is not None else _global_metadata(planner, everyone, aliases)
    return ImagePlan(layout=layout, frames=frames, metadata=metadata)


@dataclass(frozen=True, slots=True, kw_only=True)
class Contribution:
    """What one rank writes: its plan, and where in its image each item lies."""

    rank: int
    plan: SavePlan
    places: Mapping[MetadataIndex, _StorageInfo]

    @classmethod
    def of(cls, plan: SavePlan, frames: Sequence[Frame], rank: int) -> Contribution:
        """The contribution of a rank that writes `frames`, one for each item of `plan`."""
        places = {
            item.index: _StorageInfo(image_name(rank), frame.offset, frame.end - frame.offset)
            for item, frame in zip(plan.items, frames, strict=True)
        }
        return cls(rank=rank, plan=plan, places=places)

    def of_shared(self, wholes: Mapping[str, DTensor]) -> Contribution:
        """Only the parts of what all ranks have together: the rest is this rank's own affair."""
        items = [item for item in self.plan.items if item.index.fqn in wholes]
        mappings = {key: path for key, path in (self.plan.planner_data or {}).items() if key in wholes}
        plan = replace(self.plan, items=items, planner_data=mappings)
        return Contribution(rank=self.rank, plan=plan, places={item.index: self.places[item.index] for item in items})


@dataclass(slots=True, kw_only=True)
class Peers:
    """What the ranks contribute to the tensors that they have together. Asked for once for each form of these."""

    gather: Gather
    _form: object = None
    _known: Sequence[Contribution] = ()

    def contributions(self, own: Contribution, wholes: Mapping[str, DTensor]) -> Sequence[Contribution]:
        """Every rank's contribution. A collective when the form is new, which it then is on every rank."""
        form = form_of(wholes)
        if form != self._form:
            self._known, self._form = self.gather(own.of_shared(wholes)), form
        return self._known


@dataclass(frozen=True, slots=True, kw_only=True)
class Shared:
    """The DTensors of a state, of which each rank has a part."""

    wholes: Mapping[str, DTensor]
    peers: Peers


def write_frames(plan: ImagePlan, image: memoryview) -> None:
    """Put every frame around the (still empty) payloads of `image`, which is zeroed memory of the image's size."""
    for frame in plan.frames:
        write_frame(frame, image)


def write_frame(frame: Frame, image: memoryview) -> None:
    """Put one frame around its payload."""
    image[frame.offset : frame.entry.offset] = frame.head
    image[frame.end - len(frame.tail) : frame.end] = frame.tail


def payload_views(layout: Layout, image: Any) -> dict[str, Tensor]:  # Any: any writable buffer (an mmap)
    """Each tensor of `layout` as a view of its payload in `image`, without copying. They keep `image` alive.

    Raises:
        BadManifest: an entry's dtype is not one of torch, or its size is not that of its shape.
    """
    whole = torch.frombuffer(image, dtype=torch.uint8) if layout.image_bytes else torch.empty(0, dtype=torch.uint8)
    if whole.numel() < layout.image_bytes:
        raise BadManifest(f"the image has {whole.numel()} bytes, its layout {layout.image_bytes}")
    return {entry.key: payload(entry, whole) for entry in layout.tensors}


def payload(entry: TensorEntry, whole: Tensor) -> Tensor:
    """One tensor as a view of `whole`, the bytes of its image. Raises BadManifest, as `payload_views`."""
    dtype = getattr(torch, entry.dtype, None)
    if not isinstance(dtype, torch.dtype):
        raise BadManifest(f"tensor {entry.key!r} has the unknown dtype {entry.dtype!r}")
    if torch.Size(entry.shape).numel() * dtype.itemsize != entry.bytes:
        raise BadManifest(f"tensor {entry.key!r}: {entry.bytes} bytes are not {entry.shape} of {entry.dtype}")
    if entry.bytes == 0:
        return torch.empty(entry.shape, dtype=dtype)
    return whole[entry.offset : entry.offset + entry.bytes].view(dtype).reshape(entry.shape)


def _as_two_levels(tensors: Mapping[str, Tensor]) -> dict[str, dict[str, Tensor]]:
    """{"model": {"layer.weight": ...}}: stock tools that rebuild the tree give each tracked object its own dict."""
    tree: dict[str, dict[str, Tensor]] = {}
    for key, tensor in tensors.items():
        top, _, rest = key.partition(".")
        tree.setdefault(top, {})[rest] = tensor
    return tree


def aligned(offset: int) -> int:
    """The next offset that a frame may begin at."""
    return -(-offset // FRAME_ALIGN) * FRAME_ALIGN


def frame_around(key: str, tensor: Tensor, *, at: int) -> Frame:
    """The frame that `torch.save` writes around a contiguous CPU tensor of this shape and dtype."""
    stand_in = _untouched(tensor)
    sink = _GapRecorder()
    with torch.serialization.skip_data():
        torch.save(stand_in, sink)  # type: ignore[arg-type]  # a raw stream is what the zip writer needs
    payload_bytes = stand_in.numel() * stand_in.element_size()
    head, tail = sink.around(payload_bytes)
    entry = TensorEntry(
        key=key,
        dtype=str(tensor.dtype).removeprefix("torch."),
        shape=tuple(tensor.shape),
        offset=at + len(head),
        bytes=payload_bytes,
    )
    return Frame(entry=entry, offset=at, head=head, tail=tail)


def _untouched(tensor: Tensor) -> Tensor:
    """A contiguous CPU tensor of the same shape and dtype, no page of which is ever used or reserved."""
    size = tensor.numel() * tensor.element_size()
    if size == 0:
        return torch.empty(tensor.shape, dtype=tensor.dtype)
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_NORESERVE)
    return torch.frombuffer(memory, dtype=torch.uint8).view(tensor.dtype).reshape(tensor.shape)


class _GapRecorder(io.RawIOBase):
    """Takes what `torch.save` writes and notes where it jumped over the payload."""

    def __init__(self) -> None:
        self._written = bytearray()
        self._gap_at: int | None = None
        self._gap_bytes = 0

    def around(self, payload_bytes: int) -> tuple[bytes, bytes]:
        """(bytes before the payload, bytes after it)."""
        if self._gap_bytes != payload_bytes:
            raise AssertionError(f"torch.save jumped over {self._gap_bytes} bytes, not {payload_bytes}")
        at = len(self._written) if self._gap_at is None else self._gap_at
        return bytes(self._written[:at]), bytes(self._written[at:])

    def writable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return len(self._written) + self._gap_bytes

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        distance = offset if whence == io.SEEK_CUR else offset - self.tell()
        if distance < 0 or whence == io.SEEK_END or (distance and self._gap_at is not None):
            raise AssertionError("torch.save moved in a way that this version of the format does not know")
        if distance:
            self._gap_at, self._gap_bytes = len(self._written), distance
        return self.tell()

    def write(self, data: Any, /) -> int:  # Any: whatever buffer the C++ writer passes
        self._written += data
        return len(data)


def _frames(items: Sequence[WriteItem], stored: Mapping[str, Tensor], still: AbstractSet[str]) -> tuple[Frame, ...]:
    frames: list[Frame] = []
    end = 0
    for item in items:
        key = item.index.fqn
        ends_still = frames and frames[-1].entry.key in still and key not in still and end >= _STILL_FROM_BYTES
        at = -(-end // _CHUNK) * _CHUNK if ends_still else aligned(end)
        frame = frame_around(key, stored[key], at=at)
        chunk = None if item.tensor_data is None else item.tensor_data.chunk
        if chunk is not None and item.tensor_data is not None and item.tensor_data.size != chunk.sizes:
            entry = replace(frame.entry, whole=tuple(item.tensor_data.size), at=tuple(chunk.offsets))
            frame = replace(frame, entry=entry)
        frames.append(frame)
        end = frame.end
    return tuple(frames)


def _global_metadata(
    planner: DefaultSavePlanner, everyone: Sequence[Contribution], aliases: Mapping[str, str]
) -> bytes:
    """DCP's planner drops all but one of what several ranks have alike; each item that is left has its place."""
    in_order = sorted(everyone, key=lambda one: one.rank)
    plans, metadata = planner.create_global_plan([one.plan for one in in_order])
    storage = {
        item.index: one.places[item.index] for one, plan in zip(in_order, plans, strict=True) for item in plan.items
    }
    _add_aliases(metadata, storage, aliases)
    return metadata_blob(metadata, storage)


def _add_aliases(metadata: Metadata, storage: dict[MetadataIndex, _StorageInfo], aliases: Mapping[str, str]) -> None:
    """Let stock DCP find a tied tensor under each of its names, though it is stored once."""
    by_key: dict[str, list[MetadataIndex]] = {}
    for index in storage:
        by_key.setdefault(index.fqn, []).append(index)
    for name, key in aliases.items():
        top, _, rest = name.partition(".")
        metadata.state_dict_metadata[name] = metadata.state_dict_metadata[key]
        metadata.planner_data[name] = (top, rest)
        for index in by_key[key]:
            storage[renamed(index, name)] = storage[index]


def renamed(index: MetadataIndex, fqn: str) -> MetadataIndex:
    """`index` under another name (MetadataIndex is frozen and has its own constructor)."""
    return MetadataIndex(fqn, index.offset, index.index)


def metadata_blob(metadata: Metadata, storage: dict[MetadataIndex, _StorageInfo]) -> bytes:
    """The `.metadata` file as FileSystemWriter writes it, without what differs from save to save."""
    whole = replace(
        metadata,
        storage_data=storage,
        storage_meta=StorageMeta(checkpoint_id="", save_id=""),
        version=CURRENT_DCP_VERSION,
    )
    return pickle.dumps(whole)

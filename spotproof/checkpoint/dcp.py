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
from collections.abc import Mapping
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

from spotproof.contract.layout import STATE_KEY, Layout, TensorEntry, image_name
from spotproof.errors import BadManifest

_MAP_NORESERVE: Final = 0x4000  # Linux; Python 3.11 has no name for it
FRAME_ALIGN: Final = 64  # torch.save aligns payloads to 64 inside a frame: aligned frames make aligned payloads


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
    tensors: Mapping[str, Tensor], aliases: Mapping[str, str], *, state_capacity: int, rank: int = 0
) -> ImagePlan:
    """The plan for `tensors` and a state document of up to `state_capacity` bytes. Reads no value of any tensor."""
    stored: dict[str, Tensor] = {**tensors, STATE_KEY: torch.empty(state_capacity, dtype=torch.uint8)}
    planner = DefaultSavePlanner()
    planner.set_up_planner(_as_two_levels(stored), is_coordinator=True)
    plans, metadata = planner.create_global_plan([planner.create_local_plan()])
    frames: list[Frame] = []
    storage: dict[MetadataIndex, _StorageInfo] = {}
    end = 0
    for item in plans[0].items:
        frame = _frame(item.index.fqn, stored[item.index.fqn], at=_aligned(end))
        frames.append(frame)
        storage[item.index] = _StorageInfo(image_name(rank), frame.offset, frame.end - frame.offset)
        end = frame.end
    _add_aliases(metadata, storage, aliases)
    layout = Layout(
        image_bytes=end, tensors=tuple(frame.entry for frame in frames), aliases=tuple(sorted(aliases.items()))
    )
    return ImagePlan(layout=layout, frames=tuple(frames), metadata=_metadata_blob(metadata, storage))


def write_frames(plan: ImagePlan, image: memoryview) -> None:
    """Put every frame around the (still empty) payloads of `image`, which is zeroed memory of the image's size."""
    for frame in plan.frames:
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
    return {entry.key: _payload(entry, whole) for entry in layout.tensors}


def _payload(entry: TensorEntry, whole: Tensor) -> Tensor:
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


def _aligned(offset: int) -> int:
    return -(-offset // FRAME_ALIGN) * FRAME_ALIGN


def _frame(key: str, tensor: Tensor, *, at: int) -> Frame:
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


def _add_aliases(metadata: Metadata, storage: dict[MetadataIndex, _StorageInfo], aliases: Mapping[str, str]) -> None:
    """Let stock DCP find a tied tensor under each of its names, though it is stored once."""
    by_key = {index.fqn: index for index in storage}
    for name, key in aliases.items():
        top, _, rest = name.partition(".")
        metadata.state_dict_metadata[name] = metadata.state_dict_metadata[key]
        metadata.planner_data[name] = (top, rest)
        index = by_key[key]
        storage[renamed(index, name)] = storage[index]


def renamed(index: MetadataIndex, fqn: str) -> MetadataIndex:
    """`index` under another name (MetadataIndex is frozen and has its own constructor)."""
    return MetadataIndex(fqn, index.offset, index.index)


def _metadata_blob(metadata: Metadata, storage: dict[MetadataIndex, _StorageInfo]) -> bytes:
    """The `.metadata` file as FileSystemWriter writes it, without what differs from save to save."""
    whole = replace(
        metadata,
        storage_data=storage,
        storage_meta=StorageMeta(checkpoint_id="", save_id=""),
        version=CURRENT_DCP_VERSION,
    )
    return pickle.dumps(whole)

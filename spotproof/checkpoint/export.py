"""A pulled checkpoint as one safetensors file: the bytes of its tensors behind a JSON header. Needs no torch.

Format: https://github.com/huggingface/safetensors (8 bytes of header length, little-endian; the header; the data).
"""

from __future__ import annotations

import itertools
import json
import math
import os
import re
import struct
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from spotproof.checkpoint.pull import MANIFEST_FILE
from spotproof.contract import layout
from spotproof.contract.layout import STATE_KEY, Layout, TensorEntry, image_name
from spotproof.contract.manifest import decode_manifest
from spotproof.errors import BadSettings, MismatchedState

DTYPES: Final[Mapping[str, str]] = {
    "float64": "F64",
    "float32": "F32",
    "float16": "F16",
    "bfloat16": "BF16",
    "float8_e4m3fn": "F8_E4M3",
    "float8_e5m2": "F8_E5M2",
    "int64": "I64",
    "int32": "I32",
    "int16": "I16",
    "int8": "I8",
    "uint8": "U8",
    "uint16": "U16",
    "uint32": "U32",
    "uint64": "U64",
    "bool": "BOOL",
}
_BITS: Final = re.compile(r"^[A-Z]+|_.*$")  # F8_E4M3 -> 8, BF16 -> 16, BOOL -> nothing: one byte
_ALIGN: Final = 8
_COPY_BYTES: Final = 16 * 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Exported:
    """What was written."""

    path: Path
    tensors: int
    bytes: int


def export(pulled: Path, to: Path, *, only: str | None = None) -> Exported:
    """Write the tensors of the tracked modules in the folder `pulled` (see `pull`) into the safetensors file `to`.

    A module's own names are kept; with the module's name before them where several are tracked. `only` names one
    tracked object. Tied tensors are written under each of their names, sharded ones whole. Optimizer state is exported
    only by name.

    Raises:
        BadSettings: `to` exists, or there is no such object.
        MismatchedState: a dtype that safetensors has no name for, or parts of ranks that leave a gap.
    """
    if to.exists():
        raise BadSettings(f"{to} exists already", next_step="name a file that does not exist yet")
    manifest = decode_manifest((pulled / MANIFEST_FILE).read_bytes())
    layouts = [layout.decode((pulled / f"layout-{rank:05d}.json").read_bytes()) for rank in range(manifest.world)]
    images = [pulled / image_name(rank) for rank in range(manifest.world)]
    named = dict(_chosen(layouts[0], _kinds(images[0], layouts[0]), only=only))
    parts = {name: _parts(entry, layouts) for name, entry in named.items()}
    told = {"generation": str(manifest.generation), "step": str(manifest.step), "run": manifest.run, "format": "pt"}
    header, size = _header(named, told)
    partial = to.with_name(to.name + ".partial")
    with partial.open("wb") as sink, ExitStack() as stack:
        sources = [stack.enter_context(image.open("rb")).fileno() for image in images]
        sink.write(header)
        at = len(header)
        for name, entry in named.items():
            for rank, part in parts[name]:
                _copy(sources[rank], sink.fileno(), part, at=at)
            at += _whole_bytes(entry)
        sink.flush()
        os.ftruncate(sink.fileno(), at)
        os.fsync(sink.fileno())
    partial.rename(to)
    return Exported(path=to, tensors=len(named), bytes=len(header) + size)


def _shape(entry: TensorEntry) -> tuple[int, ...]:
    return entry.shape if entry.whole is None else entry.whole


def _whole_bytes(entry: TensorEntry) -> int:
    """Bytes of the whole tensor, of which the entry may be a part."""
    return math.prod(_shape(entry)) * (int(_BITS.sub("", DTYPES[entry.dtype]) or 8) // 8)


def _parts(entry: TensorEntry, layouts: Sequence[Layout]) -> list[tuple[int, TensorEntry]]:
    """(rank, its part) of a tensor, each part once though several ranks have it. Raises MismatchedState for a gap."""
    if entry.whole is None:
        return [(0, entry)]
    found: dict[tuple[int, ...], tuple[int, TensorEntry]] = {}
    for rank, described in enumerate(layouts):
        for one in described.tensors:
            if one.key == entry.key and one.at is not None and one.bytes:
                found.setdefault(one.at, (rank, one))
    if sum(math.prod(one.shape) for _, one in found.values()) != math.prod(entry.whole):
        raise MismatchedState(f"{entry.key}: the parts of the ranks do not make up {entry.whole}")
    return list(found.values())


def _kinds(image: Path, described: Layout) -> dict[str, str]:
    """Tracked object -> module, optimizer or object, as the state document says."""
    entry = next(one for one in described.tensors if one.key == STATE_KEY)
    with image.open("rb") as source:
        document = json.loads(os.pread(source.fileno(), entry.bytes, entry.offset))
    return {name: str(one["kind"]) for name, one in document["objects"].items()}


def _chosen(described: Layout, kinds: Mapping[str, str], *, only: str | None) -> Iterator[tuple[str, TensorEntry]]:
    wanted = [only] if only is not None else sorted(name for name, kind in kinds.items() if kind == "module")
    if not wanted or any(name not in kinds for name in wanted):
        raise BadSettings(
            f"the checkpoint has no {'module' if only is None else only}",
            next_step=f"name one of {', '.join(sorted(kinds))}",
        )
    entries = {entry.key: entry for entry in described.tensors}
    named = entries | {name: entries[key] for name, key in described.aliases}
    for name in wanted:
        for key in sorted(key for key in named if key.startswith(f"{name}.")):
            yield key.removeprefix(f"{name}.") if len(wanted) == 1 else key, named[key]


def _header(named: Mapping[str, TensorEntry], told: Mapping[str, str]) -> tuple[bytes, int]:
    body: dict[str, Any] = {"__metadata__": dict(told)}
    at = 0
    for name, entry in named.items():
        if entry.dtype not in DTYPES:
            raise MismatchedState(
                f"{name}: safetensors has no name for {entry.dtype}", next_step="load the pulled folder with torch DCP"
            )
        end = at + _whole_bytes(entry)
        body[name] = {"dtype": DTYPES[entry.dtype], "shape": list(_shape(entry)), "data_offsets": [at, end]}
        at = end
    text = json.dumps(body, separators=(",", ":")).encode()
    text += b" " * (-len(text) % _ALIGN)
    return struct.pack("<Q", len(text)) + text, at


def _copy(source: int, sink: int, part: TensorEntry, *, at: int) -> None:
    """Put a part where it belongs in the whole tensor, which begins at `at`: run by run of bytes that stay together."""
    whole, begins = _shape(part), part.at or (0,) * len(part.shape)
    item = part.bytes // max(1, math.prod(part.shape))
    together = len(whole)  # dimensions from here on are whole in the part
    while together > 0 and part.shape[together - 1] == whole[together - 1]:
        together -= 1
    outer = part.shape[: max(0, together - 1)]
    run = math.prod(part.shape[len(outer) :]) * item
    strides = [math.prod(whole[dimension + 1 :]) * item for dimension in range(len(whole))]
    for number, index in enumerate(itertools.product(*map(range, outer))):
        place = sum((one + begin) * stride for one, begin, stride in zip(index, begins, strides, strict=False))
        place += sum(begin * stride for begin, stride in zip(begins[len(outer) :], strides[len(outer) :], strict=True))
        for offset in range(0, run, _COPY_BYTES):
            data = os.pread(source, min(_COPY_BYTES, run - offset), part.offset + number * run + offset)
            os.pwrite(sink, data, at + place + offset)

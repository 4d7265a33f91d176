"""A pulled checkpoint as one safetensors file: the bytes of its tensors behind a JSON header. Needs no torch.

Format: https://github.com/huggingface/safetensors (8 bytes of header length, little-endian; the header; the data).
"""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Iterator, Mapping
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
    tracked object. Tied tensors are written under each of their names. Optimizer state is exported only by name.

    Raises:
        BadSettings: `to` exists, or there is no such object.
        MismatchedState: a dtype that safetensors has no name for, or a world whose ranks hold different tensors.
    """
    if to.exists():
        raise BadSettings(f"{to} exists already", next_step="name a file that does not exist yet")
    manifest = decode_manifest((pulled / MANIFEST_FILE).read_bytes())
    described = layout.decode((pulled / "layout-00000.json").read_bytes())
    image = pulled / image_name(0)
    named = dict(_chosen(described, _kinds(image, described), only=only))
    told = {"generation": str(manifest.generation), "step": str(manifest.step), "run": manifest.run, "format": "pt"}
    header, size = _header(named, told)
    partial = to.with_name(to.name + ".partial")
    with partial.open("wb") as sink, image.open("rb") as source:
        sink.write(header)
        for entry in named.values():
            _copy(source.fileno(), sink, entry)
        sink.flush()
        os.fsync(sink.fileno())
    partial.rename(to)
    return Exported(path=to, tensors=len(named), bytes=len(header) + size)


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
        body[name] = {"dtype": DTYPES[entry.dtype], "shape": list(entry.shape), "data_offsets": [at, at + entry.bytes]}
        at += entry.bytes
    text = json.dumps(body, separators=(",", ":")).encode()
    text += b" " * (-len(text) % _ALIGN)
    return struct.pack("<Q", len(text)) + text, at


def _copy(source: int, sink: Any, entry: TensorEntry) -> None:  # Any: a binary file
    for offset in range(entry.offset, entry.offset + entry.bytes, _COPY_BYTES):
        sink.write(os.pread(source, min(_COPY_BYTES, entry.offset + entry.bytes - offset), offset))

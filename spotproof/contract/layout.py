"""The layout of a rank's image: where each tensor's payload lies. It is all that a restore reads besides the payloads.

Stored as a blob of its own (deterministic JSON); fixed once per generation. Offsets and sizes are bytes from the
beginning of the image (the `.distcp` file), payloads are contiguous and little-endian.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any, Final

from spotproof.errors import BadManifest

FORMAT: Final = 1
STATE_KEY: Final = "spotproof.state"  # the uint8 tensor that holds everything that is not a tensor, as tagged JSON


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorEntry:
    """One tensor: `key` is its DCP name, `dtype` as torch spells it without the prefix (`float32`).

    A part of a tensor that several ranks have together says the shape of the `whole` and where in it it lies (`at`).
    """

    key: str
    dtype: str
    shape: tuple[int, ...]
    offset: int
    bytes: int
    whole: tuple[int, ...] | None = None
    at: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Every tensor of an image, in file order. `image_bytes` is the size of the whole file. `aliases` are pairs
    (name, key of the tensor whose storage it shares): tied weights are stored once."""

    image_bytes: int
    tensors: tuple[TensorEntry, ...]
    aliases: tuple[tuple[str, str], ...] = ()


def image_name(rank: int) -> str:
    """Name of a rank's image in a materialised checkpoint: what stock DCP writes for it."""
    return f"__{rank}_0.distcp"


def encode(layout: Layout) -> bytes:
    """Deterministic JSON."""
    body = {"format": FORMAT, **asdict(layout)}
    for entry in body["tensors"]:
        if entry["whole"] is None:  # nothing is said of a tensor that one rank has alone
            del entry["whole"], entry["at"]
    return json.dumps(body, sort_keys=True, separators=(",", ":")).encode()


def decode(data: bytes) -> Layout:
    """The layout in `data`. Raises BadManifest: not JSON, another format, or an entry that leaves the image."""
    try:
        body: Any = json.loads(data)
        if body["format"] != FORMAT:
            raise BadManifest(f"layout has format {body['format']!r}, not {FORMAT}")
        layout = Layout(
            image_bytes=int(body["image_bytes"]),
            tensors=tuple(
                TensorEntry(
                    key=str(entry["key"]),
                    dtype=str(entry["dtype"]),
                    shape=tuple(int(n) for n in entry["shape"]),
                    offset=int(entry["offset"]),
                    bytes=int(entry["bytes"]),
                    whole=_shape(entry.get("whole")),
                    at=_shape(entry.get("at")),
                )
                for entry in body["tensors"]
            ),
            aliases=tuple((str(name), str(key)) for name, key in body["aliases"]),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise BadManifest(f"layout does not parse: {error!r}") from error
    for entry in layout.tensors:
        if entry.offset < 0 or entry.bytes < 0 or entry.offset + entry.bytes > layout.image_bytes:
            raise BadManifest(f"layout: tensor {entry.key!r} leaves the image")
    return layout


def _shape(numbers: Any) -> tuple[int, ...] | None:  # Any: JSON
    return None if numbers is None else tuple(int(n) for n in numbers)

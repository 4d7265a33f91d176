"""Part, manifest and pointer: what is written last, in this order, and makes a checkpoint exist.

All three are deterministic JSON (sorted keys, no blanks): the same checkpoint has the same bytes, so that a second
writer of one manifest finds an equal object and has succeeded too. Digests are blake3 in hex, sizes are bytes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

from spotproof.contract.ids import is_digest
from spotproof.errors import BadManifest

FORMAT: Final = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """One content-addressed object."""

    digest: str
    bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class File:
    """A file of the materialised checkpoint: the concatenation of its chunks, in order."""

    name: str
    chunks: tuple[Chunk, ...]

    @property
    def bytes(self) -> int:
        """Size of the file."""
        return sum(chunk.bytes for chunk in self.chunks)


@dataclass(frozen=True, slots=True, kw_only=True)
class Receipt:
    """What a checkpoint proves of one rank: `samples` is the data position, `sample_chain` the hash chain of all ids
    consumed so far ('' where no loader is tracked), `state_digest` the digest of the rank's image."""

    rank: int
    step: int
    samples: int
    sample_chain: str
    state_digest: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """What one rank contributed to a checkpoint. `image` is the rank's `.distcp` file, `layout` the JSON list of its
    tensors, `metadata` DCP's own `.metadata` (rank 0 only)."""

    run: str
    generation: int
    step: int
    rank: int
    world: int
    image: File
    layout: File
    metadata: File | None
    receipt: Receipt


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """The truth about one checkpoint: every rank's part, in rank order."""

    run: str
    generation: int
    step: int
    world: int
    parts: tuple[Part, ...]

    @property
    def order(self) -> tuple[int, int]:
        """(generation, step): a pointer only rises along it."""
        return self.generation, self.step

    @property
    def bytes(self) -> int:
        """Bytes of all images."""
        return sum(part.image.bytes for part in self.parts)

    def chunks(self) -> tuple[Chunk, ...]:
        """Every chunk that the checkpoint needs, without repetition, in file order."""
        files = [f for part in self.parts for f in (part.image, part.layout, part.metadata) if f is not None]
        return tuple(dict.fromkeys(chunk for file in files for chunk in file.chunks))


@dataclass(frozen=True, slots=True, kw_only=True)
class Pointer:
    """The run's newest committed checkpoint."""

    generation: int
    step: int
    manifest_key: str
    manifest_digest: str

    @property
    def order(self) -> tuple[int, int]:
        """(generation, step)."""
        return self.generation, self.step


def encode(value: Part | Manifest) -> bytes:
    """Deterministic JSON of a part or a manifest."""
    body = {"format": FORMAT, **asdict(value)}
    return json.dumps(body, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()


def decode_part(data: bytes) -> Part:
    """The part in `data`. Raises BadManifest, naming the field."""
    return _part(_document(data, "part"))


def decode_manifest(data: bytes) -> Manifest:
    """The manifest in `data`. Raises BadManifest, naming the field."""
    body = _document(data, "manifest")
    try:
        manifest = Manifest(
            run=str(body["run"]),
            generation=_count(body["generation"]),
            step=_count(body["step"]),
            world=_count(body["world"]),
            parts=tuple(_part(part) for part in body["parts"]),
        )
    except (KeyError, TypeError) as error:
        raise BadManifest(f"manifest lacks or garbles {error}") from error
    _check_whole(manifest)
    return manifest


def _check_whole(manifest: Manifest) -> None:
    ranks = [part.rank for part in manifest.parts]
    if ranks != list(range(manifest.world)):
        raise BadManifest(f"manifest of step {manifest.step} has ranks {ranks}, not 0..{manifest.world - 1}")
    for part in manifest.parts:
        of_part = (part.run, part.generation, part.step, part.world)
        if of_part != (manifest.run, manifest.generation, manifest.step, manifest.world):
            raise BadManifest(f"part of rank {part.rank} belongs to another checkpoint")


def _document(data: bytes, what: str) -> Mapping[str, Any]:
    try:
        body = json.loads(data)
    except ValueError as error:
        raise BadManifest(f"{what} is not JSON: {error}") from error
    if not isinstance(body, dict) or body.get("format") != FORMAT:
        raise BadManifest(f"{what} has not format {FORMAT}", next_step="read it with the version that wrote it")
    return body


def _part(body: Mapping[str, Any]) -> Part:
    try:
        return Part(
            run=str(body["run"]),
            generation=_count(body["generation"]),
            step=_count(body["step"]),
            rank=_count(body["rank"]),
            world=_count(body["world"]),
            image=_file(body["image"]),
            layout=_file(body["layout"]),
            metadata=None if body["metadata"] is None else _file(body["metadata"]),
            receipt=_receipt(body["receipt"]),
        )
    except (KeyError, TypeError) as error:
        raise BadManifest(f"part lacks or garbles {error}") from error


def _file(body: Mapping[str, Any]) -> File:
    name = body["name"]
    if not isinstance(name, str) or not name or name in {".", ".."} or "/" in name or "\0" in name:
        raise BadManifest(f"{name!r} is not the name of a file")  # it becomes one when a checkpoint is materialised
    return File(name=name, chunks=tuple(_chunk(chunk) for chunk in body["chunks"]))


def _chunk(body: Mapping[str, Any]) -> Chunk:
    digest = body["digest"]
    if not isinstance(digest, str) or not is_digest(digest):
        raise BadManifest(f"{digest!r} is not a digest")
    return Chunk(digest=digest, bytes=_count(body["bytes"]))


def _receipt(body: Mapping[str, Any]) -> Receipt:
    return Receipt(
        rank=_count(body["rank"]),
        step=_count(body["step"]),
        samples=_count(body["samples"]),
        sample_chain=str(body["sample_chain"]),
        state_digest=str(body["state_digest"]),
    )


def _count(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise BadManifest(f"{value!r} is not a count")
    return value

"""Object keys in the checkpoint bucket. Nothing is ever renamed; a manifest that exists is complete."""

from __future__ import annotations

import re
from typing import Final

from spotproof.errors import BadManifest

RUNS: Final = "runs/"
FOLDERS: Final = ("checkpoints", "blobs")  # of a run: what describes, and the chunks
_MANIFEST = re.compile(r"runs/[^/]+/checkpoints/(\d{8})-(\d{12})/manifest\.json")
_OF_CHECKPOINT = re.compile(r"runs/[^/]+/checkpoints/(\d{8})-(\d{12})/[^/]+")
_FIRST_PART = re.compile(r"runs/[^/]+/checkpoints/(\d{8})-(\d{12})/part-00000\.json")


def run_prefix(run: str) -> str:
    """Everything of one run."""
    return f"{RUNS}{run}/"


def blob(run: str, digest: str) -> str:
    """A content-addressed chunk (blake3 of its bytes, hex)."""
    return f"{RUNS}{run}/blobs/{digest}"


def checkpoints_prefix(run: str) -> str:
    """All parts and manifests of a run."""
    return f"{RUNS}{run}/checkpoints/"


def checkpoint_prefix(run: str, generation: int, step: int) -> str:
    """Parts and manifest of one checkpoint; zero-padded, so that listings are in order."""
    return f"{checkpoints_prefix(run)}{generation:08d}-{step:012d}/"


def part(run: str, generation: int, step: int, rank: int) -> str:
    """What one rank contributed."""
    return f"{checkpoint_prefix(run, generation, step)}part-{rank:05d}.json"


def manifest(run: str, generation: int, step: int) -> str:
    """The one object, written last, that makes the checkpoint exist."""
    return f"{checkpoint_prefix(run, generation, step)}manifest.json"


def is_manifest(key: str) -> bool:
    """Whether `key` names a manifest."""
    return _MANIFEST.fullmatch(key) is not None


def order_of_manifest(key: str) -> tuple[int, int]:
    """(generation, step) of a manifest's key. Raises BadManifest if it is not one."""
    match = _MANIFEST.fullmatch(key)
    if match is None:
        raise BadManifest(f"{key!r} is not the key of a manifest")
    return int(match[1]), int(match[2])


def order_of(key: str) -> tuple[int, int] | None:
    """(generation, step) of the checkpoint that `key` belongs to, part or manifest; None if it is of none."""
    match = _OF_CHECKPOINT.fullmatch(key)
    return None if match is None else (int(match[1]), int(match[2]))


def order_of_first_part(key: str) -> tuple[int, int] | None:
    """(generation, step) if `key` is the part of rank 0, else None: one such key per checkpoint, whole or not."""
    match = _FIRST_PART.fullmatch(key)
    return None if match is None else (int(match[1]), int(match[2]))

"""What a save consists of, before any of it has a digest."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from spotproof.contract.states import SaveKind

LAYOUT_FILE: Final = "layout.json"
METADATA_FILE: Final = ".metadata"


@dataclass(frozen=True, slots=True, kw_only=True)
class Save:
    """Which checkpoint an image is, and what its receipt says."""

    run: str
    generation: int
    step: int
    kind: SaveKind
    rank: int = 0
    world: int = 1
    samples: int = 0
    sample_chain: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Content:
    """The bytes of a rank's part. `metadata` is DCP's blob, on rank 0 only (empty: none)."""

    image: memoryview
    layout: bytes
    metadata: bytes
    chunk_bytes: int

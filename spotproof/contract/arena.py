"""The memory that an agent hands to a trainer: one memfd per arena, a header page and then the image.

Header (little-endian, 4,096 bytes reserved): magic, version, state, generation, step, image_bytes. Only the trainer
moves FREE -> FILLING -> COMPLETE; only the uploader moves COMPLETE -> UPLOADING -> FREE (and the agent gives a FILLING
arena back when its trainer has died). The state word is written last.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Final

from spotproof.contract.states import ArenaState
from spotproof.errors import ProtocolError

HEADER_BYTES: Final = 4096
MAGIC: Final = b"SPARENA1"
_HEADER = struct.Struct("<8sIIQQQ")
_WORD = struct.Struct("<I")
STATE_AT: Final = 12
_STATES: Final = (ArenaState.FREE, ArenaState.FILLING, ArenaState.COMPLETE, ArenaState.UPLOADING)
DEFAULT_ARENAS: Final = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class ArenaHeader:
    """What stands in the header page."""

    state: ArenaState
    generation: int
    step: int
    image_bytes: int


def pack(header: ArenaHeader) -> bytes:
    """The header's bytes."""
    state = _STATES.index(header.state)
    return _HEADER.pack(MAGIC, 1, state, header.generation, header.step, header.image_bytes)


def pack_state(state: ArenaState) -> bytes:
    """The state word alone, which stands at STATE_AT: what is written last, and all that most moves write."""
    return _WORD.pack(_STATES.index(state))


def unpack(page: bytes | memoryview) -> ArenaHeader:
    """The header in `page`. Raises ProtocolError if it is none."""
    magic, version, state, generation, step, image_bytes = _HEADER.unpack_from(page)
    if magic != MAGIC or version != 1 or state >= len(_STATES):
        raise ProtocolError("this memory is not an arena of version 1")
    return ArenaHeader(state=_STATES[state], generation=generation, step=step, image_bytes=image_bytes)

"""Agent <-> trainer: JSON messages over an AF_UNIX SOCK_SEQPACKET socket, memory by SCM_RIGHTS.

Calls, in order (T = trainer, one connection per process; A = agent):

    T -> A  Hello            who I am
    A -> T  Welcome          what this run is; `start` says whether there is something to restore
    T -> A  WantRestore      only if `start` is set; answered when the image has been fetched and verified
    A -> T  Restored         + one fd: an arena memfd that holds the image; layout and position beside it;
            RestoreFailed    where checkpoints are there and none is whole
    T -> A  WantArenas       once, after the first real step: the layout and the .metadata blob travel as a memfd
    A -> T  Arenas           + one fd per arena; ArenasRefused where the memory limit does not allow them
    T -> A  Saved            an arena is COMPLETE; the agent answers nothing, work goes on
    A -> T  Committed        that step is durable
    A -> T  SaveFailed       that save is given up; the last commit stands
    A -> T  Notice           save now, and leave if `leave` is set
    A -> T  FlushDone        the flush outcome is final; a leaver may exit
    T -> A  Progress         step, loss, samples; at most once a second
    T -> A  Finished         the loop ended by itself, after the last save

`spotproof run` uses the same socket: Hello with role "launcher", then `Go` when the membership is sealed, `Exited` at
the end, answered by `Verdict` with the exit code.
"""

from __future__ import annotations

import dataclasses
import json
import typing
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final, TypeAlias

from spotproof.contract.plain import typed
from spotproof.contract.states import FlushOutcome, NoticeKind, SaveKind, WhenBusy
from spotproof.errors import ProtocolError

VERSION: Final = 1
SOCKET: Final = "agent.sock"
MAX_MESSAGE_BYTES: Final = 64 * 1024


class Role(StrEnum):
    """Who connects."""

    TRAINER = "trainer"
    LAUNCHER = "launcher"


@dataclass(frozen=True, slots=True, kw_only=True)
class Hello:
    """First message of a connection."""

    role: Role
    pid: int
    version: int = VERSION
    rank: int = 0
    world: int = 1
    local_rank: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Welcome:
    """What the run is. `start_step` -1: nothing to restore, begin at step 0."""

    run: str
    slot: int
    incarnation: int
    generation: int
    start_generation: int = -1
    start_step: int = -1
    every_s: float = 180.0
    every_steps: int = 0  # 0: by time only
    arenas: int = 2
    when_busy: WhenBusy = WhenBusy.WAIT


@dataclass(frozen=True, slots=True, kw_only=True)
class WantRestore:
    """The trainer is ready to load rank `rank`'s image."""

    rank: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Restored:
    """The image that was verified (fd) and its layout (second fd: JSON bytes). `skipped` tells, one text each, which
    newer checkpoints were passed over and why. `step` -1: nothing to restore, no fds follow. `is_committed` False:
    the copy is whole on this node's disk only, and has to be saved again."""

    generation: int = -1
    step: int = -1
    is_committed: bool = True
    samples: int = 0
    sample_chain: str = ""
    image_bytes: int = 0
    layout_bytes: int = 0
    seconds: float = 0.0
    skipped: tuple[str, ...] = ()
    world: int = 0  # how many ranks saved it; 0: not said


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoreFailed:
    """No checkpoint could be loaded; the trainer must not start from zero."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WantArenas:
    """Sizes of the image; one fd follows: layout JSON (`layout_bytes`), then the .metadata blob."""

    image_bytes: int
    layout_bytes: int
    metadata_bytes: int
    rank: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Arenas:
    """As many fds follow as there are arenas. Each memfd is HEADER_BYTES + image_bytes long."""

    count: int
    image_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ArenasRefused:
    """The memory limit does not allow them; the message says which limit and what would help."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Saved:
    """Arena `arena` is COMPLETE with `step`."""

    arena: int
    step: int
    kind: SaveKind
    samples: int
    sample_chain: str
    rank: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Committed:
    """`step` is durable: its manifest is in the bucket and the pointer names it or a newer one."""

    generation: int
    step: int
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SaveFailed:
    """The save of `step` is given up."""

    step: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Notice:
    """Save at the next boundary; if `leave`, then park until FlushDone. `deadline_at` is Unix seconds."""

    order: str
    kind: NoticeKind
    deadline_at: float
    leave: bool
    save: bool = True  # False: no step boundary would fit any more


@dataclass(frozen=True, slots=True, kw_only=True)
class FlushDone:
    """The outcome is recorded; a leaver may end."""

    outcome: FlushOutcome
    step: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """Where training is."""

    step: int
    loss: float | None = None
    samples: int = 0
    step_seconds: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """Training ended by itself at `step`."""

    step: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Go:
    """To the launcher: start the command now, with these extra environment variables (`NAME=value`)."""

    command: tuple[str, ...]
    environment: tuple[str, ...] = ()
    waits_to_be_stopped: bool = False  # one of many nodes: its workers park after a flush, so stop it at once


@dataclass(frozen=True, slots=True, kw_only=True)
class Exited:
    """From the launcher: the command ended with this code (negative: by that signal)."""

    code: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """To the launcher: exit with this code, and say this."""

    code: int
    says: str = ""


Frame: TypeAlias = (
    Hello
    | Welcome
    | WantRestore
    | Restored
    | RestoreFailed
    | WantArenas
    | Arenas
    | ArenasRefused
    | Saved
    | Committed
    | SaveFailed
    | Notice
    | FlushDone
    | Progress
    | Finished
    | Go
    | Exited
    | Verdict
)

_FRAMES: Final[dict[str, type[Any]]] = {kind.__name__: kind for kind in typing.get_args(Frame)}


def encode(frame: Frame) -> bytes:
    """One datagram. Raises ProtocolError if it is too long."""
    data = json.dumps({"frame": type(frame).__name__, **dataclasses.asdict(frame)}, separators=(",", ":")).encode()
    if len(data) > MAX_MESSAGE_BYTES:
        raise ProtocolError(f"{type(frame).__name__} is {len(data)} bytes long, over {MAX_MESSAGE_BYTES}")
    return data


def decode(data: bytes) -> Frame:
    """The frame in `data`. Raises ProtocolError: not JSON, an unknown frame, or fields that do not fit."""
    try:
        body = json.loads(data)
        kind = _FRAMES[body.pop("frame")]
        hints = typing.get_type_hints(kind)
        frame: Frame = kind(**{name: typed(value, hints[name]) for name, value in body.items()})
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ProtocolError(f"not a message of protocol {VERSION}: {data[:120]!r} ({error!r})") from error
    return frame

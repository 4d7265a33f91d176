"""Agent <-> uploader: what is asked and what is answered, over a private SOCK_SEQPACKET pair.

    agent -> uploader  Begin       once: the run, its stores, where local copies go
    agent -> uploader  UseArenas   + fds: a memfd with layout and .metadata, then the arenas of one rank
    agent -> uploader  Upload      commit what is COMPLETE in an arena; done in the order asked
    uploader -> agent  Sent        how far an upload is, twice a second
    uploader -> agent  Staged      the local copy is whole (or why not)
    uploader -> agent  Done        committed; the arena is FREE
    uploader -> agent  GivenUp     not committed; the arena is FREE, the last commit stands

The agent ends it by closing its end: what has been asked is still finished.
"""

from __future__ import annotations

import dataclasses
import json
import os
import socket
import struct
import typing
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from spotproof.contract.protocol import MAX_MESSAGE_BYTES
from spotproof.contract.states import SaveKind
from spotproof.errors import ProtocolError

_FDS_MAX: Final = 8
_INT: Final = struct.Struct("i")
_RIGHTS: Final = (socket.SOL_SOCKET, socket.SCM_RIGHTS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Begin:
    """What does not change. Either bucket and table (and region), or a folder and a table file off AWS."""

    run: str
    scratch_dir: str
    bucket: str = ""
    table: str = ""
    region: str = ""
    objects_dir: str = ""
    table_file: str = ""
    chunk_bytes: int = 0  # 0: the smallest
    threads: int = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class UseArenas:
    """Arenas of rank `rank`; earlier ones of that rank are let go of once their jobs are done."""

    rank: int
    world: int
    layout_bytes: int
    metadata_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Upload:
    """Arena `arena` of rank `rank` is COMPLETE with this step. `until_at`: Unix seconds after which it is too late
    (0: none); until then a save that fails for want of an answer is tried again."""

    rank: int
    arena: int
    generation: int
    step: int
    kind: SaveKind
    samples: int = 0
    sample_chain: str = ""
    until_at: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Staged:
    """`problem` is empty where the local copy is whole."""

    rank: int
    generation: int
    step: int
    bytes: int
    seconds: float
    problem: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """`is_committed` False: this rank's part is there, another rank's is not yet. `is_pointed` False: durable, but
    the table did not answer when the pointer was to rise."""

    rank: int
    generation: int
    step: int
    kind: SaveKind
    bytes: int
    sent_bytes: int
    seconds: float
    is_committed: bool
    is_pointed: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class GivenUp:
    """Why a step was not committed. `is_superseded`: a newer membership is sealed, this node must stop."""

    rank: int
    generation: int
    step: int
    kind: SaveKind
    reason: str
    is_superseded: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Sent:
    """Bytes of this save that the bucket has taken, after `seconds`."""

    rank: int
    generation: int
    step: int
    bytes: int
    seconds: float


Job: TypeAlias = Begin | UseArenas | Upload
Report: TypeAlias = Staged | Done | GivenUp
Message: TypeAlias = Job | Report | Sent

_KINDS: Final[dict[str, type[Any]]] = {kind.__name__: kind for kind in typing.get_args(Message)}


def send(sock: socket.socket, message: Message, fds: Sequence[int] = ()) -> None:
    """Send one message; the descriptors stay the caller's. Raises BrokenPipeError if the other end is gone."""
    data = json.dumps({"message": type(message).__name__, **dataclasses.asdict(message)}).encode()
    socket.send_fds(sock, [data], list(fds), socket.MSG_NOSIGNAL)


def receive(sock: socket.socket, *, flags: int = 0) -> tuple[Message, list[int]] | None:
    """The next message and the descriptors with it, now the caller's; None when the other end is gone.

    Raises BlockingIOError with MSG_DONTWAIT if nothing is there, ProtocolError for what is no message.
    """
    try:
        # Not socket.recv_fds: up to Python 3.11 it forgets to pass its flags on.
        room = socket.CMSG_LEN(_FDS_MAX * _INT.size)
        data, controls, _, _ = sock.recvmsg(MAX_MESSAGE_BYTES, room, socket.MSG_CMSG_CLOEXEC | flags)
    except ConnectionResetError:
        return None
    if not data:
        return None
    fds = [fd for level, kind, raw in controls if (level, kind) == _RIGHTS for (fd,) in _INT.iter_unpack(raw)]
    try:
        return _decode(data), fds
    except BaseException:
        for fd in fds:
            os.close(fd)
        raise


def _decode(data: bytes) -> Message:
    try:
        body = json.loads(data)
        kind = _KINDS[body.pop("message")]
        if "kind" in body:
            body["kind"] = SaveKind(body["kind"])
        message: Message = kind(**body)
    except (ValueError, KeyError, TypeError) as error:
        raise ProtocolError(f"not a message between agent and uploader: {data[:120]!r} ({error!r})") from error
    return message

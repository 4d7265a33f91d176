"""The socket between agent and trainer: one frame per datagram, memory beside it.

Both ends use this file, and the agent's uploader process too. SOCK_SEQPACKET keeps frames whole and in order and tells
when the other end has gone; file descriptors travel by SCM_RIGHTS and belong to whoever received them.
"""

from __future__ import annotations

import os
import select
import socket
import struct
import time
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from spotproof.contract.protocol import MAX_MESSAGE_BYTES, SOCKET, Frame, decode, encode
from spotproof.errors import NoAgent, ProtocolError

FDS_MAX: Final = 8
_UCRED: Final = struct.Struct("iII")
_RETRY_S: Final = 0.05


class Ended(Exception):
    """The other end has closed the connection or died."""


@dataclass(slots=True)
class Received:
    """A frame and the descriptors that came with it; `close` those that nobody took."""

    frame: Frame
    fds: list[int] = field(default_factory=list)

    def take(self) -> int:
        """The next descriptor, now the caller's. Raises ProtocolError if there is none."""
        if not self.fds:
            raise ProtocolError(f"{type(self.frame).__name__} came without the memory that belongs to it")
        return self.fds.pop(0)

    def close(self) -> None:
        """Close what was not taken."""
        while self.fds:
            os.close(self.fds.pop())


class Channel:
    """One connection. Not thread-safe: each process uses it from one thread."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock

    def fileno(self) -> int:
        """For selectors."""
        return self.sock.fileno()

    @property
    def peer_pid(self) -> int:
        """The other end's process, as the kernel knows it (a container cannot lie about it); 0 if it is not visible."""
        raw = self.sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size)
        pid, _, _ = _UCRED.unpack(raw)
        return int(pid)

    def send(self, frame: Frame, fds: Sequence[int] = ()) -> None:
        """Send; the descriptors stay the caller's. Raises Ended; BlockingIOError where the socket does not block."""
        try:
            socket.send_fds(self.sock, [encode(frame)], list(fds), socket.MSG_NOSIGNAL)
        except (BrokenPipeError, ConnectionResetError) as error:
            raise Ended from error

    def receive(self, *, timeout_s: float | None = None) -> Received | None:
        """The next frame, or None after `timeout_s` (None: wait; 0: only look).

        Raises Ended when the other end is gone, ProtocolError for what is no frame.
        """
        if timeout_s is not None and not select.select([self.sock], [], [], max(0.0, timeout_s))[0]:
            return None
        try:
            data, fds, flags, _ = socket.recv_fds(self.sock, MAX_MESSAGE_BYTES, FDS_MAX, socket.MSG_CMSG_CLOEXEC)
        except BlockingIOError:
            return None
        except ConnectionResetError as error:
            raise Ended from error
        try:
            return Received(frame=_frame_of(data, flags), fds=list(fds))
        except BaseException:
            for fd in fds:
                os.close(fd)
            raise

    def waiting(self) -> Iterator[Received]:
        """Every frame that is there now, without waiting."""
        while (received := self.receive(timeout_s=0)) is not None:
            yield received

    def close(self) -> None:
        """End the connection."""
        self.sock.close()


def _frame_of(data: bytes, flags: int) -> Frame:
    if not data:
        raise Ended
    if flags & (socket.MSG_TRUNC | socket.MSG_CTRUNC):
        raise ProtocolError("a message was cut: the other end speaks another version")
    return decode(data)


def pair() -> tuple[Channel, Channel]:
    """Two ends of a private connection."""
    one, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    return Channel(one), Channel(other)


def connect(runtime_dir: Path, *, patience_s: float = 0.0) -> Channel:
    """Connect to the agent in `runtime_dir`, trying for `patience_s`. Raises NoAgent."""
    until = time.monotonic() + patience_s
    while True:
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            with socket_address(runtime_dir) as address:
                sock.connect(address)
            _keep_from_children(sock)
            return Channel(sock)
        except OSError as error:
            sock.close()
            if time.monotonic() >= until:
                raise NoAgent(
                    f"no agent answers on {runtime_dir / SOCKET}: {error.strerror}",
                    next_step="start it with `spotproof agent`, or start the command with `spotproof run -- ...`",
                ) from error
        time.sleep(_RETRY_S)


def _keep_from_children(sock: socket.socket) -> None:
    """A forked child (a DataLoader's worker) that outlives its parent must not keep the connection: for the agent the
    trainer would live on, and the next one would be a rival."""
    kept = weakref.ref(sock)

    def close() -> None:
        inherited = kept()
        if inherited is not None:
            inherited.close()

    os.register_at_fork(after_in_child=close)


@contextmanager
def socket_address(runtime_dir: Path) -> Iterator[str]:
    """An address of the agent's socket that is short enough whatever the folder's name is (the limit is 107 bytes)."""
    folder = os.open(runtime_dir, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{folder}/{SOCKET}"
    finally:
        os.close(folder)

"""The agent's socket: who is connected, what they say, and memory for them. Never blocks the loop.

One connection per process. What cannot be sent at once (a trainer in a long step does not read) waits in the peer's
outbox, its descriptors duplicated, and goes out when the socket has room again.
"""

from __future__ import annotations

import fcntl
import os
import selectors
import socket
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from spotproof.checkpoint.channel import Channel, Ended, Received, socket_address
from spotproof.checkpoint.childagent import LOCK
from spotproof.contract.protocol import SOCKET, Frame, Hello
from spotproof.errors import BadSettings, ProtocolError

_BACKLOG: Final = 16


@dataclass(eq=False, slots=True)
class Peer:
    """A process that is connected. `hello` is None until it has said who it is."""

    channel: Channel
    pid: int
    hello: Hello | None = None
    outbox: deque[tuple[Frame, list[int]]] = field(default_factory=deque)


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """A frame of a peer; `received` None: it has gone."""

    peer: Peer
    received: Received | None


class Server:
    """Listens in `runtime_dir`. A context manager; leaving it closes every connection and removes the socket."""

    def __init__(self, runtime_dir: Path, selector: selectors.BaseSelector) -> None:
        self._runtime_dir = runtime_dir
        self._selector = selector
        self._lock = -1
        self._listener: socket.socket | None = None
        self.peers: list[Peer] = []

    def __enter__(self) -> Self:
        """Take the folder's lock and listen.

        Raises BadSettings: another agent has the folder; two agents must never share one.
        """
        self._runtime_dir.mkdir(mode=0o755, parents=True, exist_ok=True)
        self._lock = _lock(self._runtime_dir / LOCK)
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        (self._runtime_dir / SOCKET).unlink(missing_ok=True)  # of an agent that was killed: the lock says it is gone
        with socket_address(self._runtime_dir) as address:
            listener.bind(address)
        (self._runtime_dir / SOCKET).chmod(0o666)  # the folder's own mode says who may come; the trainer may be nobody
        listener.listen(_BACKLOG)
        listener.setblocking(False)
        self._selector.register(listener, selectors.EVENT_READ, self)
        self._listener = listener
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close_door()
        for peer in list(self.peers):
            self.drop(peer)
        os.close(self._lock)

    def close_door(self) -> None:
        """Let nobody in any more; who is connected stays. The next agent of this folder waits for the lock."""
        if self._listener is not None:
            (self._runtime_dir / SOCKET).unlink(missing_ok=True)
            self._selector.unregister(self._listener)
            self._listener.close()
            self._listener = None

    def accept(self) -> Peer | None:
        """The peer that knocks, now registered with the selector."""
        if self._listener is None:
            return None
        try:
            sock, _ = self._listener.accept()
        except (BlockingIOError, ConnectionAbortedError):
            return None
        sock.setblocking(False)
        channel = Channel(sock)
        peer = Peer(channel=channel, pid=channel.peer_pid)
        self.peers.append(peer)
        self._selector.register(sock, selectors.EVENT_READ, peer)
        return peer

    def hear(self, peer: Peer) -> Iterator[Said]:
        """Everything that `peer` says now. A peer that has gone, or that speaks nonsense, is dropped and told of."""
        while peer in self.peers:
            try:
                received = peer.channel.receive(timeout_s=0)
            except (Ended, ProtocolError):
                self.drop(peer)
                yield Said(peer=peer, received=None)
                return
            if received is None:
                return
            if isinstance(received.frame, Hello):
                peer.hello = received.frame
            yield Said(peer=peer, received=received)

    def send(self, peer: Peer, frame: Frame, fds: Sequence[int] = ()) -> None:
        """Send now or as soon as there is room, in order. To a peer that has gone: nothing happens."""
        peer.outbox.append((frame, [os.dup(fd) for fd in fds]))
        self.flush(peer)

    def flush(self, peer: Peer) -> None:
        """Send from the outbox what there is room for."""
        if peer not in self.peers:
            _discard(peer)
            return
        try:
            while peer.outbox:
                frame, fds = peer.outbox[0]
                peer.channel.send(frame, fds)
                peer.outbox.popleft()
                _close(fds)
        except BlockingIOError:
            pass
        except Ended:
            _discard(peer)  # its end is heard when it is read
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if peer.outbox else 0)
        self._selector.modify(peer.channel.sock, events, peer)

    def drop(self, peer: Peer) -> None:
        """End the connection."""
        if peer in self.peers:
            self.peers.remove(peer)
            self._selector.unregister(peer.channel.sock)
            peer.channel.close()
        _discard(peer)


def _lock(path: Path) -> int:
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(fd)
        raise BadSettings(
            f"{path.parent} is in use by another agent",
            next_step="let that one end, or give this run another folder (SPOTPROOF_RUNTIME_DIR or --local)",
        ) from error
    return fd


def _discard(peer: Peer) -> None:
    while peer.outbox:
        _close(peer.outbox.popleft()[1])


def _close(fds: list[int]) -> None:
    for fd in fds:
        os.close(fd)

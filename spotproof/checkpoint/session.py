"""The trainer's side of the protocol: one connection to the agent, and what it has said so far.

Used from the training loop's thread only. Frames that arrive while another one is waited for are kept, not lost. An
agent that is gone does not stop training: `reconnect` looks for it again, and saves go on when it is back.
"""

from __future__ import annotations

import mmap
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Self

from spotproof.checkpoint.arena import sealed_memory
from spotproof.checkpoint.channel import Channel, Ended, Received, connect
from spotproof.checkpoint.childagent import Child, find_agent
from spotproof.contract import layout
from spotproof.contract.layout import Layout
from spotproof.contract.protocol import (
    Arenas,
    ArenasRefused,
    Committed,
    FlushDone,
    Frame,
    Hello,
    Notice,
    Restored,
    RestoreFailed,
    Role,
    SaveFailed,
    WantArenas,
    WantRestore,
    Welcome,
)
from spotproof.errors import ArenaRefused, BadSettings, NoAgent, NoLoadableCheckpoint, ProtocolError

RECONNECT_EVERY_S: Final = 2.0
END_WITHIN_S: Final = 10.0
OPEN_WITHIN_S: Final = 30.0
_LOOK_S: Final = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranks:
    """Which worker this is, as torchrun tells it; alone it is rank 0 of 1."""

    rank: int = 0
    world: int = 1
    local_rank: int = 0

    @classmethod
    def of(cls, environ: Mapping[str, str]) -> Self:
        """Read RANK, WORLD_SIZE and LOCAL_RANK. Raises BadSettings for what is no number."""
        names = {"rank": "RANK", "world": "WORLD_SIZE", "local_rank": "LOCAL_RANK"}
        try:
            found = {field: int(environ[name]) for field, name in names.items() if environ.get(name)}
        except ValueError as error:
            raise BadSettings(f"RANK, WORLD_SIZE and LOCAL_RANK must be numbers: {error}") from error
        return cls(**found)


@dataclass(frozen=True, slots=True, kw_only=True)
class Image:
    """A verified checkpoint: its bytes mapped privately (writable, nobody else sees it), and its layout."""

    restored: Restored
    layout: Layout
    memory: mmap.mmap


@dataclass(slots=True, kw_only=True)
class Session:
    """What the agent has said. `failed` are saves given up since the last look; `flush` the final outcome."""

    environ: Mapping[str, str]
    channel: Channel
    welcome: Welcome
    runtime_dir: Path
    ranks: Ranks = field(default_factory=Ranks)
    process: Child | None = None
    committed: tuple[int, int] = (-1, -1)
    failed: list[SaveFailed] = field(default_factory=list)
    notice: Notice | None = None
    extra: Notice | None = None
    flush: FlushDone | None = None
    is_lost: bool = False
    _looked_at: float = 0.0

    @classmethod
    def open(cls, environ: Mapping[str, str]) -> Self:
        """Find or start the agent and wait until this node has joined the run.

        Raises NoAgent or BadSettings, see `find_agent`.
        """
        until = time.monotonic() + OPEN_WITHIN_S
        ranks = Ranks.of(environ)
        while True:
            found = find_agent(environ)
            try:
                welcome, early = _greet(found.channel, ranks)
            except Ended:
                found.channel.close()
                if found.process is not None or time.monotonic() >= until:
                    raise NoAgent(
                        "the agent ended before this node had joined its run", next_step="read its message above"
                    ) from None
                time.sleep(_LOOK_S)  # we knocked while it was on its way out
                continue
            session = cls(
                environ=environ,
                channel=found.channel,
                welcome=welcome,
                runtime_dir=found.runtime_dir,
                ranks=ranks,
                process=found.process,
            )
            for frame in early:
                session._hear(frame)
            return session

    def parts(self, image: Image) -> Callable[[], list[tuple[mmap.mmap, Layout]]] | None:
        """Gets every rank's part of the checkpoint, one after the other; None where as many ranks as here saved it."""
        saved_by = image.restored.world
        if saved_by in (0, self.ranks.world):
            return None
        return lambda: [(one.memory, one.layout) for rank in range(saved_by) if (one := self.image(rank)) is not None]

    def image(self, rank: int | None = None) -> Image | None:
        """The checkpoint to start from, verified; None: there is none, training starts at step 0. `rank`: whose part,
        if not this one's.

        Raises:
            NoLoadableCheckpoint: there are checkpoints and none is whole: starting at zero would lose work silently.
            NoAgent: the agent has gone.
        """
        self._send(WantRestore(rank=self.ranks.rank if rank is None else rank))
        with_memory = self._wait_for(Restored, RestoreFailed)
        frame = with_memory.frame
        if isinstance(frame, RestoreFailed):
            raise NoLoadableCheckpoint(frame.reason)
        if not isinstance(frame, Restored) or frame.step < 0:
            return None
        image_fd, layout_fd = with_memory.take(), with_memory.take()
        try:
            memory = mmap.mmap(
                image_fd, frame.image_bytes, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_WRITE
            )
            described = layout.decode(os.pread(layout_fd, frame.layout_bytes, 0))
        finally:
            os.close(image_fd)
            os.close(layout_fd)
        if frame.is_committed:
            self.committed = max(self.committed, (frame.generation, frame.step))
        return Image(restored=frame, layout=described, memory=memory)

    def arenas(self, described: Layout, metadata: bytes) -> list[int]:
        """Fresh arenas for an image of this layout; the descriptors become the caller's. DCP's blob is rank 0's.

        Raises ArenaRefused with the limit and what would help; NoAgent.
        """
        body, metadata = layout.encode(described), b"" if self.ranks.rank else metadata
        blob_fd = sealed_memory(len(body) + len(metadata), name="layout")
        try:
            os.pwrite(blob_fd, body + metadata, 0)
            want = WantArenas(
                image_bytes=described.image_bytes,
                layout_bytes=len(body),
                metadata_bytes=len(metadata),
                rank=self.ranks.rank,
            )
            self._send(want, [blob_fd])
        finally:
            os.close(blob_fd)
        answer = self._wait_for(Arenas, ArenasRefused)
        if isinstance(answer.frame, ArenasRefused):
            raise ArenaRefused(answer.frame.reason)
        fds, answer.fds = answer.fds, []
        return fds

    def tell(self, frame: Frame) -> None:
        """Send; an agent that has gone is noted, not raised."""
        if not self.is_lost:
            try:
                self.channel.send(frame)
            except Ended:
                self._lose()

    def hand_over(self, frame: Frame) -> bool:
        """Send from another thread than the loop's: one frame is one system call. False: it did not arrive."""
        try:
            self.channel.send(frame)
        except (Ended, OSError):
            return False
        return True

    def listen(self, *, timeout_s: float = 0.0) -> None:
        """Take in what has arrived; waits up to `timeout_s` for the first frame."""
        if self.is_lost:
            return
        try:
            received = self.channel.receive(timeout_s=timeout_s)
            while received is not None:
                received.close()
                self._hear(received.frame)
                received = self.channel.receive(timeout_s=0)
        except Ended:
            self._lose()

    def reconnect(self) -> bool:
        """Look for the agent again, at most every 2 s; True when one is there (arenas have to be asked for anew)."""
        now = time.monotonic()
        if now < self._looked_at + RECONNECT_EVERY_S:
            return False
        self._looked_at = now
        try:
            channel = connect(self.runtime_dir)
        except (NoAgent, FileNotFoundError):
            if self.process is None or self.process.poll() is None:
                return False
            found = find_agent(self.environ)  # it was ours, and it has died
            channel, self.process = found.channel, found.process
        try:
            self.welcome, early = _greet(channel, self.ranks)
        except Ended:
            channel.close()
            return False
        self.channel, self.is_lost = channel, False
        for frame in early:
            self._hear(frame)
        return True

    def close(self, *, is_over: bool) -> None:
        """End the connection. `is_over`: the agent that we started has nothing more to do and is waited for."""
        self.channel.close()
        if self.process is not None and is_over:
            self.process.wait(within_s=END_WITHIN_S)

    def _send(self, frame: Frame, fds: list[int] | None = None) -> None:
        try:
            self.channel.send(frame, fds or [])
        except Ended:
            self._lose()
            raise NoAgent("the agent has ended", next_step="see its messages above") from None

    def _wait_for(self, *kinds: type[object]) -> Received:
        while True:
            try:
                received = self.channel.receive()
            except Ended:
                self._lose()
                raise NoAgent("the agent has ended", next_step="see its messages above") from None
            if received is None:
                continue
            if isinstance(received.frame, kinds):
                return received
            received.close()
            self._hear(received.frame)

    def _hear(self, frame: Frame) -> None:
        match frame:
            case Committed(generation=generation, step=step):
                self.committed = max(self.committed, (generation, step))
            case SaveFailed():
                self.failed.append(frame)
            case Notice(leave=True):
                self.notice = frame
            case Notice():
                self.extra = frame
            case FlushDone():
                self.flush = frame
            case Welcome():
                self.welcome = frame
            case _:
                raise ProtocolError(f"a trainer is not told {type(frame).__name__}")

    def _lose(self) -> None:
        self.is_lost = True
        self.channel.close()


def _greet(channel: Channel, ranks: Ranks) -> tuple[Welcome, list[Frame]]:
    """Say who we are and wait for the welcome; what comes before it is returned too."""
    hello = Hello(role=Role.TRAINER, pid=os.getpid(), rank=ranks.rank, world=ranks.world, local_rank=ranks.local_rank)
    channel.send(hello)
    early: list[Frame] = []
    while True:
        received = channel.receive()
        if received is None:
            continue
        received.close()
        if isinstance(received.frame, Welcome):
            return received.frame, early
        if isinstance(received.frame, RestoreFailed):
            raise BadSettings(received.frame.reason, next_step="let it end, or use another folder")
        early.append(received.frame)

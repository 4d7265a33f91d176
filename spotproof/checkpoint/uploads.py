"""The agent's handle on its uploader process: starts it, asks it, hears it, and starts it again when it dies.

Order of calls, all from the agent's one thread: `with Uploads(begin)`, then `make_arenas` when a trainer wants them,
`submit` for each save, `reports` whenever `fileno` is readable. Jobs that have no report yet are asked again after a
restart; they end the same way, because committing twice is committing once.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from types import TracebackType
from typing import Final, Protocol, Self

from spotproof.checkpoint import jobs
from spotproof.checkpoint.arena import Arena, create, sealed_memory
from spotproof.checkpoint.jobs import Begin, Done, GivenUp, Job, Report, Sent, Staged, Upload, UseArenas
from spotproof.contract.states import ArenaState
from spotproof.errors import CheckpointError, ProtocolError

END_WITHIN_S: Final = 30.0
_DEATHS_MAX: Final = 5
_DYING_S: Final = 1.0  # its socket has ended, so its exit is a matter of moments


class Process(Protocol):
    """A child process, as subprocess.Popen has it."""

    pid: int
    returncode: int | None

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end; raises subprocess.TimeoutExpired."""

    def kill(self) -> None:
        """SIGKILL."""


Spawn = Callable[[socket.socket], Process]
"""Starts an uploader that speaks on the socket, which is closed here afterwards."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Memory:
    """One rank's arenas and the blobs that belong to them."""

    message: UseArenas
    blob_fd: int
    arena_fds: tuple[int, ...]
    arenas: tuple[Arena, ...]

    def close(self) -> None:
        """Let go; the pages stay for as long as the trainer or the uploader has them mapped."""
        for arena in self.arenas:
            arena.close()
        for fd in (self.blob_fd, *self.arena_fds):
            os.close(fd)


class Uploads:
    """See the module. A context manager: at its end the uploader finishes what it was asked, or is killed."""

    def __init__(self, begin: Begin, *, spawn: Spawn | None = None, end_within_s: float = END_WITHIN_S) -> None:
        self._begin = begin
        self._spawn = spawn or spawn_uploader
        self._end_within_s = end_within_s
        self._memory: dict[int, _Memory] = {}
        self._pending: list[Upload] = []
        self._sent: Sent | None = None
        self._deaths = 0  # since the last report
        self._process, self._sock = self._start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def fileno(self) -> int:
        """For selectors; it changes when the uploader had to be started again."""
        return self._sock.fileno()

    @property
    def pid(self) -> int:
        """The uploader's process."""
        return self._process.pid

    @property
    def pending(self) -> tuple[Upload, ...]:
        """Jobs without a final report, in the order they were asked."""
        return tuple(self._pending)

    @property
    def sending(self) -> Sent | None:
        """How far the upload under way is; None where none is, or it has not told yet."""
        now, told = self._pending[0] if self._pending else None, self._sent
        if now is None or told is None:
            return None
        return told if (told.rank, told.generation, told.step) == (now.rank, now.generation, now.step) else None

    def make_arenas(
        self, *, count: int, image_bytes: int, layout: bytes, metadata: bytes, rank: int = 0, world: int = 1
    ) -> list[int]:
        """New arenas for `rank` of `world`, known to the uploader; returns their memfds, which stay ours.

        The rank's earlier arenas are let go of. Check the memory limits first.
        """
        message = UseArenas(rank=rank, world=world, layout_bytes=len(layout), metadata_bytes=len(metadata))
        blob_fd = sealed_memory(len(layout) + len(metadata), name=f"layout-{rank}")
        os.pwrite(blob_fd, layout + metadata, 0)
        arena_fds = tuple(create(image_bytes, name=f"arena-{rank}-{index}") for index in range(count))
        memory = _Memory(
            message=message, blob_fd=blob_fd, arena_fds=arena_fds, arenas=tuple(Arena(fd) for fd in arena_fds)
        )
        earlier = self._memory.pop(rank, None)
        if earlier is not None:
            earlier.close()
        self._memory[rank] = memory
        self._send(message, (blob_fd, *arena_fds))
        return list(arena_fds)

    def submit(self, job: Upload) -> None:
        """Ask for a commit. The same step asked twice is one job."""
        known = {(other.rank, other.generation, other.step) for other in self._pending}
        if (job.rank, job.generation, job.step) not in known:
            self._pending.append(job)
            self._send(job)

    def reports(self) -> list[Report]:
        """Every report that is there now, without waiting. Restarts the uploader if it has died."""
        found: list[Report] = []
        while True:
            try:
                received = jobs.receive(self._sock, flags=socket.MSG_DONTWAIT)
            except BlockingIOError:
                return found
            if received is None:
                self._restart()
                return found
            message, fds = received
            for fd in fds:
                os.close(fd)
            if isinstance(message, Sent):
                self._sent = message
                continue
            if not isinstance(message, Staged | Done | GivenUp):
                raise ProtocolError(f"an uploader does not say {type(message).__name__}")
            self._forget(message)
            self._deaths = 0
            found.append(message)

    def reclaim(self, rank: int) -> None:
        """The trainer of `rank` has died: what it was filling, or had not yet told us of, is FREE again."""
        memory = self._memory.get(rank)
        asked = {(job.arena, job.step) for job in self._pending if job.rank == rank}
        for index, arena in enumerate(memory.arenas if memory else ()):
            header = arena.header
            is_left = header.state is ArenaState.COMPLETE and (index, header.step) not in asked
            if header.state is ArenaState.FILLING or is_left:
                arena.move(ArenaState.FREE)

    def close(self) -> None:
        """Let the uploader finish within the time given, then kill it; let go of all memory."""
        self._sock.close()
        self._end(within_s=self._end_within_s)
        for memory in self._memory.values():
            memory.close()
        self._memory.clear()

    def _forget(self, report: Report) -> None:
        if not isinstance(report, Staged):
            done = (report.rank, report.generation, report.step)
            self._pending = [job for job in self._pending if (job.rank, job.generation, job.step) != done]

    def _start(self) -> tuple[Process, socket.socket]:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            process = self._spawn(theirs)
        with suppress(BrokenPipeError, ConnectionResetError):  # it died at once: the end of the stream tells
            jobs.send(ours, self._begin)
        return process, ours

    def _restart(self) -> None:
        """After a death: the same memory, the same jobs. An arena that it died over after its report is FREE."""
        self._deaths += 1
        self._end(within_s=_DYING_S)
        ended = self._sock
        if self._deaths > _DEATHS_MAX:
            raise CheckpointError(
                f"the uploader has died {self._deaths} times in a row, last with {self._process.returncode}",
                next_step="see its output above; training goes on, but nothing is committed",
            )
        self._process, self._sock = self._start()
        ended.close()  # only now, so that `fileno` changes: a selector drops a closed number without a word
        for rank, memory in self._memory.items():
            asked = {job.arena for job in self._pending if job.rank == rank}
            for index, arena in enumerate(memory.arenas):
                if index not in asked and arena.header.state is ArenaState.UPLOADING:
                    arena.move(ArenaState.FREE)
            self._try_to_send(memory.message, (memory.blob_fd, *memory.arena_fds))
        for job in self._pending:
            self._try_to_send(job)

    def _send(self, job: Job, fds: tuple[int, ...] = ()) -> None:
        """Send; if the uploader is gone, the restart sends everything that is known by now."""
        if not self._try_to_send(job, fds):
            self._restart()

    def _try_to_send(self, job: Job, fds: tuple[int, ...] = ()) -> bool:
        """Whether it was sent; if not, the end of the stream says so too and `reports` restarts."""
        try:
            jobs.send(self._sock, job, fds)
        except (BrokenPipeError, ConnectionResetError):
            return False
        return True

    def _end(self, *, within_s: float) -> None:
        try:
            self._process.wait(within_s)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def spawn_uploader(sock: socket.socket) -> Process:
    """The real one, in a session of its own: a Ctrl-C for the training command must not end an upload."""
    command = [sys.executable, "-m", "spotproof.checkpoint.uploader", str(sock.fileno())]
    return subprocess.Popen(command, pass_fds=(sock.fileno(),), start_new_session=True)

"""Saving as the agent sees it: memory is checked before it is given, rates are measured, a lost report is looked up.

The uploader process, its restarts and its jobs are `checkpoint.uploads`; an upload survives the trainer, because the
memory is the agent's.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Final, Self

from spotproof.checkpoint import uploads
from spotproof.checkpoint.arena import MemoryLimit, check_memory, memory_limits
from spotproof.checkpoint.chunks import MIB, chunk_bytes_for
from spotproof.checkpoint.jobs import Begin, Done, GivenUp, Report, Upload
from spotproof.contract.arena import HEADER_BYTES
from spotproof.contract.protocol import WantArenas
from spotproof.contract.runspec import RunSpec
from spotproof.plan import network

BYTES_S_OF_A_PUT: Final = 80e6  # about what S3 takes over one connection
THREADS_MAX: Final = 64
RATE_AFTER_S: Final = 1.0  # before that an upload shows latency, not the wire


def suited(begin: Begin, spec: RunSpec) -> Begin:
    """`begin` with chunks and threads for this run: what it says, else what the slowest of its types has a use for.

    One size for all nodes of a run, because a chunk of another size is another chunk, and nothing would be skipped.
    """
    rate = network.slowest_bytes_s(spec.pools.types)
    if spec.checkpoint.chunk_mib:
        chunk_bytes = spec.checkpoint.chunk_mib * MIB
    else:
        chunk_bytes = 0 if rate is None else chunk_bytes_for(rate)
    wanted = begin.threads if rate is None else int(rate / BYTES_S_OF_A_PUT) + 1
    threads = max(begin.threads, min(wanted, THREADS_MAX))
    return dataclasses.replace(begin, chunk_bytes=chunk_bytes, threads=threads)


class Uploads:
    """Arenas and uploader of one node. A context manager; leaving it lets the uploader finish what was asked."""

    def __init__(
        self, begin: Begin, *, was_committed: Callable[[int, int], bool], spawn: uploads.Spawn | None = None
    ) -> None:
        """`was_committed(generation, step)` looks at the bucket: asked only about a save that was given up."""
        self._uploads = uploads.Uploads(begin) if spawn is None else uploads.Uploads(begin, spawn=spawn)
        self._was_committed = was_committed
        self._images: dict[int, int] = {}  # by rank
        self._lacking: dict[int, int] = {}  # what the newest commit lacked of a rank's image, at its last save
        self._rate_bytes_s: float | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._uploads.close()

    def fileno(self) -> int:
        """For selectors; it changes when the uploader was started again."""
        return self._uploads.fileno()

    @property
    def pid(self) -> int:
        """The uploader's process; another one after a restart."""
        return self._uploads.pid

    @property
    def pending(self) -> tuple[Upload, ...]:
        """Uploads that were asked and are not reported, in order."""
        return self._uploads.pending

    @property
    def image_bytes(self) -> int | None:
        """Of all ranks of this node together; None before they have asked for arenas."""
        return sum(self._images.values()) or None

    @property
    def lacking_bytes(self) -> int | None:
        """What the newest commit lacks of them, about."""
        return sum(self._lacking_of(rank) for rank in {*self._images, *self._lacking}) or None

    @property
    def rate_bytes_s(self) -> float | None:
        """Bytes a second of the wire, as the upload under way shows it, or the last one did; None: none yet."""
        sending = self._uploads.sending
        if sending is not None and sending.seconds >= RATE_AFTER_S and sending.bytes > 0:
            return sending.bytes / sending.seconds
        return self._rate_bytes_s

    @property
    def bytes_left(self) -> int:
        """What the uploads that are asked have still to send, about."""
        sending = self._uploads.sending
        asked = sum(self._lacking_of(job.rank) for job in self.pending)
        return max(0, asked - (sending.bytes if sending is not None else 0))

    def _lacking_of(self, rank: int) -> int:
        return self._lacking.get(rank, self._images.get(rank, 0))

    def make_arenas(self, want: WantArenas, blob_fd: int, *, count: int, world: int, pid: int) -> list[int]:
        """Fresh arenas for a rank; their descriptors stay ours. `blob_fd` holds layout and .metadata, and is closed.

        Raises ArenaRefused if they do not fit what the trainer `pid` and this machine may use.
        """
        try:
            check_memory(count * (want.image_bytes + HEADER_BYTES), arenas=count, limits=_limits(pid))
            blob = os.pread(blob_fd, want.layout_bytes + want.metadata_bytes, 0)
        finally:
            os.close(blob_fd)
        self._images[want.rank] = want.image_bytes
        self._lacking.pop(want.rank, None)
        return self._uploads.make_arenas(
            count=count,
            image_bytes=want.image_bytes,
            layout=blob[: want.layout_bytes],
            metadata=blob[want.layout_bytes :],
            rank=want.rank,
            world=world,
        )

    def submit(self, job: Upload) -> None:
        """Commit an arena that is COMPLETE, after what was asked before."""
        self._uploads.submit(job)

    def reclaim(self, rank: int) -> None:
        """The trainer of `rank` is dead: what it had not handed over is FREE again."""
        self._uploads.reclaim(rank)

    def reports(self) -> Iterator[Report]:
        """What the uploader says now."""
        for report in self._uploads.reports():
            if isinstance(report, Done) and report.sent_bytes > 0 and report.seconds > 0:
                self._rate_bytes_s = report.sent_bytes / report.seconds
                self._lacking[report.rank] = min(report.sent_bytes, report.bytes)
            yield self._looked_up(report)

    def _looked_up(self, report: Report) -> Report:
        """An uploader that was killed between commit and report is asked again, and finds an arena that is FREE."""
        if not isinstance(report, GivenUp) or report.is_superseded:
            return report
        if not self._was_committed(report.generation, report.step):
            return report
        return Done(
            rank=report.rank,
            generation=report.generation,
            step=report.step,
            kind=report.kind,
            bytes=self._images.get(report.rank, 0),
            sent_bytes=0,
            seconds=0.0,
            is_committed=True,
            is_pointed=True,
        )


def _limits(pid: int) -> list[MemoryLimit]:
    try:
        return memory_limits(str(pid) if pid else "self")
    except (FileNotFoundError, PermissionError):
        return memory_limits()  # the trainer's process is not visible from here

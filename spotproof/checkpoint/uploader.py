"""The uploader: a process of its own beside the agent, so that nothing of an upload runs under another's lock.

`python -m spotproof.checkpoint.uploader FD` speaks `jobs` over the socket FD. It takes jobs one after the other (whole
sets first: what is complete stays usable when the node dies), the local copy beside the upload. It survives the
trainer, and the agent for as long as it has something to finish. Started again with the same jobs it goes on where
it was.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from spotproof.checkpoint import jobs
from spotproof.checkpoint.arena import Arena
from spotproof.checkpoint.chunks import MIB
from spotproof.checkpoint.commit import Commit, Committer
from spotproof.checkpoint.content import LAYOUT_FILE, METADATA_FILE, Content, Save
from spotproof.checkpoint.describing import Describing
from spotproof.checkpoint.jobs import Begin, Done, GivenUp, Report, Sent, Staged, Upload, UseArenas
from spotproof.checkpoint.localcopy import LocalCopies
from spotproof.contract.layout import image_name
from spotproof.contract.states import ArenaState
from spotproof.errors import CheckpointError, ProtocolError, SpotproofError, Superseded, Unavailable
from spotproof.store.checkpoints import Checkpoints
from spotproof.store.objects import NO_DEADLINE, Objects
from spotproof.store.pointer import Pointers
from spotproof.store.table import Table

_SMALLEST_CHUNK: Final = 8 * MIB
_TRY_AGAIN_S: Final = 0.5
_TELL_S: Final = 0.5

OpenStores = Callable[[Begin], tuple[Objects, Table]]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rank:
    """What one rank's arenas hold."""

    arenas: tuple[Arena, ...]
    world: int
    layout: bytes
    metadata: bytes


class Uploader:
    """Does the jobs that arrive on `sock`, until the agent closes its end. A context manager: it owns what it maps."""

    def __init__(self, sock: socket.socket, *, open_stores: OpenStores, clock: Callable[[], float] = time.time) -> None:
        self._sock = sock
        self._open_stores = open_stores
        self._clock = clock
        self._begin: Begin | None = None
        self._committer: Committer | None = None
        self._local: LocalCopies | None = None
        self._ranks: dict[int, _Rank] = {}
        self._disk = ThreadPoolExecutor(1, thread_name_prefix="stage")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._disk.shutdown()
        for rank in list(self._ranks):
            self._let_go(rank)

    def run(self) -> None:
        """Take jobs until there are no more."""
        while (received := jobs.receive(self._sock)) is not None:
            message, fds = received
            try:
                match message:
                    case Begin():
                        self._set_up(message)
                    case UseArenas():
                        self._use(message, fds)
                    case Upload():
                        self._upload(message)
                    case _:
                        raise ProtocolError(f"an uploader is not told {type(message).__name__}")
            finally:
                for fd in fds:
                    os.close(fd)

    def _set_up(self, begin: Begin) -> None:
        objects, table = self._open_stores(begin)
        self._begin = begin
        self._committer = Committer(
            objects=objects,
            checkpoints=Checkpoints(table),
            pointers=Pointers(table),
            clock=self._clock,
            threads=begin.threads,
        )
        self._local = LocalCopies(Path(begin.scratch_dir), begin.run)
        self._local.clean()

    def _use(self, message: UseArenas, fds: list[int]) -> None:
        blob_fd, *arena_fds = fds
        blob = os.pread(blob_fd, message.layout_bytes + message.metadata_bytes, 0)
        self._let_go(message.rank)
        self._ranks[message.rank] = _Rank(
            arenas=tuple(Arena(fd) for fd in arena_fds),
            world=message.world,
            layout=blob[: message.layout_bytes],
            metadata=blob[message.layout_bytes :],
        )

    def _let_go(self, rank: int) -> None:
        held = self._ranks.pop(rank, None)
        for arena in held.arenas if held else ():
            arena.close()

    def _upload(self, job: Upload) -> None:
        """Commit one arena's image and report, then set the arena FREE; whatever happens the loop goes on.

        The report comes first: a job without a report is asked again after a kill, and then needs its arena. It does
        not wait for the local copy, which a slow disk may finish after the deadline.
        """
        try:
            rank, arena = self._arena_of(job)
            with _taken(arena, job) as image:
                began = time.monotonic()
                save, content = self._described(job, rank, image)
                with Describing(save, content, image_name=image_name(job.rank)) as source, self._telling(source):
                    staging = self._disk.submit(self._stage, source, content)
                    try:
                        self._report(self._outcome(job, source, began))
                    finally:
                        self._report_staged(job, staging)
        except ProtocolError as error:
            self._report(_given_up(job, error))

    @contextmanager
    def _telling(self, source: Describing) -> Iterator[None]:
        """Tells how far it is while it is under way: what remains of it decides what a notice's time is spent on."""
        began, is_over = time.monotonic(), threading.Event()

        def tell() -> None:
            while not is_over.wait(_TELL_S):
                sent = sum(list(source.sent.values()))
                took, save = time.monotonic() - began, source.save
                self._tell(Sent(rank=save.rank, generation=save.generation, step=save.step, bytes=sent, seconds=took))

        thread = threading.Thread(target=tell, name="tell", daemon=True)
        thread.start()
        try:
            yield
        finally:
            is_over.set()
            thread.join()

    def _arena_of(self, job: Upload) -> tuple[_Rank, Arena]:
        rank = self._ranks.get(job.rank)
        if rank is None or job.arena >= len(rank.arenas):
            raise ProtocolError(f"rank {job.rank} has no arena {job.arena}")
        return rank, rank.arenas[job.arena]

    def _described(self, job: Upload, rank: _Rank, image: memoryview) -> tuple[Save, Content]:
        if self._begin is None:
            raise ProtocolError("a job came before Begin")
        content = Content(
            image=image,
            layout=rank.layout,
            metadata=rank.metadata,
            chunk_bytes=self._begin.chunk_bytes or _SMALLEST_CHUNK,
        )
        save = Save(
            run=self._begin.run,
            generation=job.generation,
            step=job.step,
            kind=job.kind,
            rank=job.rank,
            world=rank.world,
            samples=job.samples,
            sample_chain=job.sample_chain,
        )
        return save, content

    def _outcome(self, job: Upload, source: Describing, began: float) -> Report:
        try:
            return self._commit(job, source, began)
        except SpotproofError as error:
            return _given_up(job, error)

    def _commit(self, job: Upload, source: Describing, began: float) -> Done:
        if self._committer is None:
            raise ProtocolError("a job came before Begin")
        commit = self._try(self._committer, source, job)
        return Done(
            rank=job.rank,
            generation=job.generation,
            step=job.step,
            kind=job.kind,
            bytes=commit.part.image.bytes,
            sent_bytes=commit.sent_bytes,
            seconds=time.monotonic() - began,
            is_committed=commit.manifest is not None,
            is_pointed=commit.is_pointed,
        )

    def _try(self, committer: Committer, source: Describing, job: Upload) -> Commit:
        """Commit; with a deadline, again and again until it is there."""
        until = time.monotonic() + (job.until_at - self._clock()) if job.until_at else NO_DEADLINE
        while True:
            try:
                return committer.commit_from(source, until=until)
            except Unavailable:
                if until == NO_DEADLINE or time.monotonic() + _TRY_AGAIN_S >= until:
                    raise
            time.sleep(_TRY_AGAIN_S)

    def _stage(self, source: Describing, content: Content) -> tuple[int, float]:
        began = time.monotonic()
        part = source.part()
        files: dict[str, bytes | memoryview] = {
            part.image.name: content.image,
            LAYOUT_FILE: content.layout,
            METADATA_FILE: content.metadata,
        }
        if self._local is not None:
            self._local.stage(part, files)
        return part.image.bytes, time.monotonic() - began

    def _report_staged(self, job: Upload, staging: Future[tuple[int, float]]) -> None:
        """The local copy is the second consumer: its failure is told, and does not fail the commit."""
        size, seconds, problem = 0, 0.0, ""
        try:
            size, seconds = staging.result()
        except CheckpointError as error:
            problem = str(error)
        self._report(
            Staged(
                rank=job.rank, generation=job.generation, step=job.step, bytes=size, seconds=seconds, problem=problem
            )
        )

    def _report(self, report: Report) -> None:
        self._tell(report)

    def _tell(self, report: Report | Sent) -> None:
        with suppress(BrokenPipeError, ConnectionResetError):  # the agent is gone; its work is finished all the same
            jobs.send(self._sock, report)


def _given_up(job: Upload, error: SpotproofError) -> GivenUp:
    return GivenUp(
        rank=job.rank,
        generation=job.generation,
        step=job.step,
        kind=job.kind,
        reason=str(error),
        is_superseded=isinstance(error, Superseded),
    )


@contextmanager
def _taken(arena: Arena, job: Upload) -> Iterator[memoryview]:
    """The image of an arena while it is ours; an arena that an earlier uploader died over is taken up again.

    Raises ProtocolError if the arena does not hold what the job says.
    """
    header = arena.header
    is_ready = header.state in (ArenaState.COMPLETE, ArenaState.UPLOADING)
    if not is_ready or (header.generation, header.step) != (job.generation, job.step):
        raise ProtocolError(
            f"arena {job.arena} is {header.state} with generation {header.generation} step {header.step}, "
            f"asked for was generation {job.generation} step {job.step}"
        )
    with ExitStack() as afterwards:
        if header.state is ArenaState.COMPLETE:
            arena.move(ArenaState.UPLOADING)
        afterwards.callback(arena.move, ArenaState.FREE)
        yield afterwards.enter_context(arena.image())


def open_stores(begin: Begin) -> tuple[Objects, Table]:
    """The stores that a Begin names."""
    if begin.objects_dir:
        from spotproof.store.folder import FolderObjects
        from spotproof.store.local import LocalTable

        return FolderObjects(Path(begin.objects_dir)), LocalTable(Path(begin.table_file))
    from spotproof.store.clients import Clients
    from spotproof.store.dynamo import DynamoTable
    from spotproof.store.s3 import S3Objects
    from spotproof.store.sender import Sender, address_of

    clients = Clients(region=begin.region or None)
    client = clients.s3
    sender = Sender(
        address=lambda: address_of(client, begin.bucket),
        region=client.meta.region_name,
        find_credentials=clients.credentials,
    )
    return S3Objects(client, begin.bucket, sender=sender), DynamoTable(clients.dynamodb, begin.table)


def main() -> int:
    """The process: its one argument is the number of its socket.

    Signals to the whole group do not end it, because then most of all there is something to finish. It ends when the
    agent closes its end; an agent that cannot wait any longer kills it.
    """
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)
    with socket.socket(fileno=int(sys.argv[1])) as sock, Uploader(sock, open_stores=open_stores) as uploader:
        uploader.run()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

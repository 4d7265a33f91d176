"""A node behind a slow wire: the product's arenas and uploader process, a bucket on loopback, a table in a file."""

from __future__ import annotations

import os
import random
import select
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from benchmarks.checkpointing.sink import Wire, sinking
from benchmarks.checkpointing.uploader import spawn, stores
from spotproof.agent.decide import budget_s
from spotproof.agent.uploads import Uploads
from spotproof.checkpoint.arena import Arena
from spotproof.checkpoint.fetch import Fetcher
from spotproof.checkpoint.jobs import Begin, Done, GivenUp, Upload
from spotproof.checkpoint.localcopy import LocalCopies
from spotproof.contract import layout
from spotproof.contract.items import Generation
from spotproof.contract.layout import Layout, TensorEntry
from spotproof.contract.protocol import WantArenas
from spotproof.contract.states import ArenaState, SaveKind
from spotproof.store.checkpoints import Checkpoints
from spotproof.store.local import LocalTable
from spotproof.store.members import Memberships
from spotproof.store.pointer import Pointers
from spotproof.store.starts import Stores

RUN: Final = "r"
BUCKET: Final = "bucket"


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """How large everything is. `left_s`: from the notice to the deadline."""

    image_bytes: int
    chunk_bytes: int
    left_s: float
    shares: tuple[float, ...]
    kill_s: float
    ranks: int
    usable_at_least: float

    @property
    def budget_s(self) -> float:
        """What a flush may use of it."""
        return budget_s(now=0, deadline_at=self.left_s)


@dataclass(slots=True, kw_only=True)
class Node:
    """One rank's memory and uploader, behind a wire, as the agent has them."""

    size: Size
    url: str
    folder: Path
    uploads: Uploads
    states: dict[int, bytes]  # by step: every byte is another one than in the step before
    arenas: list[Arena] = field(default_factory=list)
    committed_step: int = -1

    def fill(self, step: int) -> None:
        """The copy into an arena."""
        with self.arenas[step % 2].image() as image:
            self.arenas[step % 2].move(ArenaState.FILLING, generation=1, step=step)
            image[:] = self.states[step]
        self.arenas[step % 2].move(ArenaState.COMPLETE)

    def submit(self, step: int, *, kind: SaveKind = SaveKind.PERIODIC, until_at: float = 0.0) -> None:
        """Ask for the commit."""
        self.uploads.submit(Upload(rank=0, arena=step % 2, generation=1, step=step, kind=kind, until_at=until_at))

    def hear(self, *, until: float, is_enough: Callable[[], bool] = lambda: False) -> bool:
        """Take in reports until the last job is reported; False: it was not by `until` (time.monotonic())."""
        while self.uploads.pending and not is_enough():
            if time.monotonic() >= until:
                return False
            select.select([self.uploads.fileno()], [], [], 0.05)
            for report in self.uploads.reports():
                if isinstance(report, Done) and report.is_committed:
                    self.committed_step = max(self.committed_step, report.step)
                if isinstance(report, GivenUp):
                    print(f"  given up: {report.reason}", file=sys.stderr)
        return True

    def kill(self) -> None:
        """What the deadline does."""
        os.kill(self.uploads.pid, signal.SIGKILL)

    def fetcher(self) -> Fetcher:
        """Reads what a successor would."""
        objects, _ = stores(self.begin)
        table = LocalTable(Path(self.begin.table_file))
        whole = Stores(
            objects=objects,
            checkpoints=Checkpoints(table),
            pointers=Pointers(table),
            memberships=Memberships(table),
        )
        return Fetcher(stores=whole, run=RUN, clock=time.time, local=LocalCopies(self.folder / "none", RUN))

    @property
    def begin(self) -> Begin:
        """Where everything is."""
        return begin_of(self.folder, self.size)


def begin_of(folder: Path, size: Size) -> Begin:
    """A bucket behind the wire, a table in a file."""
    return Begin(
        run=RUN,
        scratch_dir=str(folder / "scratch"),
        bucket=BUCKET,
        table_file=str(folder / "table"),
        chunk_bytes=size.chunk_bytes,
    )


@contextmanager
def node(size: Size, rate: float) -> Iterator[Node]:
    """A node behind a wire of `rate` bytes a second; its uploader is dead at the end."""
    with tempfile.TemporaryDirectory(prefix="deadline-") as name, ExitStack() as stack:
        url = stack.enter_context(sinking(Wire(bytes_s=rate)))
        stack.enter_context(surroundings(url))
        folder = Path(name)
        with LocalTable(folder / "table") as table:
            seal(table)
        uploads = stack.enter_context(Uploads(begin_of(folder, size), was_committed=lambda *_: False, spawn=spawn))
        states = {step: random.Random(step).randbytes(size.image_bytes) for step in (1, 2)}
        made = Node(size=size, url=url, folder=folder, uploads=uploads, states=states)
        blob = layout_of(size)
        blob_fd = os.memfd_create("layout")
        os.pwrite(blob_fd, blob, 0)
        want = WantArenas(image_bytes=size.image_bytes, layout_bytes=len(blob), metadata_bytes=0)
        for fd in uploads.make_arenas(want, blob_fd, count=2, world=1, pid=os.getpid()):
            made.arenas.append(stack.enter_context(Arena(fd)))
        yield made


@contextmanager
def surroundings(url: str) -> Iterator[None]:
    """The environment of whoever speaks to the wire's bucket."""
    values = {
        "AWS_ENDPOINT_URL_S3": url,
        "AWS_ACCESS_KEY_ID": "bench",
        "AWS_SECRET_ACCESS_KEY": "bench",
        "AWS_REGION": "us-east-1",
        "AWS_DEFAULT_REGION": "us-east-1",
    }
    before = dict(os.environ)
    os.environ.update(values)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def seal(table: LocalTable) -> None:
    """Generation 1, with one member."""
    membership = Generation(run=RUN, generation=1, members=("0:1:i-1",), sealed_at=0)
    Memberships(table).seal(membership, pointer=None)


def layout_of(size: Size) -> bytes:
    """One tensor of bytes."""
    whole = TensorEntry(key="x", dtype="uint8", shape=(size.image_bytes,), offset=0, bytes=size.image_bytes)
    return layout.encode(Layout(image_bytes=size.image_bytes, tensors=(whole,)))

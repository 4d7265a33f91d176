"""The other ways to save: what a training loop would call instead of us. Each is a context manager that gives a Save.

A rival that is not installed here raises Absent with what would bring it; the benchmarks print that line.
"""

from __future__ import annotations

import importlib
import multiprocessing
import os
import shutil
import socket
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch.distributed.checkpoint import state_dict_saver as dcp
from torch.distributed.checkpoint.filesystem import FileSystemWriter
from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions

from spotproof.checkpoint.arena import Arena, create
from spotproof.checkpoint.dcp import ImagePlan
from spotproof.checkpoint.snapshot import Snapshotter
from spotproof.contract.states import ArenaState

warnings.filterwarnings("ignore", message="Detected an existing checkpoint")  # to write over it is what we ask for

Save = Callable[[], Callable[[], None]]
"""Begins a save; what it returns waits until the save is over."""


class Absent(Exception):
    """This rival is not installed; the message says how it would be."""


class Trained(Protocol):
    """The training that is saved."""

    optimizer: torch.optim.Optimizer

    @property
    def objects(self) -> dict[str, Any]: ...

    def state(self) -> dict[str, Any]: ...


@contextmanager
def ours(loop: Trained, _: Path) -> Iterator[Save]:
    """The snapshot of `run.boundary()`; the arena is freed as the uploader would, by hand."""
    fds: list[int] = []

    def provide(plan: ImagePlan) -> Sequence[int]:
        fds.extend(create(plan.layout.image_bytes, name="bench") for _ in range(2))
        return [os.dup(fd) for fd in fds]

    with Snapshotter(loop.objects, provide=provide) as snapshotter:
        running: list[Any] = []
        hook = loop.optimizer.register_step_pre_hook(lambda *_: running[-1].gate() if running else None)

        def save() -> Callable[[], None]:
            copy = snapshotter.begin(step=1, generation=1, counters={}, then=lambda _: None)
            assert copy is not None
            running.append(copy)

            def end() -> None:
                running.clear()
                assert snapshotter.finish(copy), copy.changed
                with Arena(fds[copy.arena]) as arena:
                    arena.move(ArenaState.UPLOADING)
                    arena.move(ArenaState.FREE)

            return end

        yield save
        hook.remove()
    for fd in fds:
        os.close(fd)


@contextmanager
def ours_blocking(loop: Trained, folder: Path) -> Iterator[Save]:
    """The same, copied at once: what a flush does."""
    with ours(loop, folder) as begin:

        def save() -> Callable[[], None]:
            begin()()
            return _nothing

        yield save


@contextmanager
def torch_save(loop: Trained, folder: Path) -> Iterator[Save]:
    """Writes before it returns."""

    def save() -> Callable[[], None]:
        torch.save(loop.state(), folder / "state.pt")
        return _nothing

    yield save


@contextmanager
def dcp_save(loop: Trained, folder: Path) -> Iterator[Save]:
    """Writes before it returns."""

    def save() -> Callable[[], None]:
        dcp.save(loop.state(), storage_writer=FileSystemWriter(folder / "dcp", overwrite=True), no_dist=True)
        return _nothing

    yield save


@contextmanager
def dcp_async(loop: Trained, folder: Path) -> Iterator[Save]:
    """Its default: a thread writes, and a copy blocks."""

    def save() -> Callable[[], None]:
        writer = FileSystemWriter(folder / "async", overwrite=True)
        future: Any = dcp.async_save(loop.state(), storage_writer=writer, no_dist=True)
        return future.result  # type: ignore[no-any-return]

    yield save


@contextmanager
def dcp_async_stager(loop: Trained, folder: Path) -> Iterator[Save]:
    """With a stager that is kept, so that its memory is made once. (Without a GPU its copy cannot be asynchronous.)"""
    on_gpu = torch.cuda.is_available()
    options = StagingOptions(
        use_pinned_memory=on_gpu, use_shared_memory=True, use_async_staging=on_gpu, use_non_blocking_copy=on_gpu
    )
    stager = DefaultStager(options)

    def save() -> Callable[[], None]:
        writer = FileSystemWriter(folder / "stager", overwrite=True)
        answer: Any = dcp.async_save(loop.state(), storage_writer=writer, async_stager=stager, no_dist=True)
        future = getattr(answer, "upload_completion", answer)
        return future.result  # type: ignore[no-any-return]

    try:
        yield save
    finally:
        stager.close()


@contextmanager
def dcp_async_process(loop: Trained, folder: Path) -> Iterator[Save]:
    """A process writes; it is started, and imports torch, at the first save."""
    with _one_rank():

        def save() -> Callable[[], None]:
            future: Any = dcp.async_save(
                loop.state(),
                checkpoint_id=str(folder / "process"),
                storage_writer=FileSystemWriter(folder / "process", overwrite=True),
                async_checkpointer_type=dcp.AsyncCheckpointerType.PROCESS,
            )
            return future.result  # type: ignore[no-any-return]

        before = {child.pid for child in multiprocessing.active_children()}
        try:
            yield save
        finally:
            _end_children(before)


@contextmanager
def torch_checkpointing(loop: Trained, folder: Path) -> Iterator[Save]:
    """Meta's successor of DCP's async save: it stages behind the loop too, and a lock keeps the step back."""
    library = _imported("torch_checkpointing")
    storage = importlib.import_module("torch_checkpointing.storage.filesystem")
    saving = importlib.import_module("torch_checkpointing.config").AsyncCheckpointSaverConfig()
    config = library.CheckpointManager.Config(
        save=saving, storage_config=storage.LocalFileSystemStorageConfig(use_direct_io=False)
    )
    before = {child.pid for child in multiprocessing.active_children()}
    manager = library.CheckpointManager(config)
    made: list[Path] = []

    def wait(*_: object) -> None:
        with manager.lock():
            pass

    hook = loop.optimizer.register_step_pre_hook(wait)

    def save() -> Callable[[], None]:
        for old in made:
            shutil.rmtree(old, ignore_errors=True)
        made.append(folder / f"tc-{len(made)}")
        future: Any = manager.save(str(made[-1]), loop.state())
        return future.result  # type: ignore[no-any-return]

    try:
        yield save
    finally:
        hook.remove()
        manager.close()
        _end_children(before)


CONTENDERS: dict[str, Callable[[Trained, Path], Any]] = {
    "spotproof": ours,
    "spotproof, all at once": ours_blocking,
    "torch_checkpointing": torch_checkpointing,
    "dcp.async_save, kept stager": dcp_async_stager,
    "dcp.async_save, thread": dcp_async,
    "dcp.save": dcp_save,
    "torch.save": torch_save,
    "dcp.async_save, process": dcp_async_process,  # last: it cannot be had twice, and leaves a process group behind
}


def _nothing() -> None:
    """All is over already."""


def _imported(name: str) -> Any:  # Any: a package that is not installed everywhere
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise Absent(f"not installed here ({error}); pip install 'spotproof[bench]' brings it") from error


@contextmanager
def _one_rank() -> Iterator[None]:
    """A process group of this process alone, which process mode asks for."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = str(taken.getsockname()[1])
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=port, RANK="0", WORLD_SIZE="1", LOCAL_RANK="0")
    dist.init_process_group("gloo", rank=0, world_size=1)
    try:
        yield
    finally:
        dist.destroy_process_group()
        for name in ("MASTER_ADDR", "MASTER_PORT", "RANK", "WORLD_SIZE", "LOCAL_RANK"):
            os.environ.pop(name, None)


def _end_children(before: set[int | None]) -> None:
    """A rival's process outlives its parent unless it is ended."""
    for child in multiprocessing.active_children():
        if child.pid not in before:
            child.kill()
            child.join(10)

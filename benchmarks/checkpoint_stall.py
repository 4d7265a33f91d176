"""What a save costs the training loop, beside a memcpy of the same bytes and beside the other ways to save.

    python benchmarks/checkpoint_stall.py               tables for 48, 600 and 5,000 tensors
    python benchmarks/checkpoint_stall.py --check       exit status 1 if ours costs more than 1.15 memcpy

The cost of a save is everything that the loop loses: the time that the call blocks, and the time by which the steps
until the copy is over are longer than steps without a save. The loop is pinned to one core, copier and writers to the
other. Samples are taken in turns within one process: memcpy, a stretch without a save, one stretch for each contender;
medians of the differences, ratios only. Whoever writes, writes to memory (/dev/shm): this is about the loop, not about
disks. torch.save and dcp.save write before they return.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import shutil
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.distributed.checkpoint import state_dict_saver as dcp
from torch.distributed.checkpoint.filesystem import FileSystemWriter

from spotproof.checkpoint.arena import Arena, create
from spotproof.checkpoint.dcp import ImagePlan
from spotproof.checkpoint.snapshot import Snapshotter
from spotproof.contract.states import ArenaState

LIMIT = 1.15
TENSORS = (48, 600, 5000)
STRETCH = 3  # steps that may be longer because of the save
STEP_WORK_S = 0.30  # of forward and backward


class Model(nn.Module):
    """So many tensors with AdamW's state: a third of them are parameters."""

    def __init__(self, tensors: int, state_bytes: int) -> None:
        super().__init__()
        count = tensors // 3
        size = state_bytes // (12 * count)
        self.weights = nn.ParameterList([nn.Parameter(torch.rand(size)) for _ in range(count)])


@dataclass
class Loop:
    """The training that is saved: forward and backward are matrix products in the cache, the step is a real AdamW."""

    model: Model
    optimizer: torch.optim.Optimizer = field(init=False)
    work: torch.Tensor = field(default_factory=lambda: torch.rand(384, 384))
    rounds: int = 1

    def __post_init__(self) -> None:
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4, foreach=True)
        for parameter in self.model.parameters():
            parameter.grad = torch.full_like(parameter, 1e-3)
        self.optimizer.step()
        begun = time.perf_counter()
        self.forward_backward()
        self.rounds = max(1, round(STEP_WORK_S / (time.perf_counter() - begun)))

    def forward_backward(self) -> None:
        for _ in range(self.rounds):
            torch.tanh(self.work @ self.work)

    def steps(self, count: int) -> None:
        for _ in range(count):
            self.forward_backward()
            self.optimizer.step()

    @property
    def objects(self) -> dict[str, Any]:
        return {"model": self.model, "optimizer": self.optimizer}

    def state(self) -> dict[str, Any]:
        return {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}


Save = Callable[[], Callable[[], None]]
"""Begins a save; what it returns is called when the stretch is over, and waits."""


@contextmanager
def ours(loop: Loop, _: Path) -> Iterator[Save]:
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
def ours_blocking(loop: Loop, folder: Path) -> Iterator[Save]:
    """The same, copied at once: what a flush does."""
    with ours(loop, folder) as begin:

        def save() -> Callable[[], None]:
            end = begin()
            end()
            return lambda: None

        yield save


@contextmanager
def torch_save(loop: Loop, folder: Path) -> Iterator[Save]:
    """Writes before it returns."""

    def save() -> Callable[[], None]:
        torch.save(loop.state(), folder / "state.pt")
        return lambda: None

    yield save


@contextmanager
def dcp_save(loop: Loop, folder: Path) -> Iterator[Save]:
    """Writes before it returns."""

    def save() -> Callable[[], None]:
        dcp.save(loop.state(), storage_writer=FileSystemWriter(folder / "dcp", overwrite=True), no_dist=True)
        return lambda: None

    yield save


@contextmanager
def dcp_async(loop: Loop, folder: Path) -> Iterator[Save]:
    """Its default: a thread, and a copy that blocks."""

    def save() -> Callable[[], None]:
        future: Any = dcp.async_save(
            loop.state(), storage_writer=FileSystemWriter(folder / "async", overwrite=True), no_dist=True
        )
        return future.result  # type: ignore[no-any-return]

    yield save


CONTENDERS: dict[str, Callable[[Loop, Path], Any]] = {
    "spotproof": ours,
    "spotproof, all at once": ours_blocking,
    "dcp.async_save (thread)": dcp_async,
    "dcp.save": dcp_save,
    "torch.save": torch_save,
}


def memcpy_s(source: torch.Tensor, target: torch.Tensor) -> float:
    """Seconds of one flat copy by one thread."""
    begun = time.perf_counter()
    ctypes.memmove(target.data_ptr(), source.data_ptr(), source.numel())
    return time.perf_counter() - begun


def pin(core: int, thread: int = 0) -> None:
    """Keep a thread (0: this one) on one core, where the kernel offers that core."""
    if core in os.sched_getaffinity(os.getpid()):
        os.sched_setaffinity(thread, {core})


def keep_others_away(cores: Sequence[int]) -> None:
    """New threads inherit the loop's core; whatever is not the loop belongs on the other one."""
    start = threading.Thread.start

    def started(self: threading.Thread) -> None:
        start(self)
        if self.native_id is not None:
            os.sched_setaffinity(self.native_id, {cores[-1]})

    threading.Thread.start = started  # type: ignore[method-assign]


def measure(tensors: int, state_bytes: int, repeats: int) -> dict[str, Any]:
    """One table: the median cost of each contender's save, over the median memcpy."""
    loop = Loop(Model(tensors, state_bytes))
    size = sum(t.numel() * t.element_size() for t in loop.model.parameters()) * 3
    source = torch.rand(size // 4).view(torch.uint8)
    target = torch.zeros_like(source)
    costs: dict[str, list[float]] = {name: [] for name in CONTENDERS}
    copies: list[float] = []
    base = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    folder = Path(tempfile.mkdtemp(prefix="spotproof-bench-", dir=base))
    try:
        for name, make in CONTENDERS.items():
            with make(loop, folder) as save:
                save()()  # warm: layouts, pools, pages
                loop.steps(1)
                for _ in range(repeats):
                    copies.append(memcpy_s(source, target))
                    begun = time.perf_counter()
                    loop.steps(STRETCH)
                    without = time.perf_counter() - begun
                    begun = time.perf_counter()
                    end = save()
                    loop.steps(STRETCH)
                    costs[name].append(time.perf_counter() - begun - without)
                    end()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    copy = statistics.median(copies)
    return {
        "tensors": tensors,
        "bytes": size,
        "memcpy_s": copy,
        "ratio": {name: statistics.median(found) / copy for name, found in costs.items()},
    }


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--mib", type=int, default=600, help="of state")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--check", action="store_true", help=f"fail if ours costs more than {LIMIT} memcpy")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    cores = sorted(os.sched_getaffinity(0))
    pin(cores[0])
    keep_others_away(cores)
    tables = [measure(tensors, asked.mib * 2**20, asked.repeats) for tensors in TENSORS]
    for table in tables:
        print(f"{table['tensors']} tensors, {table['bytes'] / 1e6:.0f} MB; a memcpy is 1.00")
        for name, ratio in table["ratio"].items():
            print(f"  {name:<26} {ratio:8.2f}")
    ours_ratio = {str(table["tensors"]): round(table["ratio"]["spotproof"], 2) for table in tables}
    print(json.dumps({"stall over memcpy": ours_ratio, "limit": LIMIT}))
    return int(asked.check and max(ours_ratio.values()) > LIMIT)


if __name__ == "__main__":
    sys.exit(main())

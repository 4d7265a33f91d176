"""What a save costs the training loop, beside a memcpy of the same bytes and beside the other ways to save.

    python benchmarks/checkpoint_stall.py               tables for 48, 600 and 5,000 tensors
    python benchmarks/checkpoint_stall.py --check       exit status 1 if ours costs more than 1.15 memcpy

The cost of a save is everything that the loop loses: the time that the call blocks, and the time by which the steps
until the copy is over are longer than steps without a save. The loop is pinned to one core, copier and writers to the
other. For each contender, within one process: memcpys, stretches of steps with a save and without, in changing order;
medians of the differences, ratios only. Whoever writes, writes to memory (/dev/shm): this is about the loop, not about
disks. torch.save and dcp.save write before they return.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import multiprocessing
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn

from benchmarks.checkpointing.rivals import CONTENDERS, Absent, Save

LIMIT = 1.15
TENSORS = (48, 600, 5000)
STRETCH = 3  # steps that may be longer because of the save
STEP_WORK_S = 0.30  # of forward and backward
STALLS_LITTLE = ("spotproof", "torch_checkpointing")  # small differences need more samples
RIVAL_REPEATS = 3
WARM_UP = 20  # matrix products, by which a step's work is measured


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
        self.rounds = WARM_UP
        self.forward_backward()
        begun = time.thread_time()  # of this thread alone: a busy machine must not make the steps short
        self.forward_backward()
        self.rounds = max(1, round(STEP_WORK_S * WARM_UP / (time.thread_time() - begun)))

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


def sample(loop: Loop, save: Save, *, first: bool) -> float:
    """Seconds that one save costs the loop: a stretch with it (it comes `first`) less a stretch without it."""
    begun = time.perf_counter()
    if not first:
        loop.steps(STRETCH)
    without = time.perf_counter() - begun
    begun = time.perf_counter()
    end = save()
    loop.steps(STRETCH)
    with_it = time.perf_counter() - begun
    end()
    begun = time.perf_counter()
    if first:
        loop.steps(STRETCH)
        without = time.perf_counter() - begun
    return with_it - without


def keep_children_away(cores: Sequence[int]) -> None:
    """A writer's process was made by a thread of the loop's core."""
    for child in multiprocessing.active_children():
        if child.pid is not None:
            with suppress(ProcessLookupError):
                os.sched_setaffinity(child.pid, {cores[-1]})


def measure(tensors: int, asked: argparse.Namespace, cores: Sequence[int]) -> dict[str, Any]:
    """One table: the median cost of each contender's save, over the median memcpy."""
    loop = Loop(Model(tensors, asked.mib * 2**20))
    size = sum(t.numel() * t.element_size() for t in loop.model.parameters()) * 3
    source = torch.rand(size // 4).view(torch.uint8)
    target = torch.zeros_like(source)
    ratios: dict[str, float | str] = {}
    copies: list[float] = []
    base = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    folder = Path(tempfile.mkdtemp(prefix="spotproof-bench-", dir=base))
    try:
        for name, make in CONTENDERS.items():
            if asked.only and name not in asked.only:
                continue
            try:
                with make(loop, folder) as save:
                    save()()  # warm: layouts, pools, pages, processes
                    loop.steps(1)
                    keep_children_away(cores)
                    turns = asked.repeats if name in STALLS_LITTLE else min(asked.repeats, RIVAL_REPEATS)
                    own = [memcpy_s(source, target) for _ in range(turns)]
                    costs = [sample(loop, save, first=bool(turn % 2)) for turn in range(turns)]
                    own += [memcpy_s(source, target) for _ in range(turns)]
            except Absent as why:
                ratios[name] = str(why)
                continue
            copies += own
            ratios[name] = statistics.median(costs) / statistics.median(own)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return {"tensors": tensors, "bytes": size, "memcpy_s": statistics.median(copies), "ratio": ratios}


def measured_apart(tensors: int, asked: argparse.Namespace) -> dict[str, Any]:
    """The table of a process of its own: what a rival leaves behind does not reach the next table."""
    argv = [sys.executable, __file__, "--table", "--tensors", str(tensors), "--mib", str(asked.mib)]
    argv += ["--repeats", str(asked.repeats), *(["--only", *asked.only] if asked.only else [])]
    told = subprocess.run(argv, stdout=subprocess.PIPE, check=True, text=True).stdout
    table: dict[str, Any] = json.loads(told.strip().splitlines()[-1])
    return table


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--mib", type=int, default=600, help="of state")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--tensors", type=int, nargs="+", default=TENSORS)
    parser.add_argument("--only", nargs="+", choices=list(CONTENDERS), help="these contenders")
    parser.add_argument("--small", action="store_true", help="sizes for a minute; the numbers mean little")
    parser.add_argument("--table", action="store_true", help="one table, as JSON")
    parser.add_argument("--check", action="store_true", help=f"fail if ours costs more than {LIMIT} memcpy")
    asked = parser.parse_args()
    if asked.small:
        asked.mib, asked.repeats, asked.tensors = 60, 1, asked.tensors[:2]
    if asked.table:
        torch.set_num_threads(1)
        cores = sorted(os.sched_getaffinity(0))
        pin(cores[0])
        keep_others_away(cores)
        print(json.dumps(measure(asked.tensors[0], asked, cores)))
        return 0
    tables = [measured_apart(tensors, asked) for tensors in asked.tensors]
    for table in tables:
        print(f"{table['tensors']} tensors, {table['bytes'] / 1e6:.0f} MB; a memcpy is 1.00")
        for name, ratio in table["ratio"].items():
            print(f"  {name:<28} {ratio if isinstance(ratio, str) else format(ratio, '8.2f')}")
    found = {str(table["tensors"]): round(table["ratio"]["spotproof"], 2) for table in tables}
    print(json.dumps({"stall over memcpy": found, "limit": LIMIT}))
    return int(asked.check and max(found.values()) > LIMIT)


if __name__ == "__main__":
    sys.exit(main())

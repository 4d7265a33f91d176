"""The lab's training: a small model under DDP that resumes from its own checkpoints and writes down what it does.

Every sample is a pure function of (seed, global index), so that a curve can be compared bit by bit.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

GLOBAL_BATCH = 12


def train(folder: str, steps: int, every: int, pace_s: float, group_timeout_s: float) -> None:
    """The worker's entry point, called by torchrun's agent in a forked process."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, signal.SIG_DFL)  # the launcher's own handlers came along with the fork
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    say = Events(Path(folder))
    say("start")
    dist.init_process_group("gloo", timeout=timedelta(seconds=group_timeout_s))
    say("group")
    run(Path(folder), say, steps=steps, every=every, pace_s=pace_s)
    dist.destroy_process_group()
    say("end")


def run(folder: Path, say: Events, *, steps: int, every: int, pace_s: float) -> None:
    import torch
    import torch.distributed as dist
    from torch import nn

    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(7)
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    step = load(folder, model, optimizer)
    ddp = nn.parallel.DistributedDataParallel(model, find_unused_parameters=True)
    while step < steps:
        ids = list(range(step * GLOBAL_BATCH, (step + 1) * GLOBAL_BATCH))[rank::world]
        loss = sum(per_sample(ddp, ids)) / len(ids)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        step += 1
        total = loss.detach().clone()
        dist.all_reduce(total)
        say("step", step=step, loss=float(total).hex(), ids=ids)
        if rank == 0 and step % every == 0:
            save(folder, step, model, optimizer)
        time.sleep(pace_s)
    if rank == 0:
        say("state", digest=digest(model))


def per_sample(model: Any, ids: list[int]) -> Any:
    import torch

    for one in ids:
        chance = torch.Generator().manual_seed(one)
        x = torch.randn(8, generator=chance)
        yield ((model(x) - x.sum()) ** 2).squeeze()


def digest(model: Any) -> str:
    parts = [tensor.detach().numpy().tobytes() for tensor in model.state_dict().values()]
    return hashlib.sha256(b"".join(parts)).hexdigest()


def save(folder: Path, step: int, model: Any, optimizer: Any) -> None:
    import torch

    aside = folder / f"saving-{os.getpid()}"
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, aside)
    aside.rename(folder / f"step-{step:06d}.pt")


def load(folder: Path, model: Any, optimizer: Any) -> int:
    """The newest checkpoint that rank 0 sees, on every rank."""
    import torch
    import torch.distributed as dist

    found = max((int(path.stem[5:]) for path in folder.glob("step-*.pt")), default=0)
    chosen = torch.tensor([found])
    dist.broadcast(chosen, 0)
    step = int(chosen)
    if step:
        state = torch.load(folder / f"step-{step:06d}.pt", weights_only=True)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
    return step


class Events:
    """Lines of JSON, one file for each worker process."""

    def __init__(self, folder: Path) -> None:
        node, pid = os.environ["LAB_NODE"], os.getpid()
        self.began_at = time.time()
        self.same = {"node": node, "pid": pid, "rank": int(os.environ["RANK"]), "world": int(os.environ["WORLD_SIZE"])}
        self.same["group"] = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"  # another one each generation
        self.file = (folder / f"events-{node}-{pid}.jsonl").open("a", buffering=1)

    def __call__(self, kind: str, **more: object) -> None:
        line = {"kind": kind, "at": time.time(), "began_at": self.began_at, **self.same, **more}
        self.file.write(json.dumps(line) + "\n")

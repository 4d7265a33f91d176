"""The toy with several ranks: `torchrun -m tests.fakes.toy_ddp PLAN` (settings as JSON, as in `tests.fakes.toy`).

Each rank has its own noise (dropout) and its own samples; every step of every rank is a line of the log, and what it
holds at the end lies beside it.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import time
from contextlib import AbstractContextManager, nullcontext
from itertools import count
from pathlib import Path
from typing import Any

import torch
from torch import distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

from tests.fakes.toy import Plan, Toy


class Plain:
    """What the loop needs of a Run, without one."""

    def track(self, **_: object) -> None: ...
    def report(self, **_: object) -> None: ...
    def batches(self, loader: DataLoader[Any], *, steps: int) -> Any:
        step = 0
        for epoch in count():
            loader.sampler.set_epoch(epoch)  # type: ignore[attr-defined]
            for batch in loader:
                yield batch
                step += 1
                if step == steps:
                    return


def train(plan: Plan, opened: AbstractContextManager[Any]) -> None:
    """Train with whatever ranks there are."""
    rank = dist.get_rank()
    toy = Toy(plan)
    model = sharded(toy) if plan.is_sharded else DistributedDataParallel(toy.model, find_unused_parameters=True)
    sampler: Any = DistributedSampler(toy.loader.dataset, shuffle=True, seed=3)
    loader = DataLoader(toy.loader.dataset, batch_size=plan.batch, sampler=sampler)
    torch.manual_seed(100 + rank)
    step = 0
    with opened as run:
        run.track(model=model, optimizer=toy.optimizer, scheduler=toy.scheduler, loader=loader)
        for ids, x in run.batches(loader, steps=plan.steps):
            loss = (model(x) - x.sum(1, keepdim=True)).pow(2).mean()
            loss.backward()
            toy.optimizer.step()
            toy.scheduler.step()
            toy.optimizer.zero_grad()
            run.report(loss=loss)
            step = toy.scheduler.last_epoch
            line = {"step": step, "rank": rank, "loss": loss.item().hex(), "ids": ids.tolist(), "pid": os.getpid()}
            with Path(plan.log).open("a") as file:
                file.write(json.dumps(line) + "\n")
            if step == plan.raise_at and rank == 0:
                raise RuntimeError("told to fail")
            time.sleep(plan.delay_s)
    Path(f"{plan.log}.state-{rank}").write_text(digest(toy.model, toy.optimizer))


def sharded(toy: Toy) -> nn.Module:
    """Every rank keeps a part of each parameter, and of what the optimizer keeps for it."""
    fully_shard(toy.model)
    toy.optimizer = torch.optim.AdamW(toy.model.parameters(), lr=1e-2)
    toy.scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(toy.optimizer, 100)
    return toy.model


def digest(model: nn.Module, optimizer: torch.optim.Optimizer) -> str:
    """Of all that this rank holds."""
    tensors = list(model.state_dict().values())
    for state in optimizer.state_dict()["state"].values():
        tensors += state.values()
    own = [tensor.to_local() if isinstance(tensor, DTensor) else tensor for tensor in tensors]
    return hashlib.sha256(b"".join(tensor.detach().numpy().tobytes() for tensor in own)).hexdigest()


def main() -> None:
    torch.set_num_threads(1)
    plan = Plan(**json.loads(sys.argv[1]))
    dist.init_process_group("gloo")
    opened: AbstractContextManager[Any] = nullcontext(Plain())
    if plan.tracked:
        from spotproof import Run

        opened = Run.from_env()
    train(plan, opened)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

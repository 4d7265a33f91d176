"""The toy in an elastic world: `torchrun -m tests.fakes.toy_elastic PLAN`. The global batch is 12 in any of them.

Every step of every rank is a line of the log: its samples, and the parameters before and after it as a digest.
"""

from __future__ import annotations

import hashlib
import json
import sys
import time
from contextlib import nullcontext
from pathlib import Path

import torch
from torch import distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

from spotproof import Run
from spotproof.data.worldwide import GlobalBatches
from tests.fakes.toy import Plan, Toy

BATCH, MICRO, SEED = 12, 2, 5
SMALL_WORLD_S = 0.7


def digest(model: nn.Module) -> str:
    """The parameters to the last bit."""
    found = hashlib.sha256()
    for value in model.parameters():
        found.update(value.detach().numpy().tobytes())
    return found.hexdigest()[:16]


def main() -> None:
    torch.set_num_threads(1)
    plan = Plan(**json.loads(sys.argv[1]))
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    toy = Toy(plan)
    model = DistributedDataParallel(toy.model, find_unused_parameters=True)
    sampler = GlobalBatches(plan.samples, batch=BATCH, micro=MICRO, seed=SEED)
    loader = DataLoader(toy.loader.dataset, batch_sampler=sampler)
    seen: list[int] = []
    with Run.from_env() as run:
        run.track(model=model, optimizer=toy.optimizer, scheduler=toy.scheduler, loader=loader)
        for ids, x in run.batches(loader, steps=plan.steps):
            seen += ids.tolist()
            with model.no_sync() if run.accumulating else nullcontext():
                loss = (model(x) - x.sum(1, keepdim=True)).pow(2).mean()
                (loss * run.loss_weight).backward()
            if run.accumulating:
                continue
            before = digest(model)
            toy.optimizer.step()
            toy.scheduler.step()
            toy.optimizer.zero_grad()
            step = toy.scheduler.last_epoch
            line = {"step": step, "rank": rank, "world": world, "ids": seen, "before": before, "after": digest(model)}
            with Path(plan.log).open("a") as file:
                file.write(json.dumps(line) + "\n")
            seen = []
            time.sleep(SMALL_WORLD_S if world == 2 else plan.delay_s)  # so that others come before it is done
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

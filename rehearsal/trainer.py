"""A training of several ranks, as a person would write it: the reference trainer's model under DDP, for `torchrun -m`.

Rank 0 notes what all ranks did in a step: the mean of their losses, and their samples one after another.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from itertools import count, islice
from pathlib import Path
from typing import Any

import torch
from torch import distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

from trainer_image.train import Transformer, share_of_peak, tell, windows

BATCH, PEAK_RATE = 4, 3e-3


class Untracked:
    """What the loop needs of a `Run`, without spotproof."""

    def track(self, **_: object) -> None: ...
    def report(self, **_: object) -> None: ...
    def batches(self, loader: DataLoader[Any], *, steps: int) -> Iterator[Any]:
        return islice(self._epochs(loader), steps)

    def _epochs(self, loader: DataLoader[Any]) -> Iterator[Any]:
        sampler: Any = loader.sampler
        for epoch in count():
            sampler.set_epoch(epoch)
            yield from loader


def train(opened: AbstractContextManager[Any], *, steps: int, seed: int, loss_log: Path | None) -> None:
    """Train for `steps` optimizer steps with whatever ranks there are."""
    rank = dist.get_rank()
    torch.manual_seed(seed)
    data = windows()
    sampler: Any = DistributedSampler(data, seed=seed, drop_last=True)
    loader = DataLoader(data, batch_size=BATCH, sampler=sampler, drop_last=True)
    model = DistributedDataParallel(Transformer(), find_unused_parameters=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=PEAK_RATE, weight_decay=0.1)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: share_of_peak(step, steps))
    torch.manual_seed(seed + 1 + rank)  # each rank has its own noise
    with opened as run:
        run.track(model=model, optimizer=optimizer, scheduler=scheduler, loader=loader)
        for samples, text, following in run.batches(loader, steps=steps):
            loss = cross_entropy(model(text).flatten(0, 1), following.flatten())
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            scheduler.step()
            run.report(loss=loss.item())
            mean, everybodys = _gathered(loss, samples)
            if rank == 0:
                tell(loss_log, step=scheduler.last_epoch, loss=mean, samples=everybodys)


def _gathered(loss: torch.Tensor, samples: torch.Tensor) -> tuple[float, list[int]]:
    """The mean of all ranks' losses and the samples of all ranks, rank by rank."""
    mean = loss.detach().clone()
    dist.all_reduce(mean)
    parts = [torch.empty_like(samples) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, samples)
    return mean.item() / dist.get_world_size(), torch.cat(parts).tolist()


def main() -> None:
    """Join the other ranks, train, leave."""
    parser = argparse.ArgumentParser(description="Train a small transformer on corpus.txt with several ranks.")
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--loss-log", type=Path)
    parser.add_argument("--untracked", action="store_true", help="without spotproof")
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    dist.init_process_group("gloo")
    opened: AbstractContextManager[Any] = nullcontext(Untracked())
    if not chosen.untracked:
        from spotproof import Run

        opened = Run.from_env()
    train(opened, steps=chosen.steps, seed=chosen.seed, loss_log=chosen.loss_log)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

"""The reference trainer with several ranks, under DDP, on one node or on many:

    torchrun -m trainer_image.train_ddp

The global batch stays the same whatever the number of ranks; each rank draws its own share of it. The loss curve over
any number of lost nodes is the uninterrupted one, bit by bit, because DDP sums in one order: see
`find_unused_parameters`.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from datetime import timedelta
from itertools import count, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

from trainer_image.train import PEAK_RATE, Transformer, share_of_peak, tell, windows

if TYPE_CHECKING:
    from spotproof import Run

GLOBAL_BATCH = 12  # divisible by 1, 2, 3, 4 and 6 ranks


class Untracked:
    """What the loop needs of a `Run`, without spotproof."""

    def track(self, **_: object) -> None: ...
    def report(self, **_: object) -> None: ...
    def batches(self, loader: DataLoader[Any], *, steps: int) -> Iterator[Any]:
        return islice(self._epochs(loader), steps)

    def _epochs(self, loader: DataLoader[Any]) -> Iterator[Any]:
        for epoch in count():
            loader.sampler.set_epoch(epoch)  # type: ignore[attr-defined]
            yield from loader


def train(opened: AbstractContextManager[Run | Untracked], *, steps: int, seed: int, loss_log: Path | None) -> None:
    """Train for `steps` optimizer steps with the ranks that there are."""
    torch.manual_seed(seed)
    rank, world = dist.get_rank(), dist.get_world_size()
    device = torch.device("cuda", torch.cuda.current_device()) if torch.cuda.is_available() else torch.device("cpu")
    data = windows()
    sampler: Any = DistributedSampler(data, seed=seed, drop_last=True)
    loader = DataLoader(data, batch_size=GLOBAL_BATCH // world, sampler=sampler, drop_last=True)
    # Without it a new DDP sums in another order from its second step on, and the curve differs in its last bits.
    model = DistributedDataParallel(Transformer().to(device), find_unused_parameters=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=PEAK_RATE, weight_decay=0.1)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: share_of_peak(step, steps))
    torch.manual_seed(seed + 1 + rank)  # each rank has its own noise
    with opened as run:
        run.track(model=model, optimizer=optimizer, scheduler=scheduler, loader=loader)
        for samples, text, following in run.batches(loader, steps=steps):
            loss = cross_entropy(model(text.to(device)).flatten(0, 1), following.to(device).flatten())
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            scheduler.step()
            run.report(loss=loss.item())
            if loss_log or rank == 0:
                own = loss_log.with_name(f"{loss_log.name}.{rank}") if loss_log else None
                tell(own, step=scheduler.last_epoch, loss=loss.item(), samples=samples.tolist())


def main() -> None:
    """Join the other ranks, train, leave."""
    parser = argparse.ArgumentParser(description="Train a small transformer on corpus.txt with several ranks.")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--loss-log", type=Path, help="append a JSON line per step to this file, with .RANK behind it")
    parser.add_argument("--untracked", action="store_true", help="without spotproof")
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    # A rank that vanished without a word is noticed by the control plane; this bounds what nobody has told.
    dist.init_process_group(timeout=timedelta(seconds=120))
    if GLOBAL_BATCH % dist.get_world_size():
        raise SystemExit(f"{dist.get_world_size()} ranks do not divide the global batch of {GLOBAL_BATCH}")
    opened: AbstractContextManager[Run | Untracked] = nullcontext(Untracked())
    if not chosen.untracked:
        from spotproof import Run

        opened = Run.from_env()
    train(opened, steps=chosen.steps, seed=chosen.seed, loss_log=chosen.loss_log)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

"""Batches of the whole world: the same samples in the same order, however many ranks there are.

    loader = DataLoader(dataset, batch_sampler=GlobalBatches(len(dataset), batch=96, micro=8, seed=1))
    for ids, x in run.batches(loader, steps=1000):
        with model.no_sync() if run.accumulating else nullcontext():
            (loss_of(x) * run.loss_weight).backward()

Which samples an optimizer step sees follows from (seed, epoch, step) alone. Each rank takes its part of them, in pieces
of `micro` samples at the most: fewer ranks accumulate more pieces. So the global batch stays the same, and the position
is one counter of steps that any world can go on from. The last samples of an epoch, if they do not fill a batch, are
left out of it.
"""

from __future__ import annotations

import hashlib
import os
import random
import sys
from collections.abc import Iterator, Mapping
from typing import Final

import torch

from spotproof.errors import BadSettings

__all__ = ["GlobalBatches", "reseed"]

_SEED_BYTES: Final = 7


class GlobalBatches:
    """A batch sampler. `batch` samples make one optimizer step of all ranks together; a rank's piece has at most
    `micro` of them. `shuffle`: each epoch in an order of its own, drawn from (seed, epoch) and nothing else.

    Raises BadSettings where a step has fewer samples than there are ranks, or an epoch fewer than a step.
    """

    def __init__(
        self,
        samples: int,
        *,
        batch: int,
        micro: int,
        seed: int = 0,
        shuffle: bool = True,
        environ: Mapping[str, str] = os.environ,
    ) -> None:
        self.rank, self.world = int(environ.get("RANK", "0")), int(environ.get("WORLD_SIZE", "1"))
        self.samples, self.batch, self.micro = samples, batch, micro
        self._seed, self._shuffle = seed, shuffle
        self._epoch, self._step = 0, 0
        self._drawn: tuple[int, torch.Tensor] | None = None  # the newest epoch's order
        if not self.world <= batch <= samples or micro < 1:
            raise BadSettings(
                f"batch={batch}, micro={micro}: {samples} samples, {self.world} ranks",
                next_step="each rank needs a sample of every step: world <= batch <= samples, and micro of 1 or more",
            )

    @property
    def steps(self) -> int:
        """Optimizer steps in an epoch, of any world."""
        return self.samples // self.batch

    @property
    def pieces(self) -> int:
        """This rank's pieces of each step."""
        return -(-len(self._own(range(self.batch))) // self.micro)

    def begin(self, *, epoch: int, step: int) -> None:
        """The next iterator yields the pieces of this epoch from this step on."""
        self._epoch, self._step = epoch, step

    def ids_of(self, epoch: int, step: int) -> list[int]:
        """The samples of all ranks in one optimizer step, in their order."""
        return self._of_step(epoch, step)

    def weight_of(self, size: int) -> float:
        """What the mean loss of a piece of this size counts in its rank's sum, so that the mean over the ranks, which
        DDP makes of the gradients, is the mean over the global batch."""
        return size * self.world / self.batch

    def __iter__(self) -> Iterator[list[int]]:
        epoch = self._epoch
        for step in range(self._step, self.steps):
            own = self._own(self._of_step(epoch, step))
            for begin in range(0, len(own), self.micro):
                yield list(own[begin : begin + self.micro])

    def __len__(self) -> int:
        return self.steps * self.pieces

    def _of_step(self, epoch: int, step: int) -> list[int]:
        if not self._shuffle:
            return list(range(step * self.batch, (step + 1) * self.batch))
        if self._drawn is None or self._drawn[0] != epoch:
            generator = torch.Generator()
            generator.manual_seed(_seed_of(self._seed, epoch))
            self._drawn = epoch, torch.randperm(self.samples, generator=generator)
        found: list[int] = self._drawn[1][step * self.batch : (step + 1) * self.batch].tolist()
        return found

    def _own(self, ids: range | list[int]) -> list[int]:
        """This rank's part: equal parts, the first ranks one more where they cannot be."""
        each, more = divmod(self.batch, self.world)
        begin = self.rank * each + min(self.rank, more)
        return list(ids[begin : begin + each + (self.rank < more)])


def reseed(saved_by: int, rank: int, world: int, *, step: int) -> None:
    """Where a world of another size saved the step (0: not known), each rank gets noise of its own from there on: the
    checkpoint has none for this world. It is the same at every try."""
    if saved_by in (0, world):
        return
    seed = _seed_of(step, rank, world) % 2**32
    random.seed(seed)
    torch.manual_seed(seed)
    numpy = sys.modules.get("numpy")  # without it none of its states can exist
    if numpy is not None:
        numpy.random.seed(seed)


def _seed_of(*numbers: int) -> int:
    """A seed that any Python makes of these numbers."""
    return int.from_bytes(hashlib.sha256(repr(numbers).encode()).digest()[:_SEED_BYTES])

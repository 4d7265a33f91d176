"""All ranks stop at the same step: a flag of each, their maximum, one step late.

A notice reaches one node, at whatever moment. A rank that leaves alone lets the others hang in their next collective,
and ranks that read one flag from a table read it at different steps. So the flag is only the trigger; the agreement is
an all_reduce that every rank joins. It is started at one step and read at the next, on a gloo group of its own: no step
waits for it unless a rank is a whole step behind, no device is synchronised, and it serves NCCL jobs as well.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum
from typing import Final, Protocol

import torch
from torch import distributed as dist

from spotproof.errors import BadSettings, CheckpointError

__all__ = ["EVERY_STEP_UP_TO", "StopConsensus", "Wish", "every_steps"]

EVERY_STEP_UP_TO: Final = 64  # ranks
SLOWER_S: Final = 1.0  # above that, about once in this time


class _Work(Protocol):
    def wait(self) -> bool:
        """Wait for the collective; raises if a rank is gone."""


def every_steps(world: int, step_s: float) -> int:
    """How many steps lie between two agreements. All ranks must use one number: fix it once for a generation."""
    if world <= EVERY_STEP_UP_TO or step_s <= 0:
        return 1
    return max(1, round(SLOWER_S / step_s))


class Wish(IntEnum):
    """What a rank wants at a step; the greatest of all ranks is done by all."""

    NOTHING = 0
    SAVE = 1
    STOP = 2  # save, and train no more in this generation


@dataclass(slots=True)
class StopConsensus:
    """One generation's agreement. Every rank makes one, in the same place, and calls `boundary` (or `agree`) once for
    each step.

    Making it is a collective (a gloo group). A rank that dies lets `boundary` raise, like any other collective.
    """

    every: int = 1
    _group: dist.ProcessGroup | None = None
    _flag: torch.Tensor = field(default_factory=lambda: torch.zeros(1, dtype=torch.uint8))
    _work: _Work | None = None
    _steps: int = 0
    _wish: Wish = Wish.NOTHING

    def __post_init__(self) -> None:
        if self.every < 1:
            raise ValueError(f"every: {self.every} is not a number of steps")
        if not dist.is_initialized():
            raise BadSettings(
                "several ranks train, but there is no process group",
                next_step="call torch.distributed.init_process_group() before the first step",
            )
        self._group = dist.new_group(backend="gloo")

    def boundary(self, *, wants_to_stop: bool) -> bool:
        """Tell this rank's wish and learn the agreement: True at one and the same call on every rank.

        A wish that is told at call k is known to all at call k+1 (with `every` n: at the n-th call after the next
        agreement began, at the latest). A wish, once told, stands.
        """
        return self.agree(Wish.STOP if wants_to_stop else Wish.NOTHING) is Wish.STOP

    def agree(self, wish: Wish) -> Wish:
        """The same with a wish that may be to save and go on: it stands until it, or a greater one, is agreed upon."""
        self._wish = max(self._wish, wish)
        is_due = self._steps % self.every == 0
        self._steps += 1
        if not is_due:
            return Wish.NOTHING
        agreed = self._finished()
        if agreed >= self._wish:
            self._wish = Wish.NOTHING
        if agreed is not Wish.STOP:
            self._flag.fill_(int(self._wish))
            self._work = dist.all_reduce(self._flag, dist.ReduceOp.MAX, group=self._group, async_op=True)
        return agreed

    def check_same(self, step: int) -> None:
        """All ranks begin at one step; a collective. Raises CheckpointError where they do not: they would never agree
        again."""
        ends = torch.tensor([step, -step], dtype=torch.int64)
        dist.all_reduce(ends, dist.ReduceOp.MAX, group=self._group)
        highest, lowest = int(ends[0]), -int(ends[1])
        if highest != lowest:
            raise CheckpointError(
                f"the ranks restored different steps, from {lowest} to {highest}",
                next_step="restore on every rank, in the same place",
            )

    def end(self) -> None:
        """Give the group up; on every rank, after the same call of `boundary`. What is under way is finished."""
        self._finished()
        if self._group is not None:
            dist.destroy_process_group(self._group)
        self._group = None

    def _finished(self) -> Wish:
        work, self._work = self._work, None
        if work is None:
            return Wish.NOTHING
        work.wait()
        return Wish(int(self._flag.item()))

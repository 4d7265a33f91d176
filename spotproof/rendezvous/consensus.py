"""All ranks stop at the same step: a flag of each, their maximum, one step late.

A notice reaches one node, at whatever moment. A rank that leaves alone lets the others hang in their next collective,
and ranks that read one flag from a table read it at different steps. So the flag is only the trigger; the agreement is
an all_reduce that every rank joins. It is started at one step and read at the next, on a gloo group of its own: no step
waits for it unless a rank is a whole step behind, no device is synchronised, and it serves NCCL jobs as well.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, Protocol

import torch
from torch import distributed as dist

__all__ = ["EVERY_STEP_UP_TO", "StopConsensus", "every_steps"]

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


@dataclass(slots=True)
class StopConsensus:
    """One generation's agreement. Every rank makes one, in the same place, and calls `boundary` once for each step.

    Making it is a collective (a gloo group). A rank that dies lets `boundary` raise, like any other collective.
    """

    every: int = 1
    _group: dist.ProcessGroup | None = None
    _flag: torch.Tensor = field(default_factory=lambda: torch.zeros(1, dtype=torch.uint8))
    _work: _Work | None = None
    _steps: int = 0
    _is_raised: bool = False

    def __post_init__(self) -> None:
        if self.every < 1:
            raise ValueError(f"every: {self.every} is not a number of steps")
        self._group = dist.new_group(backend="gloo")

    def boundary(self, *, wants_to_stop: bool) -> bool:
        """Tell this rank's wish and learn the agreement: True at one and the same call on every rank.

        A wish that is told at call k is known to all at call k+1 (with `every` n: at the n-th call after the next
        agreement began, at the latest). A wish, once told, stands.
        """
        self._is_raised = self._is_raised or wants_to_stop
        is_due = self._steps % self.every == 0
        self._steps += 1
        if not is_due:
            return False
        agreed = self._finished()
        if not agreed:
            self._flag.fill_(int(self._is_raised))
            self._work = dist.all_reduce(self._flag, dist.ReduceOp.MAX, group=self._group, async_op=True)
        return agreed

    def end(self) -> None:
        """Give the group up; on every rank, after the same call of `boundary`. What is under way is finished."""
        self._finished()
        if self._group is not None:
            dist.destroy_process_group(self._group)
        self._group = None

    def _finished(self) -> bool:
        work, self._work = self._work, None
        if work is None:
            return False
        work.wait()
        return bool(self._flag.item())

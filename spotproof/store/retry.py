"""How long a call to AWS is tried again, and how slowly. The clients themselves try once, so that this is all of it."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable
from typing import Final, TypeVar

from spotproof.contract.frozen import dataclass
from spotproof.store.awserrors import Failure, aws_failures, error_for, kind_of

__all__ = ["TRANSIENT", "Patience"]

TRANSIENT: Final = frozenset({Failure.THROTTLE, Failure.CONFLICT, Failure.NETWORK, Failure.SKEW})
"""Failures after which the same request is right again. A new try is signed anew, which is the cure for skew."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """Tries for `total_s` with full jitter between `first_s` and `longest_s`; clock, sleep and chance can be given.

    A call that is under way is not cut: the client's own time-outs bound it.
    """

    total_s: float
    first_s: float = 0.05
    longest_s: float = 2.0
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    chance: Callable[[], float] = random.random

    def call(self, attempt: Callable[[], T], *, doing: str, until: float = math.inf) -> T:
        """Return what `attempt` returns; try again after a transient failure until `until` (by `clock`) or `total_s`.

        Raises the error of ours for the last failure. Exceptions that are not AWS failures pass.
        """
        give_up_at = min(self.clock() + self.total_s, until)
        longest_s = self.first_s
        while True:
            try:
                return attempt()
            except aws_failures() as failure:
                wait_s = longest_s * self.chance()
                if kind_of(failure) not in TRANSIENT or self.clock() + wait_s >= give_up_at:
                    raise error_for(failure, doing=doing) from failure
            self.sleep(wait_s)
            longest_s = min(2 * longest_s, self.longest_s)

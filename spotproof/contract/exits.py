"""Exit codes of `spotproof run` (DESIGN section 10)."""

from __future__ import annotations

from enum import IntEnum


class ExitCode(IntEnum):
    """What the end of `spotproof run` means; any other code is the trainer's own."""

    DONE = 0
    FAILED = 1
    PREEMPTED_FLUSHED = 75
    PREEMPTED_LOST = 76
    PAUSED_BUDGET = 77
    BAD_CONFIGURATION = 78

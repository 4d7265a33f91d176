"""Whether a run that waits for Spot would still be in time: at its own pace so far, waits and recoveries included."""

from __future__ import annotations

from typing import Final

from spotproof.contract.frozen import dataclass

BLIND_SHARE: Final = 0.5  # without a commit there is no pace: half of the time may pass


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """A run with a deadline. `step` was committed at `committed_at`; times are Unix seconds."""

    submitted_at: int
    deadline_s: float  # since submit
    deadline_step: int
    step: int = 0
    committed_at: int = 0


def is_late(progress: Progress, *, now: int) -> bool:
    """Whether `deadline_step` would come after the deadline if everything goes on as it went.

    The pace counts every second since submit, so it is low for a run that has waited: it leaves Spot rather too early
    than too late (the idea of Wu et al., Can't Be Late, NSDI '24: rely on Spot only while there is slack).
    """
    due_at = progress.submitted_at + progress.deadline_s
    if progress.step >= progress.deadline_step:
        return False
    used_s = progress.committed_at - progress.submitted_at
    if progress.step <= 0 or used_s <= 0:
        return now > progress.submitted_at + BLIND_SHARE * progress.deadline_s
    needed_s = (progress.deadline_step - progress.step) * used_s / progress.step
    return now + needed_s > due_at

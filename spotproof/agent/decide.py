"""What the remaining seconds of a node are worth: pure decisions.

The budget is `deadline - now - 10 s` with the notice's own deadline, never an assumed 120 s (EV-09). Rates are
measured; where nothing has been measured yet an attempt costs nothing, so it is made.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from spotproof.contract.exits import ExitCode
from spotproof.contract.limits import FLUSH_MARGIN_S
from spotproof.contract.states import FlushOutcome

COPY_BYTES_PER_S: Final = 2e9  # a cautious fifth of what one thread copies (CHECKPOINT section 2a)
SHORT_NOTICE_SHARE: Final = 0.25  # the margin never takes more than this of a short notice
TRAIN_ON_WORTH_S: Final = 30.0  # less training than this between two flushes is not worth the second one
LAST_FLUSH_CARE: Final = 1.5  # the last flush has no second try, so it is given more than the first one needs
LAST_FLUSH_EXTRA_S: Final = 5.0


class Choice(StrEnum):
    """What to do with the time that is left."""

    FLUSH = "flush"  # ask the trainer for a checkpoint at its next boundary
    FINISH_UPLOAD = "finish-upload"  # no boundary and upload would fit, but what is under way does
    KEEP_LAST = "keep-last"  # nothing newer can become durable
    PARK = "park"  # everything is durable: nothing is left to do


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """What the agent knows when it has to choose. Steps are -1 where there is none; unknown measurements are None.

    `lacking_bytes`: what the newest commit lacked of the image at the last save; None: take all of it. `step_age_s`:
    how long ago the newest finished step was told. `boundaries`: steps that may begin before all ranks stop.
    """

    now: float
    deadline_at: float
    has_trainer: bool
    step: int = -1  # newest finished step that the trainer told
    committed_step: int = -1
    uploading_step: int = -1
    uploading_bytes_left: int = 0
    image_bytes: int | None = None
    lacking_bytes: int | None = None
    step_s: float | None = None
    step_age_s: float | None = None
    boundaries: int = 1
    rate_bytes_s: float | None = None
    may_train_on: bool = False  # EC2 itself said when, and nobody waits for this node's last word


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """The choice, why, and how many seconds it may use. `again_at`: the first flush is followed by training and, at
    this time, by another one; 0: it is the only one."""

    choice: Choice
    reason: str
    budget_s: float
    again_at: float = 0.0


def budget_s(*, now: float, deadline_at: float) -> float:
    """Seconds that a flush may use: up to the margin before the deadline; never negative.

    The margin shrinks for a notice so short that it would take most of it.
    """
    left = deadline_at - now
    return max(0.0, left - min(FLUSH_MARGIN_S, left * SHORT_NOTICE_SHARE))


def decide(moment: Moment) -> Decision:
    """Choose. FLUSH where it fits; else finish what is under way if that is newer and fits; else keep the last.

    What cannot be whole by the deadline is not begun, unless there is nothing to keep.
    """
    budget = budget_s(now=moment.now, deadline_at=moment.deadline_at)

    def choose(choice: Choice, reason: str, *, again_at: float = 0.0) -> Decision:
        return Decision(choice=choice, reason=reason, budget_s=budget, again_at=again_at)

    if not moment.has_trainer:
        return _without_trainer(moment, budget)
    if budget <= 0:
        return choose(Choice.KEEP_LAST, "the deadline has passed")
    flush_s = _flush_s(moment)
    if flush_s is None:
        return choose(Choice.FLUSH, f"nothing measured yet, {budget:.0f} s to try in")
    if flush_s <= budget:
        again_at = _again_at(moment, budget, flush_s)
        then = ", trains on, flushes again" if again_at else ""
        return choose(Choice.FLUSH, f"needs about {flush_s:.1f} s of {budget:.0f} s{then}", again_at=again_at)
    upload_s = _upload_s(moment)
    if upload_s is not None and upload_s <= budget:
        why = f"a flush needs {flush_s:.1f} s of {budget:.0f} s, the upload of step {moment.uploading_step} only"
        return choose(Choice.FINISH_UPLOAD, f"{why} {upload_s:.1f} s")
    if moment.committed_step < 0:
        return choose(Choice.FLUSH, f"needs about {flush_s:.1f} s of {budget:.0f} s, but nothing is committed to keep")
    return choose(Choice.KEEP_LAST, f"a flush needs about {flush_s:.1f} s, there are {budget:.0f} s")


def _again_at(moment: Moment, budget: float, flush_s: float) -> float:
    """When to ask for the last flush, if training between two of them is worth it; else 0."""
    last_s = LAST_FLUSH_CARE * flush_s + LAST_FLUSH_EXTRA_S
    if not moment.may_train_on or budget - flush_s - last_s < TRAIN_ON_WORTH_S:
        return 0.0
    return moment.now + budget - last_s


def _without_trainer(moment: Moment, budget: float) -> Decision:
    if moment.uploading_step > moment.committed_step:
        reason = f"no trainer is left, step {moment.uploading_step} is under way"
        return Decision(choice=Choice.FINISH_UPLOAD, reason=reason, budget_s=budget)
    return Decision(choice=Choice.PARK, reason="no trainer runs and nothing is under way", budget_s=budget)


def _flush_s(moment: Moment) -> float | None:
    """Seconds to the last boundary, for the copy, and for the upload behind what is under way; None: not measured."""
    if moment.image_bytes is None or moment.rate_bytes_s is None:
        return None
    lacking = moment.image_bytes if moment.lacking_bytes is None else moment.lacking_bytes
    copy_s = moment.image_bytes / COPY_BYTES_PER_S
    return _boundary_s(moment) + copy_s + (lacking + moment.uploading_bytes_left) / moment.rate_bytes_s


def _boundary_s(moment: Moment) -> float:
    """Seconds until every rank has stopped: the rest of this step, and those that may begin after it.

    A step that takes longer than steps do (an evaluation, a stall) may take as long as a whole one still.
    """
    step_s = moment.step_s or 0.0
    age_s = moment.step_age_s
    rest_s = step_s if age_s is None or age_s > step_s else step_s - age_s
    return rest_s + (moment.boundaries - 1) * step_s


def _upload_s(moment: Moment) -> float | None:
    if moment.uploading_step <= moment.committed_step or moment.rate_bytes_s is None:
        return None
    return moment.uploading_bytes_left / moment.rate_bytes_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """What is known when the trainer's command has ended and nothing is under way any more.

    `code` is the command's own (negative: by that signal). `failures` counts ends with an error since the last
    progress, this one included; `allowed` is how many of them the run allows.
    """

    code: int
    is_superseded: bool = False
    is_leaving: bool = False
    is_paused: bool = False
    outcome: FlushOutcome | None = None
    is_last_save_lost: bool = False
    failures: int = 0
    allowed: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What the launcher does: start the command again, or end with `code` and say `says`."""

    again: bool
    code: int
    says: str


def verdict(ending: Ending) -> Verdict:
    """The end of `spotproof run`, from the commit record first and the command's own code last."""
    if ending.is_superseded:
        return _end(ExitCode.PREEMPTED_LOST, "a newer membership has been sealed: this node's place is given away")
    if ending.is_paused:
        return _end(ExitCode.PAUSED_BUDGET, "the run is paused; its last checkpoint stands")
    if ending.is_leaving:
        if ending.outcome is FlushOutcome.COMMITTED:
            return _end(ExitCode.PREEMPTED_FLUSHED, "preempted; the last step is committed")
        return _end(ExitCode.PREEMPTED_LOST, "preempted without a flush; the run goes on from the commit before it")
    if ending.code == ExitCode.DONE:
        if ending.is_last_save_lost:
            return _end(ExitCode.FAILED, "training ended, but its last checkpoint did not become durable")
        return _end(ExitCode.DONE, "done")
    if ending.code == ExitCode.BAD_CONFIGURATION:
        return _end(ExitCode.BAD_CONFIGURATION, "the trainer refused its configuration")
    if ending.failures < ending.allowed:
        says = f"the trainer ended with {ending.code}; failure {ending.failures} of {ending.allowed} without progress"
        return Verdict(again=True, code=0, says=says)
    return _end(shell_code(ending.code), f"the trainer ended with {ending.code}")


def _end(code: int, says: str) -> Verdict:
    return Verdict(again=False, code=int(code), says=says)


def shell_code(code: int) -> int:
    """A command's end as a shell tells it: 128 + the signal's number for one that was killed."""
    return 128 - code if code < 0 else code

"""Interruptions with notice, one after another in one training: every flush is committed, no step is lost.

    python -m tests.simulation.interruptions --count 1000 --seed 1

One training of small real torch state, with the real agent, uploader and `Run` on real files. Each incarnation trains a
few steps; a flush order reaches its agent at a seeded moment: before a step, between backward and the optimizer, behind
a boundary, while a save is copied or uploaded, or a moment after. Then it flushes and ends, and the next one goes on.
Checked each time: the trainer left because of the notice with a committed flush (75), the next one is restored to
exactly that step with the bits of the uninterrupted training; at the end the losses are its losses, bit by bit.

Every process is forked from one warm parent without threads, because importing torch costs more than an incarnation.
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from pathlib import Path

import torch
from torch import nn

from spotproof.contract.exits import ExitCode
from spotproof.run import Run
from tests.fakes.toy import drop_order
from tests.fakes.training import Training
from tests.simulation.kill import Fuse, Role, Site, Trial, fingerprint, folder

TAIL_STEPS = 3  # after the last interruption
STEP_S = 0.01
SCHEDULE_STEPS = 1_000_000  # more than any count of interruptions takes
PATIENCE_STEPS = 3000  # of one incarnation that never hears


class Moment(StrEnum):
    """When the order arrives."""

    BEFORE_STEP = "before a step"
    IN_STEP = "between backward and optimizer"
    BEHIND_BOUNDARY = "behind a boundary"
    LATER = "a moment later"


@dataclass(frozen=True, slots=True)
class Blow:
    """One interruption: after so many steps, at this moment, with saves every so many steps."""

    after: int
    moment: Moment
    every: int
    delay_s: float


@dataclass
class Reference:
    """The uninterrupted training, as far as anybody has asked."""

    training: Training = field(default_factory=partial(Training, total_steps=SCHEDULE_STEPS))
    prints: list[str] = field(default_factory=list)

    def up_to(self, step: int) -> list[str]:
        """Fingerprints after 0, 1, ... `step` steps."""
        if not self.prints:
            self.prints.append(fingerprint(self.training))
        while len(self.prints) <= step:
            self.training.step()
            self.prints.append(fingerprint(self.training))
        return self.prints


def train(site: Site, blow: Blow | None, *, until: int) -> int:
    """The trainer of one incarnation; `blow` None: it trains to step `until` and is done."""
    training = Training(total_steps=SCHEDULE_STEPS)
    moments = _moments(site.folder / "run", blow)
    with Run.from_env({"SPOTPROOF_RUNTIME_DIR": site.environ["SPOTPROOF_RUNTIME_DIR"]}) as run:
        run.track(**training.objects)
        begun = run.restore()
        site.say(f"restored {begun} {fingerprint(training)}")
        try:
            while run.step < until:
                moments(Moment.BEFORE_STEP, run.step - begun)
                _step(training, lambda: moments(Moment.IN_STEP, run.step - begun))
                run.boundary()
                moments(Moment.BEHIND_BOUNDARY, run.step - begun)
                time.sleep(STEP_S)
                moments(Moment.LATER, run.step - begun)
        except SystemExit as left:
            site.say(f"left {run.step} {left.code}")
            return int(left.code or 0)
        else:
            for loss in training.losses:
                site.say(f"loss {loss.hex()}")
            site.say(f"done {run.step} {fingerprint(training)}")
    return 0


def _step(training: Training, between: Callable[[], None]) -> None:
    """`Training.step` with something between backward and optimizer."""
    words = torch.randint(0, 11, (8,))
    training.optimizer.zero_grad()
    loss = nn.functional.cross_entropy(training.model(words), words.roll(1))
    loss.backward()
    between()
    training.optimizer.step()
    training.scheduler.step()
    training.losses.append(loss.item())


def _moments(runtime: Path, blow: Blow | None) -> Callable[[Moment, int], None]:
    """Drops the order when its moment has come, once."""
    due = [blow] if blow is not None else []

    def moment(now: Moment, done: int) -> None:
        if due and due[0].moment is now and done >= due[0].after:
            if now is Moment.LATER:
                time.sleep(due[0].delay_s)
            due.pop()
            drop_order(runtime, f"o-{time.monotonic_ns()}")

    return moment


@dataclass
class Incarnation(Trial):
    """One agent and one trainer, until both have ended by themselves."""

    body: Callable[[], int] = lambda: 0
    code: int | None = None

    def _start_trainer(self) -> None:
        self._start(Role.TRAINER, self.body)

    def _trainer_ended(self, code: int) -> None:
        self.code = code
        self.is_trained, self.trained_at = True, time.monotonic()
        if Role.AGENT not in self.alive.values():
            self.is_over = True

    def _send_home(self) -> None:
        """It ends by itself."""

    def _agent_ended(self) -> None:
        self.is_over = self.code is not None


def blow_of(chance: random.Random) -> Blow:
    """A seeded interruption."""
    return Blow(
        after=chance.randint(0, 3),
        moment=chance.choice(list(Moment)),
        every=chance.choice([1, 2, 1000]),
        delay_s=chance.uniform(0, 0.05),
    )


@dataclass
class Interrupted(Site):
    """The folder of the one training."""

    every: int = 1000

    @property
    def environ(self) -> dict[str, str]:
        return super().environ | {"SPOTPROOF_CHECKPOINT_EVERY_STEPS": str(self.every)}


def play(count: int, chance: random.Random, where: Path, reference: Reference) -> str:
    """'' if nothing was lost, else what was."""
    step = 0
    for number in range(count + 1):
        is_last = number == count
        blow = None if is_last else blow_of(chance)
        site = Interrupted(where, reference.up_to(step), every=1000 if blow is None else blow.every)
        said = len(site.said())
        until = step + TAIL_STEPS if is_last else step + PATIENCE_STEPS
        incarnation = Incarnation(
            site=site, role=Role.UPLOADER, fuse=Fuse(), body=partial(train, site, blow, until=until)
        )
        _run(incarnation)
        lines = site.said()[said:]
        step, problem = _judged(lines, step, incarnation.code, is_last=is_last, reference=reference)
        if problem:
            return f"interruption {number + 1} ({blow}): {problem}\n{site.log()}"
    return ""


def _run(incarnation: Incarnation) -> None:
    problem = incarnation.play()
    if problem:
        incarnation.site.say(problem)


def _judged(lines: list[str], step: int, code: int | None, *, is_last: bool, reference: Reference) -> tuple[int, str]:
    """(the step that the training stands at, what is wrong)."""
    restored, ended = lines[0].split() if lines else [], lines[-1].split()
    if restored[:1] != ["restored"]:
        return step, f"nothing was restored: {lines}"
    if int(restored[1]) != step:
        return step, f"LOST: it had left at step {step}, the next one begins at {restored[1]}"
    if restored[2] != reference.up_to(step)[step]:
        return step, f"WRONG restore of step {step}"
    wanted = 0 if is_last else int(ExitCode.PREEMPTED_FLUSHED)
    if code != wanted or ended[0] != ("done" if is_last else "left"):
        return step, f"it ended with {code}, not {wanted}: {lines}"
    left = int(ended[1])
    if is_last and ended[2] != reference.up_to(left)[left]:
        return left, "WRONG end"
    losses = [line.split()[1] for line in lines if line.startswith("loss ")]
    expected = [loss.hex() for loss in reference.training.losses[step:left]]
    return left, "the losses are not those of the uninterrupted training" if is_last and losses != expected else ""


def main(arguments: list[str] | None = None) -> int:
    """Play and print; 0 if nothing was lost or wrong."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--count", type=int, default=30)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    chance, reference = random.Random(options.seed), Reference()
    begun = time.monotonic()
    with folder() as where:
        problem = play(options.count, chance, where, reference)
    if problem:
        print(problem)
        return 1
    steps = len(reference.prints) - 1
    print(
        f"{options.count} interruptions with notice, {options.count} committed flushes, 0 steps lost, "
        f"{steps} steps bit-equal ({time.monotonic() - begun:.0f} s)"
    )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

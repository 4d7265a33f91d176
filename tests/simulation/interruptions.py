"""Interruptions with notice, one after another in one training: every flush is committed, no step is lost.

    python -m tests.simulation.interruptions --count 1000 --seed 1

One training of small real torch state, with the real agent, uploader and `Run` on real files. Each incarnation trains a
few steps; a flush order reaches its agent at a seeded moment: before a step, between backward and the optimizer, behind
a boundary, while a save is copied or uploaded, or a moment after. Then it flushes and ends, and the next one goes on.
Checked each time: the trainer left because of the notice with a committed flush (75), the next one is restored to
exactly that step with the bits of the uninterrupted training; at the end the losses are its losses, bit by bit.

Then for each ten of them one death without a notice, of the trainer alone or of the whole node with its disk: what it
costs is measured, and may be one staged or one committed interval at the most.

Every process is forked from one warm parent without threads, because importing torch costs more than an incarnation.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import signal
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
UPLOAD_STEPS = 8  # that a commit takes at the most where the incarnation was too short to measure one
PATIENCE_STEPS = 3000  # of one incarnation that never hears


class Death(StrEnum):
    """Who dies without a word."""

    PROCESS = "process"  # the trainer: the agent has its memory
    NODE = "node"  # everybody, and the node's disk with them


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


def die(site: Site, after: int) -> int:
    """The trainer that dies: it tells what it has and what it has heard, and ends in the middle of a step."""
    training = Training(total_steps=SCHEDULE_STEPS)
    with Run.from_env({"SPOTPROOF_RUNTIME_DIR": site.environ["SPOTPROOF_RUNTIME_DIR"]}) as run:
        run.track(**training.objects)
        begun = run.restore()
        site.say(f"restored {begun} {fingerprint(training)}")

        def end() -> None:
            if run.step - begun >= after:
                os.kill(os.getpid(), signal.SIGKILL)

        while True:
            _step(training, end)
            run.boundary()
            site.say(f"at {run.step} {run.latest or 0}")
            time.sleep(STEP_S)


def go_on(site: Site) -> int:
    """The trainer that comes after it: two steps more."""
    training = Training(total_steps=SCHEDULE_STEPS)
    with Run.from_env({"SPOTPROOF_RUNTIME_DIR": site.environ["SPOTPROOF_RUNTIME_DIR"]}) as run:
        run.track(**training.objects)
        begun = run.restore()
        site.say(f"restored {begun} {fingerprint(training)}")
        while run.step < begun + 2:
            training.step()
            run.boundary()
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


@dataclass
class Died(Incarnation):
    """A trainer that dies, and after it: another one beside the same agent, or nobody and nothing."""

    death: Death = Death.PROCESS
    then: Callable[[], int] = lambda: 0
    deaths: int = 0

    def _trainer_ended(self, code: int) -> None:
        if code != -signal.SIGKILL:
            super()._trainer_ended(code)
            return
        self.deaths += 1
        if self.death is Death.PROCESS:
            self.body = self.then
            self._start_trainer()
            return
        self.code = code
        for pid in self.alive:
            os.kill(pid, signal.SIGKILL)

    def _agent_ended(self) -> None:
        super()._agent_ended()
        if self.death is Death.NODE:
            for left in ("scratch", "run"):
                shutil.rmtree(self.site.folder / left, ignore_errors=True)


@dataclass
class Losses:
    """Steps that deaths without a notice cost, beside the intervals in which the run was saved."""

    lost: dict[Death, list[int]] = field(default_factory=lambda: {death: [] for death in Death})
    bound: dict[Death, list[int]] = field(default_factory=lambda: {death: [] for death in Death})

    def __str__(self) -> str:
        said = []
        for death, lost in self.lost.items():
            what = "staged" if death is Death.PROCESS else "committed"
            most = max(zip(lost, self.bound[death], strict=True), default=(0, 0))
            mean = sum(lost) / max(1, len(lost))
            said.append(
                f"{death} death {len(lost)}x: {mean:.1f} steps lost, {most[0]} at most, one {what} interval {most[1]}"
            )
        return "; ".join(said)


def play_deaths(count: int, chance: random.Random, where: Path, reference: Reference, losses: Losses) -> str:
    """'' if no death cost more than its interval, else what."""
    for number in range(count):
        death = list(Death)[number % 2]
        every, after = chance.choice([3, 5, 8]), chance.randint(0, 20)
        site = Interrupted(where, reference.up_to(0), every=every)
        said = len(site.said())
        died = Died(
            site=site,
            role=Role.UPLOADER,
            fuse=Fuse(),
            body=partial(die, site, after),
            then=partial(go_on, site),
            death=death,
        )
        _run(died)
        if death is Death.NODE:
            _run(Incarnation(site=site, role=Role.UPLOADER, fuse=Fuse(), body=partial(go_on, site)))
        problem = _judged_death(site.said()[said:], death, every, reference, losses)
        if problem:
            return f"death {number + 1} ({death}, a save each {every} steps, after {after}): {problem}\n{site.log()}"
    return ""


def _judged_death(lines: list[str], death: Death, every: int, reference: Reference, losses: Losses) -> str:
    """What was lost is noted; '' if it is no more than the interval and the rest has the right bits."""
    restores = [(int(line.split()[1]), line.split()[2]) for line in lines if line.startswith("restored")]
    told = [tuple(map(int, line.split()[1:])) for line in lines if line.startswith("at")]
    if len(restores) != 2 or not any(line.startswith("done") for line in lines):
        return f"it did not go on: {lines[-3:]}"
    for step, print_ in restores:
        if print_ != reference.up_to(step)[step]:
            return f"WRONG restore of step {step}"
    begun, again = restores[0][0], restores[1][0]
    reached, heard = told[-1] if told else (begun, begun)
    # How long a commit takes, in steps of this very incarnation: from its boundary to when the trainer heard of it.
    upload = max((at - latest for at, latest in told if latest > begun and latest % every == 0), default=0)
    upload = max(0, upload - every)
    bound = every if death is Death.PROCESS else every + max(upload, UPLOAD_STEPS)
    if again < heard:
        return f"LOST: step {heard} was committed, the next one begins at {again}"
    losses.lost[death].append(reached - again)
    losses.bound[death].append(bound)
    return f"{reached - again} steps lost, one interval is {bound}" if reached - again > bound else ""


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
    parser.add_argument("--deaths", type=int, help="without a notice; default: a tenth of the interruptions")
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
        f"{steps} steps bit-equal ({time.monotonic() - begun:.0f} s)",
        flush=True,
    )
    return without_notice(options.count // 10 if options.deaths is None else options.deaths, chance)


def without_notice(count: int, chance: random.Random) -> int:
    """Play `count` deaths and say what they cost; 0 if none cost more than its interval."""
    losses = Losses()
    with folder() as where:
        problem = play_deaths(count, chance, where, Reference(), losses)
    print(problem or f"{count} deaths without a notice: {losses}")
    return 1 if problem else 0


if __name__ == "__main__":
    raise SystemExit(main())

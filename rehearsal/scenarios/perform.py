"""Plays scenarios, each on a region of its own, and tells how each ended."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from rehearsal import verdicts
from rehearsal.play import play
from rehearsal.region import Region
from rehearsal.scenarios.scenario import Scenario
from rehearsal.stage import Say
from rehearsal.verdicts import Verdict

PLAYED = "played"


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """How one scenario ended. `sabotage` is '' where nothing was broken on purpose."""

    scenario: str
    seconds: float
    verdicts: tuple[Verdict, ...]
    sabotage: str = ""
    breaks: tuple[str, ...] = ()

    @property
    def broken(self) -> tuple[Verdict, ...]:
        """The verdicts that failed."""
        return tuple(verdict for verdict in self.verdicts if not verdict.passed)

    @property
    def is_noticed(self) -> bool:
        """Whether a verdict failed that the sabotage must break."""
        return any(verdict.name in self.breaks for verdict in self.broken)

    @property
    def as_it_should(self) -> bool:
        """Every promise kept; or, with a sabotage, broken where it must be."""
        return self.is_noticed if self.sabotage else not self.broken


@dataclass(frozen=True, slots=True, kw_only=True)
class Theatre:
    """Where scenarios are played: a folder of this performance, the synthesized stack, the seed, and who listens."""

    folder: Path
    cdk_out: Path
    seed: int
    say: Say

    def play(self, scenarios: Sequence[Scenario], *, sabotaged: bool) -> Iterator[Result]:
        """One result after the other. What cannot be played is a broken verdict, and the next one is played."""
        for number, scenario in enumerate(scenarios):
            begun = time.monotonic()
            with_sabotage = f", sabotaged: {scenario.sabotage.says}" if sabotaged else ""
            self.say(f"{scenario.name}: {scenario.says}{with_sabotage}")
            try:
                judged = self._judged(scenario, self.folder / f"s{number}", sabotaged=sabotaged)
            except Exception as error:  # noqa: BLE001 -- the edge of a scenario: it is broken, the next one is played
                judged = (Verdict(name=PLAYED, passed=False, says=f"{type(error).__name__}: {error}"),)
            yield Result(
                scenario=scenario.name,
                seconds=time.monotonic() - begun,
                verdicts=judged,
                sabotage=scenario.sabotage.name if sabotaged else "",
                breaks=scenario.sabotage.breaks if sabotaged else (),
            )

    # What a sabotage keeps from happening is waited for in vain: not as long as for what only takes its time.
    def _judged(self, scenario: Scenario, workdir: Path, *, sabotaged: bool) -> tuple[Verdict, ...]:
        with Region(workdir, seed=self.seed) as region:
            performance = play(
                region,
                dataclasses.replace(scenario.plan, patience_s=scenario.plan.patience_s / (2 if sabotaged else 1)),
                cdk_out=self.cdk_out,
                references=self.folder,
                say=self.say,
                spoil=scenario.sabotage.act if sabotaged else None,
                script=scenario.script,
            )
            runs = (performance.evidence, *performance.beside)
            general = joined([verdicts.judge(evidence) for evidence in runs])
            return (*general, *scenario.promises(performance.stage, performance.evidence))


def joined(judged: Sequence[Sequence[Verdict]]) -> tuple[Verdict, ...]:
    """The same promises of several runs as one each: kept if every run kept it; what they say, each thing once."""
    names = dict.fromkeys(verdict.name for of_run in judged for verdict in of_run)
    found = []
    for name in names:
        same = [verdict for of_run in judged for verdict in of_run if verdict.name == name]
        says = "; ".join(dict.fromkeys(verdict.says for verdict in same))
        found.append(Verdict(name=name, passed=all(verdict.passed for verdict in same), says=says))
    return tuple(found)


def line(result: Result) -> str:
    """One result for a terminal."""
    name, seconds = result.scenario, f"({result.seconds:.0f} s)"
    broken = "; ".join(f"{verdict.name}: {verdict.says}" for verdict in result.broken)
    if not result.sabotage:
        own = result.verdicts[-1].says if result.verdicts else ""
        return f"{name}: FAILED {seconds}  {broken}" if broken else f"{name}: passed {seconds}  {own}"
    if result.is_noticed:
        return f"{name}: noticed {seconds}  {result.sabotage}: {broken}"
    missed = f"{' or '.join(result.breaks)} should have failed"
    return f"{name}: NOT NOTICED {seconds}  {result.sabotage}: {missed}{f', not {broken}' if broken else ''}"

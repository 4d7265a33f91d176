"""`python -m rehearsal`: watch a real training survive real interruptions, on this machine.

    python -m rehearsal                     the whole story, compared with an uninterrupted run
    python -m rehearsal --short             one interruption with notice
    python -m rehearsal --grants            and at its end every grant of the stack, used or why not
    python -m rehearsal --sabotage list     what can be broken on purpose
    python -m rehearsal --sabotage NAME     break it: this must fail, for the named reason
    python -m rehearsal --sabotage all      break each in turn
    python -m rehearsal --scenario list     weather that the story does not have
    python -m rehearsal --scenario NAME     play one of them; `all`: each in turn, one line each
    python -m rehearsal --scenario NAME --sabotage      break what its promise rests on: it must notice

Exit status: 0 passed, 1 a promise was broken (with --sabotage: the sabotage was not noticed), 2 it could not be played.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from rehearsal import page, sabotage, synth, verdicts
from rehearsal.deploy import DeployFailed
from rehearsal.permissions import ledger
from rehearsal.plan import FULL, SHORT, Plan
from rehearsal.play import play
from rehearsal.processes import Processes, terminated_like_ctrl_c
from rehearsal.reference import ReferenceFailed
from rehearsal.region import ProblemsFound, Region
from rehearsal.scenarios import catalogue
from rehearsal.scenarios.perform import Theatre, line
from rehearsal.stage import CommandFailed, Say
from rehearsal.verdicts import Verdict
from spotproof.report import html

PASSED, BROKEN, NOT_PLAYED = 0, 1, 2
PAGE = "rehearsal.html"


def main(argv: Sequence[str] | None = None) -> int:
    """Parse the words and play."""
    chosen = _arguments(argv)
    if "list" in (chosen.sabotage, chosen.scenario):
        return _list(chosen)
    say = _speaker(quiet=chosen.json or chosen.scenario == "all")
    try:
        with terminated_like_ctrl_c(), _folder(chosen) as folder:
            return _play(chosen, folder, say)
    except (ProblemsFound, DeployFailed, synth.SynthFailed, CommandFailed, ReferenceFailed, FileNotFoundError) as error:
        print(f"rehearsal: {error}", file=sys.stderr)
        return NOT_PLAYED
    except KeyboardInterrupt:
        print("rehearsal: stopped; everything that was started has been ended", file=sys.stderr)
        return 130


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m rehearsal", description=__doc__.partition("\n\n")[0])
    parser.add_argument("--short", action="store_true", help="one interruption with notice only")
    broken = "break something on purpose: a name, `list` or `all` (the default); a scenario has its own"
    parser.add_argument("--sabotage", metavar="NAME", nargs="?", const="all", help=broken)
    parser.add_argument("--scenario", metavar="NAME", help="other weather than the story's: a name, `list` or `all`")
    parser.add_argument("--seed", type=int, default=1, help="of duplicated and reordered events")
    parser.add_argument("--steps", type=int, help="length of the training")
    parser.add_argument("--cdk-out", type=Path, help="a folder that has been synthesized already")
    parser.add_argument("--page", type=Path, default=Path(PAGE), help=f"where the page is written (default {PAGE})")
    parser.add_argument("--workdir", type=Path, help="keep logs, disks and tables in this new folder")
    parser.add_argument("--grants", action="store_true", help="list every grant of every role with what became of it")
    parser.add_argument("--json", action="store_true", help="the verdicts as one JSON document on standard output")
    return parser.parse_args(argv)


def _list(chosen: argparse.Namespace) -> int:
    if chosen.scenario is None:
        for known in sabotage.ALL:
            print(f"{known.name:<24} {known.says}")
        return PASSED
    for scenario in catalogue.ALL:
        print(f"{scenario.name:<18} {scenario.says}")
        if chosen.sabotage is not None:
            print(f"{'':<18} {scenario.sabotage.name}: {scenario.sabotage.says}")
    return PASSED


def _speaker(*, quiet: bool) -> Say:
    begun = time.monotonic()
    out = sys.stderr if quiet else sys.stdout

    def say(text: str) -> None:
        print(f"{time.monotonic() - begun:6.1f} s  {text}", file=out, flush=True)

    return say


@contextlib.contextmanager
def _folder(chosen: argparse.Namespace) -> Iterator[Path]:
    """The workdir: a temporary one is removed at the end, a chosen one stays."""
    if chosen.workdir is not None:
        chosen.workdir.mkdir(parents=True, exist_ok=True)
        yield chosen.workdir.resolve()
        return
    # Short: a Unix socket's path has 107 characters at most.
    with tempfile.TemporaryDirectory(prefix="spot-", ignore_cleanup_errors=True) as made:
        yield Path(made)


def _play(chosen: argparse.Namespace, folder: Path, say: Say) -> int:
    cdk_out = chosen.cdk_out.resolve() if chosen.cdk_out else _synthesize(folder, say)
    if chosen.scenario:
        return _scenarios(chosen, folder, cdk_out=cdk_out, say=say)
    if chosen.sabotage:
        return _sabotages(chosen, folder, cdk_out=cdk_out, say=say)
    plan = SHORT if chosen.short else FULL
    plan = plan if chosen.steps is None else dataclasses.replace(plan, steps=chosen.steps)
    judged = _perform(plan, folder / "region", cdk_out=cdk_out, chosen=chosen, say=say, spoiled=None)
    _tell(judged, chosen=chosen)
    return PASSED if all(verdict.passed for verdict in judged) else BROKEN


def _synthesize(folder: Path, say: Say) -> Path:
    say("synthesizing the stack")
    with Processes() as processes:
        return synth.synthesize(processes, folder)


def _perform(
    plan: Plan,
    workdir: Path,
    *,
    cdk_out: Path,
    chosen: argparse.Namespace,
    say: Say,
    spoiled: sabotage.Sabotage | None,
) -> tuple[Verdict, ...]:
    with Region(workdir, seed=chosen.seed) as region:
        spoil = None if spoiled is None else spoiled.spoil
        performance = play(region, plan, cdk_out=cdk_out, references=workdir.parent, say=say, spoil=spoil)
        judged = verdicts.judge(performance.evidence)
        proof = performance.evidence.permissions
        if chosen.grants and proof is not None:
            print("\n".join(ledger.lines(proof.ledger)))
        if spoiled is None:
            chosen.page.write_text(html.page(page.tell(performance, judged)))
            say(f"{page.duration(performance.stage, performance.seconds)}; the page is {chosen.page}")
        return judged


def _tell(judged: Sequence[Verdict], *, chosen: argparse.Namespace) -> None:
    if chosen.json:
        print(json.dumps([dataclasses.asdict(verdict) for verdict in judged], indent=2))
        return
    print("\n".join(page.lines(judged)))
    broken = [verdict.name for verdict in judged if not verdict.passed]
    print("all promises kept" if not broken else f"BROKEN: {', '.join(broken)}")


def _sabotages(chosen: argparse.Namespace, folder: Path, *, cdk_out: Path, say: Say) -> int:
    picked = sabotage.ALL if chosen.sabotage == "all" else (sabotage.find(chosen.sabotage),)
    missed = []
    for number, spoiled in enumerate(picked):
        begun = time.monotonic()
        say(f"sabotage {spoiled.name}: {spoiled.says}")
        judged = _perform(spoiled.plan, folder / f"r{number}", cdk_out=cdk_out, chosen=chosen, say=say, spoiled=spoiled)
        broken = [verdict for verdict in judged if not verdict.passed]
        noticed = [verdict for verdict in broken if verdict.name in spoiled.breaks]
        for verdict in broken:
            print(f"          broke  {verdict.name}: {verdict.says}")
        told = "noticed" if noticed else f"NOT NOTICED: {' or '.join(spoiled.breaks)} should have failed"
        print(f"{spoiled.name}: {told} ({time.monotonic() - begun:.0f} s)")
        if not noticed:
            missed.append(spoiled.name)
    print(f"{len(picked) - len(missed)} of {len(picked)} sabotages noticed")
    if chosen.sabotage != "all":
        # A sabotaged rehearsal fails, as a broken product would: the caller sees it in the exit status.
        return BROKEN if not missed else PASSED
    return BROKEN if missed else PASSED


def _scenarios(chosen: argparse.Namespace, folder: Path, *, cdk_out: Path, say: Say) -> int:
    """A scenario that is sabotaged fails, as a broken product would, unless all are played: then it must be noticed."""
    picked = catalogue.ALL if chosen.scenario == "all" else (catalogue.find(chosen.scenario),)
    theatre = Theatre(folder=folder, cdk_out=cdk_out, seed=chosen.seed, say=say)
    results = []
    for result in theatre.play(picked, sabotaged=chosen.sabotage is not None):
        results.append(result)
        if not chosen.json:
            print("\n".join([*([] if len(picked) > 1 else page.lines(result.verdicts)), line(result)]), flush=True)
    if chosen.json:
        print(
            json.dumps([dataclasses.asdict(result) | {"passed": result.as_it_should} for result in results], indent=2)
        )
    well = all(result.as_it_should for result in results)
    if chosen.sabotage is not None and chosen.scenario != "all":
        return BROKEN if well else PASSED
    return PASSED if well else BROKEN


if __name__ == "__main__":
    sys.exit(main())

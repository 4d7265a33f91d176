"""What the show commands share: run a command with its output in a file, judge a promise, print a line for each."""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import time
import xml.etree.ElementTree as ET
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rehearsal.processes import terminated_like_ctrl_c

ROOT = Path(__file__).resolve().parents[1]
LOGS = ROOT / ".cache" / "show"
MAKES_OWN = {"ARGS", "MAKEFLAGS", "MFLAGS", "MAKELEVEL", "MAKEOVERRIDES"}  # a second make would print where it is


class Failed(Exception):
    """The promise was checked and does not hold; the message says what was seen."""


class NotRun(Exception):
    """The promise could not be checked here; the message says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """One finished command."""

    status: int
    output: str
    seconds: float


def command(
    name: str, argv: Sequence[str], *, cwd: Path = ROOT, env: Mapping[str, str] | None = None, limit_s: float = 3600
) -> Done:
    """Run a command to its end, its output in .cache/show/NAME.log. It is killed, with its children, at the limit."""
    LOGS.mkdir(parents=True, exist_ok=True)
    log = LOGS / f"{name}.log"
    begun = time.monotonic()
    with log.open("wb") as sink:
        process = subprocess.Popen(
            argv,
            cwd=cwd,
            env=_own() if env is None else env,
            stdout=sink,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            status = process.wait(timeout=limit_s)
        except BaseException:
            os.killpg(process.pid, 15)  # its own handlers end what it started
            try:
                process.wait(timeout=30)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, 9)
            raise
    return Done(status=status, output=log.read_text(errors="replace"), seconds=time.monotonic() - begun)


def _own() -> dict[str, str]:
    """This environment without what make hands down: the arguments of the show are not those of its commands."""
    return {name: value for name, value in os.environ.items() if name not in MAKES_OWN}


def must_pass(
    name: str, argv: Sequence[str], *, cwd: Path = ROOT, env: Mapping[str, str] | None = None, limit_s: float = 3600
) -> Done:
    """`command`, or Failed with the last lines that it printed."""
    try:
        done = command(name, argv, cwd=cwd, env=env, limit_s=limit_s)
    except subprocess.TimeoutExpired as late:
        raise Failed(f"no end after {late.timeout:.0f} s, see .cache/show/{name}.log") from late
    if done.status:
        tail = " / ".join(done.output.strip().splitlines()[-2:])[-300:]
        raise Failed(f"status {done.status}, see .cache/show/{name}.log: {tail}")
    return done


def minutes(seconds: float) -> str:
    return f"{int(seconds // 60)} min {int(seconds % 60):02} s"


def passed_tests(name: str, words: str, *, where: Sequence[str] = ("tests",)) -> list[str]:
    """Names, in lower case, of the tests that `-k words` picks, that ran and that passed; Failed if one failed."""
    report = LOGS / f"{name}.xml"
    must_pass(name, [sys.executable, "-m", "pytest", "-q", f"--junitxml={report}", "-m", "", "-k", words, *where])
    return [
        case.attrib["name"].lower()
        for case in ET.parse(report).getroot().iter("testcase")
        if not [child for child in case if child.tag in ("failure", "error", "skipped")]
    ]


def case_tests(name: str, cases: Sequence[str], *, excused: Sequence[str] = ()) -> list[str]:
    """The passing tests that carry a case's id in their name; Failed where a case that is not excused has none."""
    spelled = [spelling for case in cases for spelling in (case.replace("-", "_"), case.replace("-", ""))]
    passed = passed_tests(name, " or ".join(spelled))
    absent = [case for case in cases if case not in excused and not any(_is_named(case, test) for test in passed)]
    if absent:
        raise Failed(f"no passing test is named for {', '.join(absent)}")
    return passed


def _is_named(case: str, test: str) -> bool:
    return bool(re.search(rf"(?:^|_|\[){case[:-3].lower()}[-_]?{case[-2:]}(?!\d)", test))


@dataclass(frozen=True, slots=True, kw_only=True)
class Promise:
    """One line of the list."""

    number: int
    says: str
    check: Callable[[], str]


def verdict(promise: Promise) -> tuple[str, str]:
    """Return (passed | failed | not run, what was measured or seen)."""
    try:
        return "passed", promise.check()
    except Failed as seen:
        return "failed", str(seen)
    except NotRun as why:
        return "not run", str(why)


def show(promises: Sequence[Promise], doc: str | None) -> int:
    """Run the promises that the command line asks for, a line each; 0 if every one of them passed."""
    numbers = [promise.number for promise in promises]
    parser = argparse.ArgumentParser(description=(doc or "").splitlines()[0])
    parser.add_argument("--only", type=int, nargs="+", choices=numbers, default=numbers, metavar="N")
    parser.add_argument("--json", type=Path, help="write the verdicts there too")
    asked = parser.parse_args()
    LOGS.mkdir(parents=True, exist_ok=True)
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # a shell's background job: what is shown must hear Ctrl-C
        signal.signal(signal.SIGINT, signal.default_int_handler)
    verdicts = {}
    with terminated_like_ctrl_c():  # so that the command that runs then ends too
        for promise in promises:
            if promise.number in asked.only:
                word, seen = verdict(promise)
                verdicts[promise.number] = {"promise": promise.says, "verdict": word, "seen": seen}
                print(f"{promise.number}  {word:8} {promise.says}: {seen}", flush=True)
    if asked.json:
        asked.json.write_text(json.dumps(verdicts, indent=2) + "\n")
    return int(any(one["verdict"] != "passed" for one in verdicts.values()))


def last_line(done: Done) -> str:
    return done.output.strip().splitlines()[-1]


def closing(done: Done) -> dict[str, Any]:
    """The JSON object in the last line that a check printed."""
    line = last_line(done)
    try:
        told: dict[str, Any] = json.loads(line)
    except ValueError as error:
        raise Failed(f"its last line is not JSON: {line[-200:]!r}") from error
    return told


def numbers_of(told: dict[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in told.items())

"""Show what the control plane promises: run each promise for real and print a line with what was measured.

    python -m tests.show_control            all of them, one after another (about fifty minutes on two cores)
    python -m tests.show_control --only 4 5 some of them

Exit status is 0 only when every line that was asked for says `passed`. The output of each command lies in .cache/show/.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence

from tests.showing import (
    LOGS,
    ROOT,
    Failed,
    Promise,
    case_tests,
    closing,
    minutes,
    must_pass,
    numbers_of,
    passed_tests,
    show,
)

HISTORIES = 20_000
SIMULATION_LIMIT_S = 15 * 60
MUTATIONS_AT_LEAST = 10
MUTANT_HISTORIES = 2_000
NEGATIVES_AT_LEAST = 14
SCENARIOS = (
    "burst",
    "fallback",
    "killed-lambda",
    "agent-alone",
    "rebalance-storm",
    "surplus",
    "adoption",
    "upgrade",
    "table-outage",
)
CASES = (
    *(f"EV-{number:02}" for number in range(1, 18)),
    *(f"CAP-{number:02}" for number in range(1, 13)),
    *(f"SSM-{number:02}" for number in range(1, 9)),
    *(f"ST-{number:02}" for number in range(1, 10)),
    *(f"IAM-{number:02}" for number in range(1, 8)),
    *("OBS-01", "OBS-05"),
)


def simulation() -> str:
    histories = must_pass("c1-simulate", ["make", "simulate", f"N={HISTORIES}"], limit_s=SIMULATION_LIMIT_S)
    said = histories.output.strip().splitlines()
    if not re.search(rf"\b{HISTORIES}\b.*\b0 violations", " ".join(said[-3:]).replace(",", "")):
        raise Failed(f"the last lines do not say {HISTORIES} histories and 0 violations: {' / '.join(said[-3:])}")
    mutants = must_pass("c1-mutations", [sys.executable, "-m", "tests.simulation", "--mutations"], limit_s=3600)
    caught = [int(n) for n in re.findall(r"caught (?:after|in|within) (\d+)", mutants.output)]
    if len(caught) < MUTATIONS_AT_LEAST or max(caught) > MUTANT_HISTORIES:
        raise Failed(f"{len(caught)} mutations caught, {MUTATIONS_AT_LEAST} within {MUTANT_HISTORIES} are promised")
    return (
        f"{said[-1]} ({minutes(histories.seconds)}, limit 15 min); {len(caught)} mutations caught, "
        f"the last after {max(caught)} histories ({minutes(mutants.seconds)})"
    )


def benchmark(name: str) -> str:
    done = must_pass(f"c-{name}", [sys.executable, f"benchmarks/{name}.py", "--check"], limit_s=1800)
    return f"{numbers_of(closing(done))} ({minutes(done.seconds)})"


def burst() -> str:
    return benchmark("burst")


def hot_path() -> str:
    return benchmark("hot_path")


def permissions() -> str:
    done = must_pass("c4-iam", ["make", "iam-proof"], limit_s=1200)
    found = re.search(r"(\d+) attacks? (?:were )?refused", done.output)
    if not found:
        raise Failed("it does not say how many attacks were refused, see .cache/show/c4-iam.log")
    if int(found[1]) < NEGATIVES_AT_LEAST:
        raise Failed(f"{found[1]} attacks refused, {NEGATIVES_AT_LEAST} are promised")
    said = next(line for line in done.output.splitlines() if found[0] in line)
    return f"{said.strip()} ({minutes(done.seconds)})"


def cases() -> str:
    pages = " ".join(page.read_text() for page in (ROOT / "docs" / "decisions").glob("*.md"))
    excused = [case for case in CASES if re.search(rf"\b{case}\b[^.\n]*cannot apply", pages)]
    passed = case_tests("c5-cases", CASES, excused=excused)
    return f"{len(CASES)} cases, {len(passed)} tests, cannot apply: {', '.join(excused) or 'none'}"


def rehearsed(listing: Sequence[str]) -> list[str]:
    """The names that the rehearsal lists."""
    listed = must_pass("c6-list", [sys.executable, "-m", "rehearsal", *listing]).output
    return [line.split()[0] for line in listed.splitlines() if line.strip()]


def scenarios() -> str:
    if absent := [name for name in SCENARIOS if name not in rehearsed(("--scenario", "list"))]:
        raise Failed(f"no scenario {', '.join(absent)}")
    played = must_pass("c6-scenarios", [sys.executable, "-m", "rehearsal", "--scenario", "all"], limit_s=3600)
    taken = {name: int(took) for name, took in re.findall(r"^(\S+): passed \((\d+) s\)", played.output, re.MULTILINE)}
    if missed := [name for name in SCENARIOS if name not in taken]:
        raise Failed(f"not passed: {', '.join(missed)}")
    argv = [sys.executable, "-m", "rehearsal", "--scenario", "all", "--sabotage", "all"]
    spoiled = must_pass("c6-sabotages", argv, limit_s=3600)
    noticed = re.findall(r"^(\S+): noticed \((\d+) s\)", spoiled.output, re.MULTILINE)
    if len(noticed) < len(SCENARIOS):
        raise Failed(f"{len(noticed)} sabotages noticed, one for each of {len(SCENARIOS)} scenarios is promised")
    return (
        f"{len(taken)} scenarios ({minutes(played.seconds)}, {max(taken.values())} s at most), "
        f"{len(noticed)} sabotages noticed ({minutes(spoiled.seconds)})"
    )


def life() -> str:
    priced = must_pass("c7-idle", ["make", "idle-cost"], limit_s=600)
    guarded = passed_tests("c7-destroy", "destroy", where=("tests/synth", "tests/rehearsal", "tests/unit"))
    if not guarded:
        raise Failed("no test destroys a stack with a live run")
    return f"{priced.output.strip().splitlines()[-1]}; {len(guarded)} tests of the destroy guard: {', '.join(guarded)}"


def clean() -> str:
    must_pass("c8-synth", ["make", "synth"], limit_s=600)
    text = (ROOT / "cdk_app" / "app.py").read_text() + (ROOT / "cdk_app" / "stack.py").read_text()
    if missing := [pack for pack in ("AwsSolutionsChecks", "ServerlessChecks") if pack not in text]:
        raise Failed(f"the app does not run {', '.join(missing)} of cdk-nag")
    widgets = passed_tests("c8-widgets", "widget")
    if not widgets:
        raise Failed("no test compares the widgets' metrics with those that are emitted")
    return f"cdk-nag (AwsSolutions, Serverless) and cfn-lint clean; {len(widgets)} tests of the widgets"


PROMISES = (
    Promise(number=1, says=f"{HISTORIES} histories of bad weather", check=simulation),
    Promise(number=2, says="10,000 notices in one burst", check=burst),
    Promise(number=3, says="the hot path beside a bare CreateFleet", check=hot_path),
    Promise(number=4, says="the permissions are proven", check=permissions),
    Promise(number=5, says="the case book's cases are tests", check=cases),
    Promise(number=6, says="the scenarios, each with its sabotage", check=scenarios),
    Promise(number=7, says="idle cost and destroy guard", check=life),
    Promise(number=8, says="checks of the template, widgets and metrics", check=clean),
)

if __name__ == "__main__":
    LOGS.mkdir(parents=True, exist_ok=True)
    sys.exit(show(PROMISES, __doc__))

"""Show what the checkpoint path promises: run each promise for real and print a line with what was measured.

    python -m tests.show_checkpoint            all of them, one after another (about two and a half hours on two cores)
    python -m tests.show_checkpoint --only 1 4 some of them

Exit status is 0 only when every line that was asked for says `passed`; a line about a GPU says `not run` where there is
none. The output of each command lies in .cache/show/.
"""

from __future__ import annotations

import re
import sys

from tests.showing import (
    LOGS,
    ROOT,
    Failed,
    NotRun,
    Promise,
    case_tests,
    closing,
    last_line,
    minutes,
    must_pass,
    numbers_of,
    passed_tests,
    show,
)

INTERRUPTIONS = 1000
KILLS = 2000
SOAK_S = 1800
BENCHMARKS = ("checkpoint_stall", "checkpoint_commit", "restore")
ELSEWHERE = {"CW-06", "CW-13"}  # they belong to many nodes
CASES = tuple(
    case
    for case in (*(f"CW-{number:02}" for number in range(1, 16)), *(f"CR-{number:02}" for number in range(1, 12)))
    if case not in ELSEWHERE
)
PAGE_SAYS = ("What is where", "A manifest is plain JSON", "How much memory", "How often to save", "By hand")
BY_HAND = ("the_page_recovers_a_checkpoint_with_the_aws_cli", "stock_dcp_loads_a_pulled_checkpoint_bit_by_bit")
NO_GPU = "there is no GPU here"


def benchmarks() -> str:
    seen, broken = [], []
    for name in BENCHMARKS:  # each is run, whatever the one before it found
        try:
            done = must_pass(f"k1-{name}", [sys.executable, f"benchmarks/{name}.py", "--check"], limit_s=3600)
            seen.append(f"{name}: {numbers_of(closing(done))} ({minutes(done.seconds)})")
        except Failed as failed:
            broken.append(f"{name}: {failed}")
    if broken:
        raise Failed(" | ".join([*broken, *seen]))
    return " | ".join(seen)


def interruptions() -> str:
    done = must_pass("k2-interruptions", ["make", "interruptions", f"N={INTERRUPTIONS}"], limit_s=7200)
    wanted = f"{INTERRUPTIONS} committed flushes, 0 steps lost"
    if wanted not in last_line(done):
        raise Failed(f"it does not say {wanted!r}: {last_line(done)[-200:]}")
    lost = passed_tests("k2-without-notice", "without_notice or without_a_notice", where=("tests",))
    return f"{last_line(done)}; {len(lost)} tests of a loss without notice: {', '.join(lost) or 'none'}"


def kills() -> str:
    done = must_pass("k3-kill", ["make", "kill", f"N={KILLS}"], limit_s=4 * 3600)
    said = done.output.strip().splitlines()
    trials = [line for line in said if re.search(r"\b\d+ kills: 0 with a wrong restore", line)]
    damages = [line for line in said if re.search(r"\bcorruptions of \d+ kinds: 0 with a wrong restore", line)]
    if not trials or not damages:
        raise Failed(f"not 0 wrong restores: {' / '.join(said[-2:])[-300:]}")
    return f"{trials[-1].strip()}; {damages[-1].strip()} ({minutes(done.seconds)})"


def deadlines() -> str:
    done = must_pass("k4-deadline", [sys.executable, "benchmarks/flush_deadline.py", "--check"], limit_s=3600)
    told = closing(done)
    shares, usable = told["complete_sets"], told["usable"]
    return (
        f"usable at SIGKILL {usable['ours']:.3f} (naive multipart {usable['multipart']:.3f}), complete sets "
        f"{shares['staggered']:.0%} staggered, {shares['all_at_once']:.0%} all at once; "
        f"{len(told['deadline'])} wires within bytes/b x 1.2 + 2 s or as promised ({minutes(done.seconds)})"
    )


def soak() -> str:
    done = must_pass("k5-soak", ["make", "soak"], limit_s=SOAK_S + 900)
    if not re.search(rf"\b{SOAK_S} s\b.*nothing grew, nothing was left", last_line(done)):
        raise Failed(f"it does not say that nothing grew in {SOAK_S} s: {last_line(done)[-200:]}")
    return last_line(done)


def stock() -> str:
    passed = passed_tests("k6-stock", " or ".join(BY_HAND), where=("tests/unit/checkpoint",))
    if missing := [name for name in BY_HAND if not any(name in test for test in passed)]:
        raise Failed(f"no passing test {', '.join(missing)}")
    return f"{len(passed)} tests: {', '.join(passed)}"


def gpu() -> str:
    done = must_pass("k7-gpu", ["make", "gpu-check"], limit_s=1800)
    if NO_GPU in done.output:
        raise NotRun(next(line.strip() for line in done.output.splitlines() if NO_GPU in line))
    measured = [line.strip() for line in done.output.splitlines() if line.startswith("gpu:")]
    return "; ".join([*measured, last_line(done)])


def cases_and_page() -> str:
    page = (ROOT / "docs" / "checkpoints.md").read_text()
    if missing := [words for words in PAGE_SAYS if words not in page]:
        raise Failed(f"docs/checkpoints.md says nothing of: {', '.join(missing)}")
    decisions = " ".join(path.read_text() for path in (ROOT / "docs" / "decisions").glob("*.md"))
    excused = [case for case in CASES if re.search(rf"\b{case}\b[^.\n]*cannot apply", decisions)]
    passed = case_tests("k8-cases", CASES, excused=excused)
    return f"{len(CASES)} cases, {len(passed)} tests, cannot apply: {', '.join(excused) or 'none'}; the page is whole"


PROMISES = (
    Promise(number=1, says="what a save and a restore cost, rivals and limits beside them", check=benchmarks),
    Promise(number=2, says=f"{INTERRUPTIONS} interruptions with notice, no step lost", check=interruptions),
    Promise(number=3, says=f"{KILLS} kills and damages, no wrong restore", check=kills),
    Promise(number=4, says="the seconds before a deadline", check=deadlines),
    Promise(number=5, says="half an hour in which nothing grows", check=soak),
    Promise(number=6, says="stock DCP, and by hand from the page", check=stock),
    Promise(number=7, says="the copy from a GPU", check=gpu),
    Promise(number=8, says="the case book's cases are tests, and the page", check=cases_and_page),
)

if __name__ == "__main__":
    LOGS.mkdir(parents=True, exist_ok=True)
    sys.exit(show(PROMISES, __doc__))

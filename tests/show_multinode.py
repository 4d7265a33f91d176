"""Show what many nodes promise: run each promise for real and print a line with what was measured.

    python -m tests.show_multinode            all of them, one after another (about 20 minutes on two cores)
    python -m tests.show_multinode --only 2 4 some of them

Exit status is 0 only when every line that was asked for says `passed`. The output of each command lies in .cache/show/.
"""

from __future__ import annotations

import json
import re
import statistics
import subprocess
import sys
import xml.etree.ElementTree as ET
from collections.abc import Sequence

from tests.showing import LOGS, ROOT, Failed, NotRun, Promise, case_tests, command, must_pass, passed_tests, show

PITFALLS = range(1, 13)
CASES = ("MN-01", "MN-02", "MN-03", "MN-04", "MN-05", "MN-06", "CW-06", "CW-13")
LOSSES = ("hard_kill", "graceful_leave", "kill_during_recovery")
MODELS = ("ddp", "fsdp2")
SUBMITTED = tuple(f"tests/lab/test_submitted{part}.py" for part in ("", "_elastic", "_standby"))
IN_PROCESS_LIMIT_S = 1.5


def recovery_table() -> str:
    report = LOGS / "m1-table.json"
    done = command("m1-table", [sys.executable, "benchmarks/multinode.py", "--json", str(report)], limit_s=1800)
    if done.output.startswith("not run"):
        raise NotRun(done.output.strip())
    if not report.exists():
        raise Failed(f"no table: {done.output.strip().splitlines()[-1][-200:]}")
    found = json.loads(report.read_text())
    text = "; ".join(f"{cell['who']}: {cell['case']} {seconds(cell['seconds'])}" for cell in found["cells"])
    if found["broken"]:
        raise Failed(f"{'; '.join(found['broken'])} | {text}")
    return text


def seconds(times: Sequence[float | None]) -> str:
    known = [one for one in times if one is not None]
    return f"{statistics.median(known):.1f} s" if known else "never"


def pitfalls() -> str:
    passed = passed_tests("m2-pitfalls", " or ".join(f"pitfall_{number}_" for number in PITFALLS))
    absent = [n for n in PITFALLS if not any(re.search(rf"pitfall_{n}_", name) for name in passed)]
    if absent:
        raise Failed(f"no passing test for pitfall {', '.join(map(str, absent))}")
    told = [one.attrib for one in ET.parse(LOGS / "m2-pitfalls.xml").getroot().iter("property")]
    slow = [one for one in told if one["name"].endswith("median_s") and float(one["value"]) > IN_PROCESS_LIMIT_S]
    if slow:
        raise Failed(f"in-process recovery took {slow[0]['value']} s in the median, {IN_PROCESS_LIMIT_S} are promised")
    numbers = ", ".join(f"{one['name']} {one['value']}" for one in told)
    return f"{len(PITFALLS)} pitfalls, {len(passed)} tests; five kills in a row, 30 recoveries: {numbers}"


def bit_equality() -> str:
    passed = passed_tests("m3-bits", "bit_equal or samples_are_the_same", where=("tests/lab",))
    wanted = [(loss, f"[{model}") for loss in LOSSES for model in MODELS] + [
        ("samples_are_the_same", "three_two_and_four")
    ]
    absent = [" ".join(words) for words in wanted if not any(all(word in name for word in words) for name in passed)]
    if absent:
        raise Failed(f"no passing test for {', '.join(absent)}; passed: {', '.join(passed)}")
    return f"{len(passed)} comparisons: {', '.join(passed)}"


def budget() -> str:
    done = command("m4-budget", [sys.executable, "benchmarks/rendezvous_budget.py"], limit_s=900)
    lines = [line for line in done.output.splitlines() if line.startswith(("spotproof", "torch"))]
    if done.status:
        raise Failed(done.output.strip().splitlines()[-1])
    return " | ".join(re.sub(r" +", " ", line) for line in lines)


def simulation() -> str:
    argv = [sys.executable, "-m", "tests.simulation.generations", "--n", "100"]
    try:
        done = must_pass("m5-simulation", argv, limit_s=1200)
    except subprocess.TimeoutExpired as late:
        raise Failed("the simulation did not end") from late
    return done.output.strip().splitlines()[-1]


def cases() -> str:
    return f"{len(CASES)} cases, {len(case_tests('m6-cases', CASES))} tests"


def pages() -> str:
    text = (ROOT / "docs" / "multi-node.md").read_text()
    wanted = ["--rdzv-backend spotproof", "standby", "elastic", "NCCL", "not measured here", "costs"]
    if missing := [word for word in wanted if word not in text]:
        raise Failed(f"docs/multi-node.md does not speak of {', '.join(missing)}")
    gone = [path for path in re.findall(r"\]\(([^)#:]+)\)", text) if not (ROOT / "docs" / path).exists()]
    if gone:
        raise Failed(f"docs/multi-node.md links to {', '.join(gone)}")
    return f"docs/multi-node.md, {len(text.split())} words"


def submitted() -> str:
    passed = passed_tests("m8-submitted", "test_", where=SUBMITTED)
    if absent := [model for model in MODELS if not any(f"uninterrupted_one[{model}" in name for name in passed)]:
        raise Failed(f"no passing test of a submitted run under {', '.join(absent)}")
    argv = [sys.executable, "-m", "rehearsal", "--scenario", "many-nodes"]
    played = must_pass("m8-rehearsal", argv, limit_s=900).output.strip().splitlines()[-1]
    return f"{len(passed)} runs of agents and torchrun by hand; rehearsal: {played}"


PROMISES = (
    Promise(number=1, says="recovery table beside torch's own rendezvous", check=recovery_table),
    Promise(number=2, says="the twelve pitfalls", check=pitfalls),
    Promise(number=3, says="bit-equal over losses", check=bit_equality),
    Promise(number=4, says="requests of the table at 4, 64, 512, 1,000 nodes", check=budget),
    Promise(number=5, says="generations in seeded weather", check=simulation),
    Promise(number=6, says="cases MN-*, CW-06, CW-13", check=cases),
    Promise(number=7, says="the page", check=pages),
    Promise(number=8, says="submitted runs of many nodes", check=submitted),
)


if __name__ == "__main__":
    sys.exit(show(PROMISES, __doc__))

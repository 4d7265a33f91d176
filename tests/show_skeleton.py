"""Show what the skeleton promises: run each promise for real and print a line with what was measured.

    python -m tests.show_skeleton            all of them, one after another (about half an hour on two cores)
    python -m tests.show_skeleton --only 4 5 some of them

Exit status is 0 only when every line that was asked for says `passed`. `not run` is what it says: a promise whose check
cannot run on this machine is not a promise kept. The output of each command lies in .cache/show/.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.showing import LOGS, ROOT, Failed, NotRun, Promise, case_tests, minutes, must_pass, show

REHEARSAL_LIMIT_S = 600
REHEARSAL_LIMIT_MIB = 4_000_000_000 // 2**20
VERDICTS = (
    "steps lost with notice",
    "steps lost in the silent death",
    "loss curve",
    "replacements",
    "left running",
    "template",
    "exercised",
)
SUITE_LIMIT_S = 25 * 60
SABOTAGE_LIMIT_S = 90
SABOTAGES_AT_LEAST = 8
KILLS = 300
CASES = (
    *(f"EV-{number:02}" for number in (*range(1, 13), 15, 16, 17)),
    *("CAP-01", "CAP-02", "CAP-07", "ST-04", "CW-02", "CW-03"),
    *("CR-01", "CR-02", "CR-09", "CR-10", "DP-01", "DP-03", "DP-06"),
)


@dataclass(slots=True)
class Peak:
    """The most memory that this process and everything below it held at once, shared pages counted once."""

    mib: int = 0


def memory_below(pid: int) -> int:
    """MiB of proportional memory of a process and its descendants, as far as they still are there."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError, ValueError):
            parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            children.setdefault(parent, []).append(int(entry.name))
    family, kib = [pid], 0
    for member in family:  # grows while it is walked
        family += children.get(member, [])
        with contextlib.suppress(OSError):
            pss = re.search(r"^Pss:\s+(\d+)", Path(f"/proc/{member}/smaps_rollup").read_text(), re.MULTILINE)
            kib += int(pss.group(1)) if pss else 0
    return kib // 1024


@contextlib.contextmanager
def peak_memory() -> Iterator[Peak]:
    """Sample once a second, in a thread that ends with the block."""
    peak, over = Peak(), threading.Event()

    def sample() -> None:
        while not over.wait(1.0):
            peak.mib = max(peak.mib, memory_below(os.getpid()))

    thread = threading.Thread(target=sample, daemon=True)
    thread.start()
    try:
        yield peak
    finally:
        over.set()
        thread.join()


def rehearsal() -> str:
    with peak_memory() as peak:
        done = must_pass("1-rehearse", ["make", "rehearse"], limit_s=REHEARSAL_LIMIT_S)
    if missing := [name for name in VERDICTS if not re.search(rf"^\s*passed\s+{name}", done.output, re.MULTILINE)]:
        raise Failed(f"the summary does not say that these passed: {', '.join(missing)}")
    if peak.mib > REHEARSAL_LIMIT_MIB:
        raise Failed(f"{peak.mib} MiB of memory, the limit is {REHEARSAL_LIMIT_MIB}")
    took = f"{minutes(done.seconds)} (limit 10 min), {peak.mib} MiB at most (limit 4 GB)"
    return f"{took}; its {len(VERDICTS)} promises passed"


def sabotages() -> str:
    listed = must_pass("2-list", [sys.executable, "-m", "rehearsal", "--sabotage", "list"]).output
    names = [line.split()[0] for line in listed.splitlines() if line.strip()]
    if len(names) < SABOTAGES_AT_LEAST:
        raise Failed(f"only {len(names)} sabotages, {SABOTAGES_AT_LEAST} are promised")
    limit_s = 120 + SABOTAGE_LIMIT_S * len(names)
    done = must_pass("2-sabotage", [sys.executable, "-m", "rehearsal", "--sabotage", "all"], limit_s=limit_s)
    taken = {name: int(took) for name, took in re.findall(r"^(\S+): noticed \((\d+) s\)", done.output, re.MULTILINE)}
    if missed := [name for name in names if name not in taken]:
        raise Failed(f"not noticed: {', '.join(missed)}")
    if slow := [f"{name} {took} s" for name, took in taken.items() if took > SABOTAGE_LIMIT_S]:
        raise Failed(f"longer than {SABOTAGE_LIMIT_S} s: {', '.join(slow)}")
    return (
        f"{len(taken)} of {len(names)} noticed, each for its own reason, {max(taken.values())} s at most (limit 90 s)"
    )


def fresh_clone() -> str:
    with tempfile.TemporaryDirectory(prefix="spotproof-show-") as folder:
        clone = Path(folder) / "clone"
        must_pass("3-clone", ["git", "clone", "-q", str(ROOT), str(clone)])
        setup = must_pass("3-setup", ["make", "setup"], cwd=clone)
        done = must_pass("3-test", [".ci/run"], cwd=clone, limit_s=SUITE_LIMIT_S)
    closing = done.output.strip().splitlines()[-1].strip("= ")
    if not re.search(r"\d+ passed", closing):
        raise Failed(f"the last line is not pytest's closing line: {closing!r}")
    return f"{closing}; {minutes(done.seconds)} (limit 25 min) after a set-up of {minutes(setup.seconds)}"


def without_network() -> list[str]:
    """A command prefix that takes the network away, or nothing where the kernel does not allow it."""
    prefix = ["unshare", "--user", "--map-root-user", "--net"]
    allowed = (
        shutil.which("unshare") and not subprocess.run([*prefix, "true"], capture_output=True, check=False).returncode
    )
    return prefix if allowed else []


def synthesis() -> str:
    offline = without_network()
    shutil.rmtree(ROOT / "cdk.out", ignore_errors=True)
    empty = {"PATH": "/usr/local/bin:/usr/bin:/bin"}
    done = must_pass("4-synth", [*offline, "make", "synth"], env=empty)
    must_pass("4-template", [sys.executable, "-m", "pytest", "-q", "tests/synth"])
    network = "no network" if offline else "network NOT taken away (namespaces are not allowed here)"
    return f"empty environment, {network}, {done.seconds:.0f} s; cdk-nag and cfn-lint clean; contract rows walked"


def cases() -> str:
    return f"{len(CASES)} cases, {len(case_tests('5-cases', CASES))} tests"


def kills() -> str:
    done = must_pass("6-kill", ["make", "kill", f"N={KILLS}"])
    return f"{done.output.strip().splitlines()[-1]} ({minutes(done.seconds)})"


def bit_equality() -> str:
    report = LOGS / "7-bit-equal.xml"
    argv = [sys.executable, "-m", "pytest", "-q", f"--junitxml={report}", "-k", "untracked", "tests"]
    done = must_pass("7-bit-equal", argv)
    suite = next(iter(ET.parse(report).getroot().iter("testsuite")))
    ran = int(suite.attrib["tests"]) - int(suite.attrib["skipped"])
    if not ran:
        raise NotRun("no test compares a tracked training with an untracked one")
    return f"{ran} comparisons, {done.seconds:.0f} s"


def readme() -> str:
    text = (ROOT / "README.md").read_text()
    wanted = ["make rehearse", "make test", "cdk deploy", "spotproof submit", "spotproof:run", "dashboard", "settings"]
    if missing := [word for word in wanted if word not in text]:
        raise Failed(f"README.md does not speak of {', '.join(missing)}")
    targets = sorted(set(re.findall(r"^(?:\$ )?make ([a-z-]+)", text, re.MULTILINE)))
    for target in targets:
        must_pass("8-targets", ["make", "-n", target])
    commands = sorted(set(re.findall(r"^(?:\$ )?(?:\.venv/bin/)?spotproof ([a-z]+)", text, re.MULTILINE)))
    for name in commands:
        must_pass("8-commands", [str(ROOT / ".venv" / "bin" / "spotproof"), name, "--help"])
    paths = sorted(set(re.findall(r"\]\(([^)#:]+)\)", text)))
    if gone := [path for path in paths if not (ROOT / path).exists()]:
        raise Failed(f"README.md links to {', '.join(gone)}")
    return f"{len(targets)} make targets, {len(commands)} commands and {len(paths)} links of it exist"


PROMISES = (
    Promise(number=1, says="make rehearse: a whole recovery on one machine", check=rehearsal),
    Promise(number=2, says="every sabotage makes the rehearsal fail", check=sabotages),
    Promise(number=3, says="make test from a fresh clone", check=fresh_clone),
    Promise(number=4, says="make synth with nothing but the checkout", check=synthesis),
    Promise(number=5, says="the case book's cases are tests", check=cases),
    Promise(number=6, says=f"kill -9 at {KILLS} write boundaries", check=kills),
    Promise(number=7, says="tracked and untracked training are bit-equal", check=bit_equality),
    Promise(number=8, says="README is true", check=readme),
)


if __name__ == "__main__":
    sys.exit(show(PROMISES, __doc__))

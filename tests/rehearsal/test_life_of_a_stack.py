"""The life of a stack, in a process of its own: the emulated account is one for each process, and another one lives
in this process as long as the session."""

from __future__ import annotations

import re
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.emulator

TESTS = Path(__file__).with_name("life_of_a_stack.py")
NAMES = (
    "test_destroy_with_a_live_run_fails_names_it_and_leaves_everything",
    "test_IAM_06_destroy_and_deploy_again_with_new_state_and_then_over_the_old",
    "test_IAM_06_a_first_deploy_that_fails_half_way_does_not_block_the_second",
)


FULL = NAMES[1:]  # the rest of its life; `make show-control` runs them


@pytest.fixture(scope="module")
def outcomes(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What became of each test that is asked for: empty if it passed."""
    asked = [name for name in NAMES if any(named(name) in item.name for item in request.session.items)]
    report = tmp_path_factory.mktemp("life") / "report.xml"
    argv = [sys.executable, "-m", "pytest", "-q", "-p", "no:randomly", f"--junitxml={report}"]
    argv += [f"{TESTS}::{name}" for name in asked]
    done = subprocess.run(argv, cwd=TESTS.parents[2], capture_output=True, text=True, check=False)
    if not report.exists():
        return dict.fromkeys(asked, done.stdout + done.stderr)
    cases = ET.parse(report).getroot().iter("testcase")
    return {case.attrib["name"]: "\n".join(child.text or child.tag for child in case) for case in cases}


def named(test: str) -> str:
    return test.removeprefix("test_")


def marked(test: str) -> Any:
    return pytest.param(test, id=named(test), marks=[pytest.mark.full] if test in FULL else [])


def test_every_test_of_that_file_is_named_here() -> None:
    assert sorted(re.findall(r"^def (test_\w+)", TESTS.read_text(), re.MULTILINE)) == sorted(NAMES)


@pytest.mark.parametrize("name", [marked(name) for name in NAMES])
def test_in_a_process_of_its_own(name: str, outcomes: dict[str, str]) -> None:
    assert not outcomes[name], outcomes[name]

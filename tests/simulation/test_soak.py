"""A short helping of `make soak`, and that it can fail."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def soaked(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tests.simulation.soak", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=300)


@pytest.mark.torch
@pytest.mark.slow
def test_nothing_grows_and_nothing_is_left_while_things_go_wrong() -> None:
    played = soaked("--seconds", "10")
    assert played.returncode == 0, played.stdout + played.stderr
    assert "nothing grew, nothing was left" in played.stdout
    assert "killed: agent 2, uploader 8" in played.stdout


@pytest.mark.torch
@pytest.mark.slow
def test_memory_that_is_forgotten_is_noticed() -> None:
    played = soaked("--seconds", "6", "--leak", "trainer")
    assert played.returncode == 1, played.stdout + played.stderr
    assert "trainer: memfds grew" in played.stdout

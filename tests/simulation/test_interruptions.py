"""A small helping of `make interruptions` and of deaths without a notice, with a fresh seed that a failure tells."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
COUNT = 15


@pytest.mark.torch
@pytest.mark.slow
def test_interruptions_with_notice_lose_no_step() -> None:
    seed = str(random.SystemRandom().randrange(2**32))
    command = [sys.executable, "-m", "tests.simulation.interruptions", "--count", str(COUNT), "--seed", seed]
    command += ["--deaths", "6"]
    played = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=600)
    assert played.returncode == 0, f"seed {seed}: {played.stdout}{played.stderr}"
    assert f"{COUNT} committed flushes, 0 steps lost" in played.stdout
    assert "6 deaths without a notice: process death 3x" in played.stdout

"""A small helping of `make kill`; each trial is told apart by its role and boundary, see tests/simulation/kill.py."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TRIALS = 12


@pytest.mark.torch
@pytest.mark.slow
def test_kills_at_write_boundaries_lose_no_commit_and_restore_nothing_wrong() -> None:
    command = [sys.executable, "-m", "tests.simulation.kill", "--count", str(TRIALS), "--seed", "11"]
    played = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=600)
    assert played.returncode == 0, played.stdout + played.stderr
    assert f"{TRIALS} trials" in played.stdout
    assert "0 with a wrong restore or a lost commit" in played.stdout
    assert f"{TRIALS // 4} corruptions" in played.stdout
    kills = int(played.stdout.split(" trials, ")[1].split(" kills")[0])
    assert kills >= TRIALS // 2, f"the boundaries were hardly ever reached: {played.stdout}"


@pytest.mark.torch
@pytest.mark.slow
@pytest.mark.parametrize(("sabotage", "told"), [("generators", "WRONG"), ("chunks", "none can be loaded")])
def test_a_product_that_is_broken_on_purpose_is_found_out(sabotage: str, told: str) -> None:
    command = [sys.executable, "-m", "tests.simulation.kill", "--sabotage", sabotage, "--only", "trainer:0"]
    played = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=600)
    assert played.returncode == 1, played.stdout + played.stderr
    assert told in played.stdout


def corrupted(*arguments: str, count: int = 44) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tests.simulation.kill", "--count", "0", "--corruptions", str(count), *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=600)


@pytest.mark.torch
@pytest.mark.slow
def test_no_damage_is_restored_and_each_is_named() -> None:
    seed = str(random.SystemRandom().randrange(2**32))
    played = corrupted("--seed", seed)
    assert played.returncode == 0, f"seed {seed}: {played.stdout}{played.stderr}"
    assert "44 corruptions of 11 kinds: 0 with a wrong restore or a damage not named" in played.stdout


@pytest.mark.torch
@pytest.mark.slow
def test_digests_that_nobody_looks_at_are_found_out() -> None:
    played = corrupted("--sabotage", "digests", "--seed", "2", count=88)  # the frames and the part find most of it
    assert played.returncode == 1, played.stdout + played.stderr
    assert "WRONG restore" in played.stdout

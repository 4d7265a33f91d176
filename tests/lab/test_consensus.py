"""MN-04: a notice on one node, and all ranks save the same step and leave together."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.torch]
ROOT = Path(__file__).resolve().parents[2]
WORLD, TRIALS = 4, 8


@pytest.mark.parametrize("every", [1, 5])
def test_MN_04_whoever_hears_of_it_all_ranks_stop_at_one_step(every: int) -> None:
    argv = [sys.executable, "-m", "tests.lab.ranks", str(WORLD), str(TRIALS), str(every)]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, timeout=120, check=True)
    trials: dict[int, list[dict[str, Any]]] = defaultdict(list)
    for line in done.stdout.splitlines():
        one = json.loads(line)
        trials[one["trial"]].append(one)
    assert sorted(trials) == list(range(TRIALS))
    for ranks in trials.values():
        assert len(ranks) == WORLD
        assert len({one["step"] for one in ranks}) == 1, ranks
        late = ranks[0]["step"] - ranks[0]["notice_at"]
        assert 1 <= late <= 2 * every - (every > 1), ranks


def test_a_large_world_agrees_about_once_a_second() -> None:
    from spotproof.rendezvous.consensus import every_steps

    assert every_steps(64, 0.01) == 1
    assert every_steps(65, 0.1) == 10
    assert every_steps(1000, 30.0) == 1
    assert every_steps(1000, 0.0) == 1

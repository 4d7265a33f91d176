"""The reference trainer with several ranks: one node, two ranks, ended and gone on with, is the uninterrupted one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
pytestmark = [pytest.mark.torch, pytest.mark.slow]
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
TRAINER = ["-m", "trainer_image.train_ddp"]
SPOTPROOF = [sys.executable, "-m", "spotproof.cli.main", "run"]


def run(command: list[str]) -> None:
    environ = {**os.environ, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr[-3000:]


def curve(log: Path, rank: int) -> list[tuple[int, str, list[int]]]:
    lines = [json.loads(line) for line in log.with_name(f"{log.name}.{rank}").read_text().splitlines()]
    return [(line["step"], line["loss"], line["samples"]) for line in lines]


def test_two_ranks_go_on_where_they_ended_bit_by_bit(tmp_path: Path) -> None:
    whole, pieces, local = tmp_path / "whole", tmp_path / "pieces", str(tmp_path / "local")
    run([*TORCHRUN, *TRAINER, "--untracked", "--steps", "6", "--loss-log", str(whole)])
    for steps in ("3", "6"):
        run([*SPOTPROOF, "--local", local, "--", *TORCHRUN, *TRAINER, "--steps", steps, "--loss-log", str(pieces)])
    for rank in range(2):
        assert curve(pieces, rank) == curve(whole, rank)
        assert len(curve(whole, rank)) == 6
    assert curve(whole, 0) != curve(whole, 1)

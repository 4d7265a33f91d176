"""The trainer with and without spotproof: the same losses to the last bit, also when it is killed and started again."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from spotproof.report.losses import Comparison, by_process, compare, read_log
from spotproof.report.model import Point, Segment

ROOT = Path(__file__).parents[3]
STEPS = 12
pytestmark = [pytest.mark.torch, pytest.mark.slow]

# The trainer as it is, on a text of three batches: twelve steps are four epochs.
TRAIN = """
import sys
from contextlib import nullcontext
from pathlib import Path
import torch
from trainer_image import train
folder, name, steps = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
train.CORPUS = folder / "corpus.txt"
train.BATCH = 4
torch.set_num_threads(1)
torch.use_deterministic_algorithms(True)
if name == "untracked":
    opened = nullcontext(train.Untracked())
else:
    from spotproof import Run
    opened = Run.from_env()
train.train(opened, steps=steps, seed=1, loss_log=folder / f"{name}.jsonl")
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("trained")
    text = (ROOT / "trainer_image" / "corpus.txt").read_bytes()
    (made / "corpus.txt").write_bytes(text[: 12 * 128 + 1])
    return made


@pytest.fixture(scope="module")
def reference(folder: Path) -> tuple[Point, ...]:
    assert start(folder, "untracked").wait(120) == 0
    return points(folder, "untracked")


def start(folder: Path, name: str) -> subprocess.Popen[bytes]:
    environ = {
        **os.environ,
        "SPOTPROOF_LOCAL_DIR": str(folder / name),
        "SPOTPROOF_CHECKPOINT_EVERY_STEPS": "2",
        "PYTHONPATH": str(ROOT),
    }
    with (folder / f"{name}.log").open("ab") as output:
        command = [sys.executable, "-c", TRAIN, str(folder), name, str(STEPS)]
        return subprocess.Popen(command, cwd=folder, env=environ, stdout=output, stderr=output)


def points(folder: Path, name: str) -> tuple[Point, ...]:
    log = folder / f"{name}.jsonl"
    return read_log(log.read_text().splitlines(keepends=True)) if log.exists() else ()


def compared(folder: Path, name: str, reference: tuple[Point, ...]) -> Comparison:
    pieces = by_process(points(folder, name))
    return compare([Segment(slot=0, incarnation=n, points=piece) for n, piece in enumerate(pieces, 1)], reference)


def finished(process: subprocess.Popen[bytes], folder: Path, name: str) -> None:
    code = process.wait(120)
    assert code == 0, (folder / f"{name}.log").read_text()[-3000:]


def killed_after(process: subprocess.Popen[bytes], folder: Path, name: str, *, step: int) -> None:
    """SIGKILL as soon as the log holds `step`."""
    until = time.monotonic() + 120
    while not any(point.step >= step for point in points(folder, name)):
        assert process.poll() is None, (folder / f"{name}.log").read_text()[-3000:]
        assert time.monotonic() < until
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait(30)


def test_the_reference_is_whole(reference: tuple[Point, ...]) -> None:
    assert [point.step for point in reference] == list(range(1, STEPS + 1))
    assert len({point.samples for point in reference}) == STEPS, "each epoch has an order of its own"


def test_a_tracked_training_is_equal_to_an_untracked_one(folder: Path, reference: tuple[Point, ...]) -> None:
    finished(start(folder, "tracked"), folder, "tracked")
    found = compared(folder, "tracked", reference)
    assert (found.compared, found.is_equal) == (STEPS, True), found


def test_a_training_that_was_killed_twice_is_equal_to_it_too(folder: Path, reference: tuple[Point, ...]) -> None:
    # Steps 5 and 9 lie inside the second and the third epoch.
    for step in (5, 9):
        killed_after(start(folder, "killed"), folder, "killed", step=step)
    finished(start(folder, "killed"), folder, "killed")
    pieces = by_process(points(folder, "killed"))
    begins = [piece[0].step for piece in pieces]
    found = compared(folder, "killed", reference)
    assert found.is_equal, (found, begins)
    assert len(pieces) == 3
    assert begins[0] == 1
    assert begins[1] > 1, "the second start went on; else this proves nothing"
    assert begins[2] > begins[1]

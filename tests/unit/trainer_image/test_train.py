"""The reference trainer by itself: repeatable to the last bit, over more than one epoch, and learning."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from trainer_image import train

ROOT = Path(__file__).parents[3]
pytestmark = pytest.mark.torch

# spotproof cannot be imported in this child: an untracked training must not need it.
WITHOUT_SPOTPROOF = """
import runpy, sys
sys.argv[0] = "trainer_image/train.py"
sys.modules["spotproof"] = None
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def trained(folder: Path, name: str, *, steps: int, seed: int = 1) -> list[dict[str, object]]:
    log = folder / f"{name}.jsonl"
    command = ["--untracked", "--steps", str(steps), "--seed", str(seed), "--loss-log", str(log)]
    subprocess.run([sys.executable, "-c", WITHOUT_SPOTPROOF, *command], cwd=ROOT, check=True, capture_output=True)
    return [json.loads(line) for line in log.read_text().splitlines()]


def test_two_untracked_trainings_are_equal_to_the_last_bit(tmp_path: Path) -> None:
    first = trained(tmp_path, "first", steps=4)
    second = trained(tmp_path, "second", steps=4)
    other = trained(tmp_path, "other", steps=4, seed=2)
    seen = [[(line["step"], line["loss"], line["samples"]) for line in lines] for lines in (first, second, other)]
    assert [step for step, _, _ in seen[0]] == [1, 2, 3, 4]
    assert seen[0] == seen[1]
    assert seen[0] != seen[2], "the seed decides: else the comparison above proves nothing"


def test_the_default_length_is_more_than_one_epoch_and_each_has_its_own_order() -> None:
    torch.manual_seed(0)
    per_epoch = len(train.windows()) // train.BATCH
    assert 300 > 2 * per_epoch > 0
    loader = DataLoader(TensorDataset(torch.arange(10)), batch_size=2, shuffle=True)
    taken = torch.cat([batch for (batch,) in train.Untracked().batches(loader, epochs=None, steps=10)]).tolist()
    assert sorted(taken[:10]) == sorted(taken[10:]) == [*range(10)]
    assert taken[:10] != taken[10:]


def test_a_window_is_followed_by_its_own_next_characters() -> None:
    _, text, following = train.windows()[3]
    assert text[1:].equal(following[:-1])
    assert bytes(following.tolist()) == train.CORPUS.read_bytes()[3 * 128 + 1 : 4 * 128 + 1]


@pytest.mark.parametrize(
    ("step", "share"),
    [(0, 1 / 20), (9, 0.5), (19, 1.0), (20, 1.0), (160, 0.55), (300, 0.1), (400, 0.1)],
)
def test_the_rate_warms_up_and_then_falls_to_a_tenth(step: int, share: float) -> None:
    assert math.isclose(train.share_of_peak(step, 300), share, rel_tol=1e-9)


def test_a_training_shorter_than_the_warm_up_has_a_rate() -> None:
    assert all(0 < train.share_of_peak(step, 5) <= 1 for step in range(30))


def test_the_model_is_small_enough_for_a_laptop_and_has_dropout() -> None:
    model = train.Transformer()
    assert 500_000 < sum(parameter.numel() for parameter in model.parameters()) < 1_000_000
    assert [module.p for module in model.modules() if isinstance(module, torch.nn.Dropout)]

"""FSDP2 state goes on in a world of another size: whole tensors are put together and cut anew, bit by bit."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from spotproof.checkpoint.sharded import joined
from spotproof.errors import MismatchedState

pytestmark = pytest.mark.torch

ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.slow
def test_state_of_three_ranks_is_the_same_on_two_and_on_four(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.fakes.other_worlds", "3", "2", "4", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=240)
    assert done.returncode == 0, done.stderr[-4000:]
    saved, two, four = (json.loads((tmp_path / f"{world}.json").read_text()) for world in (3, 2, 4))
    assert len(saved) > 20
    assert two == saved
    assert four == saved


def test_parts_are_put_together_along_their_dimension() -> None:
    whole = torch.arange(12).reshape(4, 3)
    assert torch.equal(joined([whole[:2], whole[2:], whole[:0]], "w", ("S(0)",), (4, 3)), whole)
    assert torch.equal(joined([whole[:, :2], whole[:, 2:]], "w", ("S(1)",), (4, 3)), whole)
    assert torch.equal(joined([whole, whole], "w", ("R",), (4, 3)), whole)


@pytest.mark.parametrize(
    ("placements", "shape"), [(("S(0)", "S(1)"), (4, 3)), (("_S(0, 2)",), (4, 3)), (("S(0)",), (2, 3))]
)
def test_what_only_a_like_world_can_put_together_is_refused_by_name(
    placements: tuple[str, ...], shape: tuple[int, ...]
) -> None:
    whole = torch.arange(12).reshape(4, 3)
    with pytest.raises(MismatchedState, match=r"model\.w: sharded as"):
        joined([whole[:2], whole[2:]], "model.w", placements, shape)

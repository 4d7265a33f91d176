"""Cases of sharded checkpoints that are loaded into another world."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fakes.resharding import LOADERS


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with what each rank of each world has found."""
    folder = tmp_path_factory.mktemp("ranks")
    done = subprocess.run(
        [sys.executable, "-m", "tests.fakes.resharding", str(folder)],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return folder


@pytest.mark.parametrize("world", LOADERS)
def test_cr_11_shards_of_size_zero_are_equal_in_every_world(ranks: Path, world: int) -> None:
    found = [json.loads((ranks / f"load{world}-{rank}.json").read_text()) for rank in range(world)]
    assert [one["1"] for one in found] == [{"differs": [], "step": 3}] * world


@pytest.mark.parametrize("world", LOADERS)
def test_cw_01_async_save_holds_the_values_of_its_call(ranks: Path, world: int) -> None:
    found = [json.loads((ranks / f"load{world}-{rank}.json").read_text()) for rank in range(world)]
    assert [one["2"] for one in found] == [{"differs": [], "step": 4}] * world

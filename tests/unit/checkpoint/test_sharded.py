"""State that several ranks have together: FSDP2, tensor parallel, both, and shards that are replicated."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

from tests.fakes.sharding import KINDS

WORLD = 4


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[dict[str, Any]]]:
    """What each rank says of each kind."""
    folder = tmp_path_factory.mktemp("ranks")
    done = subprocess.run(
        [sys.executable, "-m", "tests.fakes.sharding", str(WORLD), str(folder)],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return {
        kind: [json.loads((folder / kind / f"found-{rank}.json").read_text()) for rank in range(WORLD)]
        for kind in KINDS
    }


@pytest.mark.parametrize("kind", KINDS)
class TestSharded:
    def test_each_rank_restores_its_own_part_and_goes_on_bit_equal(self, found: Any, kind: str) -> None:
        assert [one["is_equal"] for one in found[kind]] == [True] * WORLD

    def test_stock_dcp_loads_the_parts_of_all_ranks_as_whole_tensors_bit_by_bit(self, found: Any, kind: str) -> None:
        assert found[kind][0]["stock_differs"] == []
        assert found[kind][0]["compared"] >= 32

    def test_ranks_talk_once_for_a_layout_and_never_for_a_save(self, found: Any, kind: str) -> None:
        assert [one["asked"] for one in found[kind]] == [1] * WORLD

    def test_a_model_that_is_not_sharded_any_more_is_refused_by_name(self, found: Any, kind: str) -> None:
        for one in found[kind]:
            assert "model.up.weight: sharded in the checkpoint, a plain tensor here" in one["refused"]


def test_a_rank_stores_its_part_only(found: Any) -> None:
    stored = [one["payload_bytes"] for one in found["fsdp"]]
    parameters = (6 * 12 + 12) + (12 * 7 + 7) + 14 + 8
    assert sum(stored) == 4 * 3 * parameters
    assert max(stored) < sum(stored) / 2

"""State that several ranks have together: FSDP2, tensor parallel, both, and shards that are replicated."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from spotproof.checkpoint.export import export
from spotproof.checkpoint.foreignfiles import Files, safetensors
from spotproof.checkpoint.pull import MANIFEST_FILE
from spotproof.contract.manifest import File, Manifest, Part, Receipt, encode
from tests.fakes.sharding import KINDS

WORLD = 4


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("ranks")


@pytest.fixture(scope="module")
def found(folder: Path) -> dict[str, list[dict[str, Any]]]:
    """What each rank says of each kind."""
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

    def test_a_run_that_is_sharded_begins_with_a_checkpoint_of_whole_tensors(self, found: Any, kind: str) -> None:
        assert [one["begins_equal"] for one in found[kind]] == [True] * WORLD

    def test_ranks_talk_once_for_a_layout_and_never_for_a_save(self, found: Any, kind: str) -> None:
        assert [one["asked"] for one in found[kind]] == [1] * WORLD

    def test_a_model_that_is_not_sharded_any_more_is_refused_by_name(self, found: Any, kind: str) -> None:
        for one in found[kind]:
            assert "model.up.weight: sharded in the checkpoint, a plain tensor here" in one["refused"]


@pytest.mark.parametrize("only", ["model", "optimizer"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.usefixtures("found")
def test_export_writes_whole_tensors(folder: Path, tmp_path: Path, kind: str, only: str) -> None:
    (folder / kind / MANIFEST_FILE).write_bytes(encode(manifest()))
    export(folder / kind, tmp_path / "x.safetensors", only=only)
    exported = safetensors(Files.of(str(tmp_path / "x.safetensors")), "x.safetensors")
    named = torch.load(folder / kind / "named.pt", weights_only=True)
    expected = {key.removeprefix(f"{only}."): value for key, value in named.items() if key.startswith(f"{only}.")}
    assert exported.keys() == expected.keys()
    assert [key for key, value in expected.items() if not torch.equal(value, exported[key])] == []


def manifest() -> Manifest:
    """Of the ranks; an export does not look at chunks."""
    nothing = File(name="x", chunks=())
    receipt: dict[str, Any] = {"step": 3, "samples": 0, "sample_chain": "", "state_digest": ""}
    common: dict[str, Any] = {"run": "r", "generation": 1, "step": 3, "world": WORLD}
    files: dict[str, Any] = {"image": nothing, "layout": nothing, "metadata": None}
    parts = [Part(**common, **files, rank=rank, receipt=Receipt(rank=rank, **receipt)) for rank in range(WORLD)]
    return Manifest(**common, parts=tuple(parts))


def test_a_rank_stores_its_part_only(found: Any) -> None:
    stored = [one["payload_bytes"] for one in found["fsdp"]]
    parameters = (6 * 12 + 12) + (12 * 7 + 7) + 14 + 8
    assert sum(stored) == 4 * 3 * parameters
    assert max(stored) < sum(stored) / 2

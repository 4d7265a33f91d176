"""Checkpoints of people's own DCP calls, and checkpoints of others, on every bucket."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save

from spotproof.checkpoint import StorageReader, StorageWriter, inventory
from spotproof.checkpoint.foreign import start_from
from spotproof.checkpoint.foreignfiles import in_objects
from spotproof.store.digest import digest_of
from spotproof.store.folder import FolderObjects
from spotproof.store.objects import Objects

pytestmark = pytest.mark.torch


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # "torch.distributed is uninitialized", which is true
        yield


def test_what_dcp_saved_is_a_checkpoint_and_dcp_loads_it(objects: Objects, run: str) -> None:
    for step in (1, 2):
        state = {"model": {"w": torch.arange(50_000.0) * step}, "step": step}
        save(state, checkpoint_id=str(step), storage_writer=StorageWriter(objects, run=run, chunk_bytes=64 * 1024))
    assert inventory.verify(objects, run, (1, 2)) == ()
    for at, step in ((None, 2), (1, 1)):
        found = {"model": {"w": torch.zeros(50_000)}, "step": 0}
        load(found, storage_reader=StorageReader(objects, run=run, at=at))
        assert found["step"] == step
        assert torch.equal(found["model"]["w"], torch.arange(50_000.0) * step)  # type: ignore[index]


def test_a_run_begins_with_a_stock_checkpoint_below_a_prefix(objects: Objects, run: str, tmp_path: Path) -> None:
    """The layout that s3torchconnector's writer leaves in a bucket."""
    one, other = nn.Linear(3, 2), nn.Linear(3, 2)
    save({"model": one.state_dict()}, checkpoint_id=tmp_path / "stock")
    files = None
    if not isinstance(objects, FolderObjects):  # a folder of others is read as it is
        for path in (tmp_path / "stock").iterdir():
            data = path.read_bytes()
            objects.put(f"runs/{run}/others/{path.name}", data, digest=digest_of(data))
        files = in_objects(objects, f"runs/{run}/others", where="here")
    start_from(str(tmp_path / "stock"), {"model": other}, files=files)
    assert torch.equal(one.weight, other.weight)
    assert torch.equal(one.bias, other.bias)

"""`dcp.save` and `dcp.load` with our storage: as durable as everything else, verified, and no stored pickle is read."""

from __future__ import annotations

import pickle
import warnings
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
import pytest
import torch
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save

from spotproof.checkpoint import StorageReader, StorageWriter
from spotproof.checkpoint.inventory import verify
from spotproof.checkpoint.place import next_order
from spotproof.checkpoint.pull import pull
from spotproof.contract import s3keys
from spotproof.errors import BadSettings, Damaged, MismatchedState, Missing, UnstorableState
from spotproof.store.folder import FolderObjects
from tests.fakes.training import Training

RUN = "mine"


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # "torch.distributed is uninitialized", which is true
        warnings.simplefilter("ignore", FutureWarning)
        yield


def writer(folder: Path, **more: Any) -> StorageWriter:
    return StorageWriter(folder, run=RUN, chunk_bytes=16 * 1024, **more)


def reader(folder: Path, **more: Any) -> StorageReader:
    return StorageReader(folder, run=RUN, **more)


def state_of(training: Training) -> dict[str, Any]:
    return {"model": training.model.state_dict(), "optimizer": training.optimizer.state_dict(), "step": 3}


def trained(seed: int, steps: int) -> Training:
    training = Training(seed)
    for _ in range(steps):
        training.step()
    return training


def cause(error: pytest.ExceptionInfo[BaseException]) -> str:
    failures = error.value.failures  # type: ignore[attr-defined]
    return " ".join(f"{type(inner).__name__}: {inner}" for inner, _ in failures.values())


def test_a_training_comes_back_bit_by_bit(tmp_path: Path) -> None:
    one, other = trained(1, 3), trained(2, 1)
    save(state_of(one), storage_writer=writer(tmp_path))
    loaded = {**state_of(other), "step": 0}
    load(loaded, storage_reader=reader(tmp_path))
    other.model.load_state_dict(loaded["model"])
    other.optimizer.load_state_dict(loaded["optimizer"])
    assert loaded["step"] == 3
    for mine, theirs in zip(one.model.state_dict().values(), other.model.state_dict().values(), strict=True):
        assert torch.equal(mine, theirs)
    states = zip(one.optimizer.state.values(), other.optimizer.state.values(), strict=True)
    assert all(torch.equal(mine[key], theirs[key]) for mine, theirs in states for key in mine)


VALUES: dict[str, Any] = {
    "lr": np.float64(1e-4),
    "n": np.int64(7),
    "when": datetime(2026, 12, 1, tzinfo=UTC),
    "path": PurePosixPath("/a"),
    "odd": {"one": "one", "inf": float("inf"), "big": 2**2000},
    "pair": (torch.arange(3), "text"),
    "numpy": np.random.RandomState(3).get_state(),
    "nothing": None,
}


def test_values_that_are_no_tensors_come_back_without_unpickling_what_was_stored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save({"values": VALUES}, storage_writer=writer(tmp_path))
    wanted = {"values": dict.fromkeys(VALUES) | {"odd": {"one": "", "inf": 0.0, "big": 0}}}
    monkeypatch.setattr(pickle, "loads", lambda *_: pytest.fail("stored bytes were unpickled"))
    load(wanted, storage_reader=reader(tmp_path))
    found: dict[str, Any] = wanted["values"]
    for name in ("lr", "n", "when", "path", "odd", "nothing"):
        assert (found[name], type(found[name])) == (VALUES[name], type(VALUES[name]))
    assert torch.equal(found["pair"][0], torch.arange(3))
    assert np.array_equal(found["numpy"][1], VALUES["numpy"][1])


class Custom:
    """Needs the reader's code."""


def test_what_has_no_safe_form_is_refused_by_name_before_anything_is_sent(tmp_path: Path) -> None:
    with pytest.raises(CheckpointException) as error:
        save({"model": {"w": torch.ones(3)}, "extra": {"thing": Custom()}}, storage_writer=writer(tmp_path))
    assert "UnstorableState" in cause(error)
    assert "values.extra.thing" in cause(error)
    assert list(FolderObjects(tmp_path).list("")) == []


def test_it_is_a_checkpoint_like_any_other(tmp_path: Path) -> None:
    """verify reads every byte, and stock DCP loads what pull writes."""
    training = trained(1, 2)
    w = writer(tmp_path / "objects")
    save(state_of(training), checkpoint_id="12", storage_writer=w)
    assert w.saved == (1, 12)
    objects = FolderObjects(tmp_path / "objects")
    assert verify(objects, RUN, (1, 12)) == ()
    pull(objects, RUN, (1, 12), tmp_path / "pulled")
    dcp_to_torch_save(tmp_path / "pulled", tmp_path / "whole.pt")
    whole = torch.load(tmp_path / "whole.pt", weights_only=True)
    assert whole["step"] == 3
    assert all(torch.equal(value, whole["model"][key]) for key, value in training.model.state_dict().items())


def test_a_flipped_byte_is_an_error_that_names_the_object(tmp_path: Path) -> None:
    save({"model": {"w": torch.arange(100_000)}}, storage_writer=writer(tmp_path))
    blobs = sorted((tmp_path / s3keys.run_prefix(RUN) / "blobs").iterdir(), key=lambda path: path.stat().st_size)
    body = bytearray(blobs[-1].read_bytes())
    body[100] ^= 1
    blobs[-1].write_bytes(body)
    with pytest.raises(CheckpointException) as error:
        load({"model": {"w": torch.zeros(100_000, dtype=torch.int64)}}, storage_reader=reader(tmp_path))
    assert Damaged.__name__ in cause(error)
    assert blobs[-1].name in cause(error)


def test_a_save_that_fails_in_the_middle_leaves_the_one_before(tmp_path: Path) -> None:
    class Full(FolderObjects):
        left = 3

        def put(self, key: str, data: Any, **more: Any) -> None:
            self.left -= 1
            if self.left < 0:
                raise OSError("full")
            super().put(key, data, **more)

    save({"w": torch.arange(40_000.0)}, storage_writer=writer(tmp_path))
    with pytest.raises(CheckpointException):
        save({"w": torch.arange(40_000.0) + 1}, storage_writer=StorageWriter(Full(tmp_path), run=RUN, chunk_bytes=4096))
    found = {"w": torch.zeros(40_000)}
    load(found, storage_reader=reader(tmp_path))
    assert torch.equal(found["w"], torch.arange(40_000.0))


def test_what_did_not_change_is_not_sent_again(tmp_path: Path) -> None:
    class Counting(FolderObjects):
        sent = 0

        def put(self, key: str, data: Any, **more: Any) -> None:
            self.sent += len(data)
            super().put(key, data, **more)

    objects = Counting(tmp_path)
    state = {"base": torch.rand(200_000), "head": torch.rand(1_000)}
    for _ in range(2):
        state["head"] += 1
        objects.sent = 0
        save(state, storage_writer=StorageWriter(objects, run=RUN, chunk_bytes=16 * 1024))
    assert objects.sent < 100_000


@pytest.mark.parametrize(
    ("begun", "step", "name"),
    [
        (set(), None, (1, 0)),
        (set(), 500, (1, 500)),
        ({(1, 500)}, None, (1, 501)),
        ({(1, 500)}, 400, (2, 400)),
        ({(1, 500)}, 500, (2, 500)),
        ({(1, 500), (3, 2)}, 3, (3, 3)),
    ],
)
def test_a_save_is_always_the_newest(begun: set[tuple[int, int]], step: int | None, name: tuple[int, int]) -> None:
    assert next_order(begun, step) == name


def test_of_two_saves_of_one_step_the_later_is_loaded_and_the_earlier_stays(tmp_path: Path) -> None:
    for value in (1.0, 2.0):
        save({"w": torch.tensor([value])}, checkpoint_id="7", storage_writer=writer(tmp_path))
    found = {"w": torch.zeros(1)}
    load(found, storage_reader=reader(tmp_path))
    assert found["w"].item() == 2.0
    load(found, checkpoint_id="1-7", storage_reader=reader(tmp_path))
    assert found["w"].item() == 1.0


def test_a_dtype_that_differs_is_refused_unless_it_is_allowed_by_name(tmp_path: Path) -> None:
    save({"a": torch.tensor([1.7]), "b": torch.tensor([1.5])}, storage_writer=writer(tmp_path))
    wanted = {"a": torch.zeros(1, dtype=torch.int64), "b": torch.zeros(1, dtype=torch.bfloat16)}
    with pytest.raises(CheckpointException) as error:
        load(wanted, storage_reader=reader(tmp_path, may_convert={"a", "b"}))
    assert "a: float32 in the checkpoint, int64 here" in cause(error)
    assert "b:" not in cause(error)
    assert MismatchedState.__name__ in cause(error)
    load({"b": wanted["b"]}, storage_reader=reader(tmp_path, may_convert={"b"}))
    assert wanted["b"].item() == 1.5


def test_a_place_that_is_none_and_a_checkpoint_that_is_not_there_are_named(tmp_path: Path) -> None:
    with pytest.raises(BadSettings, match="name a bucket and nothing behind it"):
        StorageWriter("s3://bucket/folder", run=RUN)
    with pytest.raises(Missing, match="run mine has no checkpoint"):
        reader(tmp_path).read_metadata()
    save({"w": torch.zeros(1)}, storage_writer=writer(tmp_path))
    with pytest.raises(Missing, match="no checkpoint 9; it has 1-0"):
        reader(tmp_path, at=9).read_metadata()
    with pytest.raises(BadSettings, match="say STEP"):
        reader(tmp_path, at="newest").read_metadata()


def test_unstorable_tensors_are_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(CheckpointException) as error:
        save({"m": {"s": torch.eye(3).to_sparse()}}, storage_writer=writer(tmp_path))
    assert UnstorableState.__name__ in cause(error)
    assert "m.s" in cause(error)

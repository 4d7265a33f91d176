"""Cases CR-*: restoring a checkpoint. CR-05, CR-08 and CR-10 are played through `Run` as well, in test_resuming."""

from __future__ import annotations

import os
import pickle
import random
from datetime import UTC, datetime
from pathlib import PurePosixPath

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from spotproof.checkpoint.snapshot import Snapshotter
from spotproof.contract import s3keys
from spotproof.contract.items import PointerItem, pointer_rank
from spotproof.contract.manifest import encode
from spotproof.errors import MismatchedState, NoLoadableCheckpoint, UnstorableState
from tests.fakes.checkpoints import RUN, Rig, bytes_of, image_of
from tests.fakes.training import Box, Net, same_bits, store

pytestmark = pytest.mark.torch


def back_from(state: dict[str, object]) -> dict[str, object]:
    target = Box({})
    store({"box": Box(state)}).load({"box": target})
    return target.state


@pytest.mark.parametrize("damage", ["missing", "flipped", "truncated", "swapped", "older"])
def test_cr_01_the_newest_is_broken_the_one_before_is_taken_and_the_reason_told(rig: Rig, damage: str) -> None:
    rig.commit(300, image_of(300))
    rig.commit(400, image_of(400))
    first, second, *_ = rig.blob_paths(400)
    match damage:
        case "missing":
            second.unlink()
        case "flipped":
            content = second.read_bytes()
            second.write_bytes(content[:500] + bytes([content[500] ^ 1]) + content[501:])
        case "truncated":
            second.write_bytes(second.read_bytes()[:-1])
        case "swapped":
            one, other = first.read_bytes(), second.read_bytes()
            first.write_bytes(other)
            second.write_bytes(one)
        case "older":
            second.write_bytes(rig.blob_paths(300)[1].read_bytes())
    fetched = rig.fetcher().newest()
    assert fetched is not None
    assert fetched.order == (1, 300)
    assert bytes_of(fetched) == image_of(300)
    [reason] = fetched.skipped
    assert "step 400" in reason
    assert second.name[:16] in reason or first.name[:16] in reason
    assert rig.stores.checkpoints.quarantined(RUN) == {(1, 400)}
    assert rig.objects.head(s3keys.manifest(RUN, 1, 400)) is not None, "nothing is deleted"


def test_cr_01_a_manifest_that_lacks_a_shard_is_passed_over(rig: Rig) -> None:
    rig.commit(300, image_of(300))
    commit = rig.commit(400, image_of(400))
    assert commit.manifest is not None
    text = encode(commit.manifest).replace(b'"world":1', b'"world":2')
    rig.path(s3keys.manifest(RUN, 1, 400)).write_bytes(text)
    pointer = rig.stores.pointers.read(RUN)
    assert pointer is not None
    fetched = rig.fetcher().newest()
    assert fetched is not None
    os.close(fetched.image_fd)
    assert fetched.order == (1, 300)
    assert "step 400" in fetched.skipped[0]


def test_cr_02_the_next_draws_of_every_generator_are_those_of_the_uninterrupted_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def no_pickle(*_: object, **__: object) -> None:
        raise AssertionError("a checkpoint was unpickled")

    def draws() -> list[list[float]]:
        numbers = [random.random() for _ in range(10)], np.random.rand(10).tolist(), np.random.randn(3).tolist()  # noqa: NPY002
        return [*numbers, torch.rand(10).tolist(), torch.randn(3).tolist()]

    for seed in (random.seed, np.random.seed, torch.manual_seed):
        seed(5)
    np.random.randn(1)  # noqa: NPY002 -- leaves a second normal number behind, which is state too
    random.gauss(0, 1)
    stored = store({"box": Box({})})
    uninterrupted = draws()
    draws()
    monkeypatch.setattr(pickle, "Unpickler", no_pickle)
    monkeypatch.setattr(pickle, "loads", no_pickle)
    monkeypatch.setattr(torch, "load", no_pickle)
    stored.load({"box": Box({})})
    assert draws() == uninterrupted


def test_cr_03_numpy_scalars_dates_and_paths_come_back_equal() -> None:
    state = {
        "lr": np.float64(1e-4),
        "n": np.int64(7),
        "half": np.float16(0.1),
        "flag": np.bool_(True),
        "day": np.datetime64("2026-01-02"),
        "when": datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC),
        "p": PurePosixPath("/a"),
        "array": np.arange(6, dtype=np.uint16).reshape(2, 3)[:, ::2],
        "dtype": torch.bfloat16,
        "size": torch.Size([1, 2]),
        "device": torch.device("cpu"),
    }
    back = back_from(state)
    assert {key: type(value) for key, value in back.items()} == {key: type(value) for key, value in state.items()}
    array, stored_array = back.pop("array"), state.pop("array")
    assert back == state
    assert isinstance(array, np.ndarray)
    assert array.dtype == np.uint16
    assert np.array_equal(array, np.asarray(stored_array))


@pytest.mark.parametrize(
    ("value", "path"),
    [
        (np.array(["a", "b"]), "box.deep.0.value"),
        (np.array([object()]), "box.deep.0.value"),
        (np.random.default_rng(1), "box.deep.0.value"),
        (lambda: 0, "box.deep.0.value"),
    ],
    ids=["text array", "object array", "generator", "function"],
)
def test_cr_03_what_has_no_safe_form_is_refused_before_the_first_step(value: object, path: str) -> None:
    def provide(_: object) -> list[int]:
        raise AssertionError("no memory is asked for before the check")

    box = Box({"deep": [{"value": value}]})
    with Snapshotter({"box": box}, provide=provide) as snapshotter, pytest.raises(UnstorableState) as refused:
        snapshotter.check({"step": 0})
    assert refused.value.path == path


def test_cr_04_a_list_that_grew_is_restored_whole() -> None:
    target = Box({"k": []})
    store({"box": Box({"k": [{"a": 1}, {"b": 2}], "t": [torch.ones(1), torch.zeros(2)]})}).load({"box": target})
    assert target.state["k"] == [{"a": 1}, {"b": 2}]
    tensors = target.state["t"]
    assert isinstance(tensors, list)
    assert [tensor.tolist() for tensor in tensors] == [[1.0], [0.0, 0.0]]


def buffered(value: Tensor) -> nn.Module:
    module = nn.Module()
    module.register_buffer("b", value)
    return module


def test_cr_06_another_shape_or_type_is_an_error_and_a_conversion_is_allowed_by_name() -> None:
    stored = store({"m": buffered(torch.tensor([1.7] * 4))})
    with pytest.raises(MismatchedState, match=r"m\.b: float32 in the checkpoint, int64 here"):
        stored.load({"m": buffered(torch.zeros(4, dtype=torch.int64))})
    with pytest.raises(MismatchedState, match=r"m\.b: float32 in the checkpoint, int64 here"):
        stored.load({"m": buffered(torch.zeros(4, dtype=torch.int64))}, may_convert=frozenset({"m.b"}))
    with pytest.raises(MismatchedState, match=r"m\.b: shape \(4,\) in the checkpoint, \(6,\) here"):
        stored.load({"m": buffered(torch.zeros(6))})

    half = store({"m": buffered(torch.tensor([1.5, 2.5]).bfloat16())})
    with pytest.raises(MismatchedState, match="bfloat16 in the checkpoint, float32 here"):
        half.load({"m": buffered(torch.zeros(2))})
    target = buffered(torch.zeros(2))
    restored = half.load({"m": target}, may_convert=frozenset({"m.b"}))
    assert restored.conversions == ("m.b: bfloat16 in the checkpoint, float32 here",)
    assert target.get_buffer("b").tolist() == [1.5, 2.5]


def test_cr_07_names_without_wrappers_are_the_same_names() -> None:
    net = Net()
    stored = store({"model": nn.DataParallel(net)})
    bare = Net()
    stored.load({"model": bare})
    assert torch.equal(bare.embed.weight, net.embed.weight)
    wrapped = nn.DataParallel(Net())
    store({"model": net}).load({"model": wrapped})
    assert torch.equal(wrapped.module.embed.weight, net.embed.weight)
    with pytest.raises(MismatchedState, match="model: not in the checkpoint"):
        stored.load({"model": nn.Linear(2, 2)})


def odd_tensors() -> dict[str, object]:
    torch.manual_seed(3)
    return {
        "scalar": torch.tensor(2.5),
        "empty": torch.empty(0, 4),
        "transposed": torch.rand(3, 4).t(),
        "expanded": torch.rand(3, 1).expand(3, 4),
        "bf16": torch.rand(5).bfloat16(),
        "float8": torch.rand(5).to(torch.float8_e4m3fn),
        "uint16": torch.tensor([0, 1, 65535], dtype=torch.uint16),
        "bool": torch.rand(5) > 0.5,
        "complex": torch.rand(5, dtype=torch.complex64),
        "conjugated": torch.rand(5, dtype=torch.complex64).conj(),
        "nan": torch.tensor([float("nan"), float("inf"), -0.0]),
        "view": torch.rand(1000)[10:20],
    }


def test_cr_09_odd_tensors_come_back_bit_by_bit() -> None:
    state = odd_tensors()
    back = back_from(state)
    different = []
    for key, value in state.items():
        other = back[key]
        assert isinstance(value, Tensor)
        assert isinstance(other, Tensor)
        if not same_bits(value.resolve_conj(), other):
            different.append(key)
    assert different == []


@pytest.mark.parametrize("state", ["empty", "no prefix", "incomplete step"])
def test_cr_10_nothing_to_restore_is_a_first_start(rig: Rig, state: str) -> None:
    if state == "no prefix":
        (rig.folder / "bucket" / "runs").mkdir()
    if state == "incomplete step":
        rig.objects.fails = lambda number, key: "/checkpoints/" in key
        with pytest.raises(Exception, match="told to fail"):
            rig.commit(5, image_of(5))
    assert rig.fetcher().newest() is None


def test_cr_10_a_run_that_had_a_checkpoint_is_not_started_from_zero(rig: Rig) -> None:
    pointer = PointerItem(
        run=RUN,
        generation=1,
        step=500,
        rank=pointer_rank(1, 500),
        manifest_key=s3keys.manifest(RUN, 1, 500),
        manifest_digest="0" * 64,
    )
    rig.stores.pointers.rise(pointer, own_generation=1)
    with pytest.raises(NoLoadableCheckpoint, match="generation 1 step 500") as refused:
        rig.fetcher().newest()
    assert "start a new run" in str(refused.value)

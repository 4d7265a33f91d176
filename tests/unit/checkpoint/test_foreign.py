"""Starting from what others wrote: everything that does not fit or hold together is named, and nothing has changed."""

from __future__ import annotations

import json
import pickle
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict
from torch.distributed.checkpoint.state_dict_saver import save

from spotproof.checkpoint import StorageWriter
from spotproof.checkpoint.export import export
from spotproof.checkpoint.foreign import start_from
from spotproof.checkpoint.foreignfiles import in_objects
from spotproof.checkpoint.pull import pull
from spotproof.errors import BadSettings, MismatchedState, NoLoadableCheckpoint
from spotproof.store.folder import FolderObjects
from spotproof.store.objects import NO_DEADLINE, ObjectInfo
from tests.fakes.training import Training


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # "torch.distributed is uninitialized", which is true
        warnings.simplefilter("ignore", FutureWarning)
        yield


@pytest.fixture
def one() -> Training:
    training = Training(1)
    for _ in range(3):
        training.step()
    return training


def bits(training: Training) -> list[Tensor]:
    states = training.optimizer.state.values()
    return [*training.model.state_dict().values(), *(value for state in states for value in state.values())]


def is_equal(one: Training, other: Training) -> bool:
    mine, theirs = bits(one), bits(other)
    return len(mine) == len(theirs) and all(torch.equal(a, b) for a, b in zip(mine, theirs, strict=True))


def nested(training: Training) -> dict[str, Any]:
    return {
        "model": training.model.state_dict(),
        "optimizer": training.optimizer.state_dict(),
        "scheduler": training.scheduler.state_dict(),
    }


def as_torch_save(training: Training, folder: Path) -> Path:
    torch.save({**nested(training), "epoch": 3}, folder / "all.pt")
    return folder / "all.pt"


def as_other_names(training: Training, folder: Path) -> Path:
    model = {f"module._orig_mod.{key}": value for key, value in training.model.state_dict().items()}
    body = {"model_state_dict": model, "optimizer_state_dict": training.optimizer.state_dict()}
    torch.save({**body, "scheduler_state_dict": training.scheduler.state_dict()}, folder / "other.pt")
    return folder / "other.pt"


def as_stock_dcp(training: Training, folder: Path) -> Path:
    save(nested(training), checkpoint_id=folder / "dcp")
    return folder / "dcp"


def as_stock_dcp_by_name(training: Training, folder: Path) -> Path:
    optimizer = get_optimizer_state_dict(training.model, training.optimizer)
    save({**nested(training), "optimizer": optimizer}, checkpoint_id=folder / "named")
    return folder / "named"


def as_our_dcp(training: Training, folder: Path) -> Path:
    writer = StorageWriter(folder / "objects", run="mine")
    save(nested(training), storage_writer=writer)
    assert writer.saved is not None
    pull(FolderObjects(folder / "objects"), "mine", writer.saved, folder / "pulled")
    return folder / "pulled"


WHOLE: tuple[Callable[[Training, Path], Path], ...] = (
    as_torch_save,
    as_other_names,
    as_stock_dcp,
    as_stock_dcp_by_name,
    as_our_dcp,
)


@pytest.mark.parametrize("written", WHOLE)
def test_a_training_goes_on_from_it_bit_equal(one: Training, tmp_path: Path, written: Any) -> None:
    other = Training(2)
    taken = start_from(str(written(one, tmp_path)), other.objects)
    assert (set(taken.taken), taken.fresh) == ({"model", "optimizer", "scheduler"}, ())
    assert is_equal(one, other)
    torch.set_rng_state(torch.manual_seed(5).get_state())
    expected = [one.step(), one.step()]
    torch.set_rng_state(torch.manual_seed(5).get_state())
    assert [other.step(), other.step()] == expected
    assert is_equal(one, other)


def test_s3torchconnectors_layout_is_read_from_a_bucket(one: Training, tmp_path: Path) -> None:
    """The objects of a stock checkpoint below a prefix."""

    class Bucket(FolderObjects):
        def list(self, prefix: str) -> Iterator[ObjectInfo]:
            for path in sorted(folder.iterdir()):
                key = f"some/prefix/{path.name}"
                if key.startswith(prefix):
                    yield ObjectInfo(key=key, bytes=path.stat().st_size, modified_at=0.0)

        def read(self, key: str, *, until: float = NO_DEADLINE) -> bytes:
            return (folder / key.removeprefix("some/prefix/")).read_bytes()

    folder, objects = as_stock_dcp(one, tmp_path), Bucket(tmp_path / "bucket")
    files = in_objects(objects, "some/prefix/", where="s3://bucket/some/prefix")
    other = Training(2)
    start_from("s3://bucket/some/prefix", other.objects, files=files)
    assert is_equal(one, other)


def as_safetensors(tensors: dict[str, Tensor], path: Path) -> Path:
    from spotproof.checkpoint.export import DTYPES

    header, at, body = {}, 0, b""
    for key, tensor in tensors.items():
        data = tensor.contiguous().flatten().view(torch.uint8).numpy().tobytes()
        dtype = DTYPES[str(tensor.dtype).removeprefix("torch.")]
        header[key] = {"dtype": dtype, "shape": list(tensor.shape), "data_offsets": [at, at + len(data)]}
        at, body = at + len(data), body + data
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + body)
    return path


def test_safetensors_gives_the_module_and_says_what_starts_afresh(one: Training, tmp_path: Path) -> None:
    state = {key: value for key, value in one.model.state_dict().items() if value.dim()}
    counted = {key: value for key, value in one.model.state_dict().items() if not value.dim()}
    as_safetensors(state, tmp_path / "model-1.safetensors")
    as_safetensors({key: value.reshape(()) for key, value in counted.items()}, tmp_path / "model-2.safetensors")
    other = Training(2)
    taken = start_from(str(tmp_path), other.objects)
    assert taken.fresh == ("optimizer", "scheduler")
    mine, theirs = one.model.state_dict(), other.model.state_dict()
    assert all(torch.equal(mine[key], theirs[key]) for key in mine)


def test_what_export_writes_is_a_start(one: Training, tmp_path: Path) -> None:
    pulled = as_our_dcp(one, tmp_path)
    with pytest.raises(BadSettings):
        export(pulled, tmp_path / "x.safetensors")  # the state of DCP calls tells of no modules
    path = as_safetensors(dict(one.model.state_dict()), tmp_path / "x.safetensors")
    other = Training(2)
    assert start_from(str(path), {"model": other.model}).taken == ("model",)


class Bigger(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(12, 6)
        self.norm = nn.BatchNorm1d(6)
        self.extra = nn.Linear(2, 2)


def test_every_key_that_does_not_fit_is_named_and_nothing_changes(one: Training, tmp_path: Path) -> None:
    model = Bigger()
    before = [value.clone() for value in model.state_dict().values()]
    with pytest.raises(MismatchedState, match=r"not in the checkpoint \[extra.bias; extra.weight\], not here \[head"):
        start_from(str(as_torch_save(one, tmp_path)), {"model": model})
    del model.extra
    torch.save({key: value for key, value in one.model.state_dict().items() if "head" not in key}, tmp_path / "w.pt")
    with pytest.raises(MismatchedState, match=r"model.embed.weight: shape \(11, 6\) in the checkpoint, \(12, 6\) here"):
        start_from(str(tmp_path / "w.pt"), {"model": model})
    now = [value for key, value in model.state_dict().items()]
    assert all(torch.equal(a, b) for a, b in zip(before[:1], now[:1], strict=True))


def test_a_dtype_that_differs_is_refused_unless_it_is_allowed_by_name(tmp_path: Path) -> None:
    torch.save({"weight": torch.ones(1, 2).bfloat16(), "bias": torch.ones(1)}, tmp_path / "w.pt")
    model = nn.Linear(2, 1)
    with pytest.raises(MismatchedState, match=r"model.weight: bfloat16 in the checkpoint, float32 here"):
        start_from(str(tmp_path / "w.pt"), {"model": model})
    taken = start_from(str(tmp_path / "w.pt"), {"model": model}, may_convert={"model.weight"})
    assert taken.conversions == ("model.weight: bfloat16 in the checkpoint, float32 here",)


def test_optimizer_state_of_other_parameters_is_refused_by_name(one: Training, tmp_path: Path) -> None:
    body = nested(one)
    state = body["optimizer"]["state"]
    state[0], state[1] = state[1], state[0]
    torch.save(body, tmp_path / "w.pt")
    with pytest.raises(MismatchedState, match=r"optimizer.state.embed.weight.exp_avg: shape \(6,\)"):
        start_from(str(tmp_path / "w.pt"), Training(2).objects)
    body["optimizer"]["param_groups"][0]["params"].pop()
    torch.save(body, tmp_path / "w.pt")
    with pytest.raises(MismatchedState, match=r"optimizer: 2 parameters in the checkpoint, 3 here"):
        start_from(str(tmp_path / "w.pt"), Training(2).objects)


class Evil:
    def __reduce__(self) -> Any:
        return (print, ("ran",))


@pytest.mark.parametrize("where", ["file", "metadata"])
def test_code_in_a_checkpoint_is_never_run(
    one: Training, tmp_path: Path, where: str, capsys: pytest.CaptureFixture[str]
) -> None:
    if where == "file":
        path = tmp_path / "evil.pt"
        torch.save({"model": one.model.state_dict(), "x": Evil()}, path)
    else:
        path = as_stock_dcp(one, tmp_path)
        (path / ".metadata").write_bytes(pickle.dumps(Evil()))
    with pytest.raises(MismatchedState, match="without running code of its own"):
        start_from(str(path), Training(2).objects)
    assert capsys.readouterr().out == ""


def flip(path: Path, at: int) -> None:
    body = bytearray(path.read_bytes())
    body[at] ^= 1
    path.write_bytes(body)


DAMAGE: dict[str, Callable[[Path], Any]] = {
    "flipped": lambda path: flip(path, path.read_bytes().index(b"data/0") + 200),
    "truncated": lambda path: path.write_bytes(path.read_bytes()[:-700]),
    "empty": lambda path: path.write_bytes(b""),
    "missing": lambda path: path.unlink(),
}


@pytest.mark.parametrize("kind", DAMAGE)
@pytest.mark.parametrize("written", [as_torch_save, as_stock_dcp, as_our_dcp])
def test_a_damaged_one_is_an_error_that_names_the_file(one: Training, tmp_path: Path, written: Any, kind: str) -> None:
    where = written(one, tmp_path)
    file = where if where.is_file() else where / "__0_0.distcp"
    DAMAGE[kind](file)
    other = Training(2)
    before = [value.clone() for value in bits(other)]
    kinds = (NoLoadableCheckpoint, MismatchedState, BadSettings)
    with pytest.raises(kinds, match=file.name):
        start_from(str(where), other.objects)
    assert all(torch.equal(a, b) for a, b in zip(before, bits(other), strict=True))


@pytest.mark.parametrize("cut", [4, 40, -1, -100])
def test_damaged_safetensors_are_named(one: Training, tmp_path: Path, cut: int) -> None:
    path = as_safetensors(dict(one.model.state_dict()), tmp_path / "x.safetensors")
    path.write_bytes(path.read_bytes()[:cut])
    with pytest.raises(NoLoadableCheckpoint, match=r"x\.safetensors"):
        start_from(str(path), {"model": Training(2).model})


def test_a_place_without_a_checkpoint_is_named(tmp_path: Path) -> None:
    with pytest.raises(BadSettings, match="there is nothing"):
        start_from(str(tmp_path / "none"), {"model": nn.Linear(1, 1)})
    for name in ("a.txt", "b.txt"):
        (tmp_path / name).write_text("x")
    with pytest.raises(BadSettings, match=r"holds neither .metadata nor"):
        start_from(str(tmp_path), {"model": nn.Linear(1, 1)})

"""A checkpoint taken elsewhere: a folder that stock DCP loads, a file that safetensors readers load."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict_loader import load

from spotproof.checkpoint import export
from spotproof.checkpoint.commit import Content, make_part
from spotproof.checkpoint.pull import MANIFEST_FILE, pull
from spotproof.checkpoint.state import capture
from spotproof.cli.main import commands
from spotproof.contract import layout, s3keys
from spotproof.contract.layout import image_name
from spotproof.contract.states import SaveKind
from spotproof.errors import BadSettings, Damaged, MismatchedState
from tests.fakes.checkpoints import RUN, Rig, save_of
from tests.fakes.training import Box, Training, same_bits, snapshots

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore:torch.distributed:UserWarning")]


def commit(rig: Rig, objects: dict[str, object], *, step: int = 3, chunk_bytes: int = 1000) -> None:
    """The state of `objects`, in the bucket."""
    with snapshots(objects) as (snapshotter, memory):
        snapshotter.save(step=step, generation=1, counters={})
        plan, image = memory.plans[-1], memory.image()
    content = Content(
        image=memoryview(image),
        layout=layout.encode(plan.layout),
        metadata=plan.metadata,
        chunk_bytes=chunk_bytes,
    )
    part = make_part(save_of(step), content, image_name=image_name(0))
    rig.committer().commit(part, content, kind=SaveKind.PERIODIC)


@pytest.fixture
def trained(rig: Rig) -> Training:
    training = Training()
    for _ in range(3):
        training.step()
    commit(rig, training.objects)
    return training


def read_safetensors(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """By the format's own description, with nobody's library."""
    data = path.read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    header: dict[str, Any] = json.loads(data[8 : 8 + length])
    told = header.pop("__metadata__")
    names = {known: getattr(torch, ours) for ours, known in export.DTYPES.items()}
    tensors = {}
    for name, entry in header.items():
        first, last = entry["data_offsets"]
        raw = torch.frombuffer(bytearray(data[8 + length + first : 8 + length + last]), dtype=torch.uint8)
        tensors[name] = raw.view(names[entry["dtype"]]).reshape(entry["shape"])
    return tensors, told


def test_stock_dcp_loads_a_pulled_checkpoint_bit_by_bit(rig: Rig, trained: Training, tmp_path: Path) -> None:
    pull(rig.objects, RUN, (1, 3), tmp_path / "pulled")
    wanted = capture(trained.objects, counters={}).tensors
    target: dict[str, Any] = {"model": {}, "optimizer": {}}
    for key, tensor in wanted.items():
        top, _, rest = key.partition(".")
        if top in target:
            target[top][rest] = torch.zeros_like(tensor)
    load(target, checkpoint_id=tmp_path / "pulled")
    found = {f"{top}.{rest}": tensor for top, rests in target.items() for rest, tensor in rests.items()}
    assert len(found) > 10
    assert [key for key, tensor in found.items() if not same_bits(tensor, wanted[key])] == []


def test_a_pull_that_was_cut_off_reads_only_what_is_missing(rig: Rig, trained: Training, tmp_path: Path) -> None:
    folder = tmp_path / "pulled"
    blobs = rig.blob_paths(3)
    lost = blobs[4].read_bytes()
    blobs[4].write_bytes(lost[::-1])
    with pytest.raises(Damaged):
        pull(rig.objects, RUN, (1, 3), folder, threads=1)
    assert not folder.exists()
    blobs[4].write_bytes(lost)
    for blob in blobs[:4]:
        blob.unlink()  # they are in the partial folder already
    pull(rig.objects, RUN, (1, 3), folder)
    assert (folder / image_name(0)).read_bytes()[:1000] != bytes(1000)
    assert (folder / MANIFEST_FILE).exists()
    assert not folder.with_name("pulled.partial").exists()
    with pytest.raises(BadSettings, match="exists already"):
        pull(rig.objects, RUN, (1, 3), folder)
    assert trained.losses


def test_safetensors_hold_the_modules_tensors_under_their_own_names(
    rig: Rig, trained: Training, tmp_path: Path
) -> None:
    pull(rig.objects, RUN, (1, 3), tmp_path / "pulled")
    written = export.export(tmp_path / "pulled", tmp_path / "model.safetensors")
    tensors, told = read_safetensors(written.path)
    assert told == {"generation": "1", "step": "3", "run": RUN, "format": "pt"}
    state = trained.model.state_dict()
    assert sorted(tensors) == sorted(state)  # tied weights under each name
    assert [name for name in state if not same_bits(tensors[name], state[name])] == []
    assert written.bytes == written.path.stat().st_size

    optimizer = export.export(tmp_path / "pulled", tmp_path / "optimizer.safetensors", only="optimizer")
    assert optimizer.tensors > 0
    with pytest.raises(BadSettings, match="name one of model, optimizer"):
        export.export(tmp_path / "pulled", tmp_path / "other.safetensors", only="nobody")


def test_every_dtype_that_safetensors_knows_is_exported_and_another_one_is_named(rig: Rig, tmp_path: Path) -> None:
    values: dict[str, object] = {
        name: torch.zeros(3, dtype=getattr(torch, name)) for name in export.DTYPES if hasattr(torch, name)
    }
    commit(rig, {"box": Box(values)})
    pull(rig.objects, RUN, (1, 3), tmp_path / "pulled")
    written = export.export(tmp_path / "pulled", tmp_path / "box.safetensors", only="box")
    tensors, _ = read_safetensors(written.path)
    assert {name: str(tensor.dtype) for name, tensor in tensors.items()} == {name: f"torch.{name}" for name in values}

    commit(rig, {"box": Box({"wave": torch.zeros(3, dtype=torch.complex64)})}, step=4)
    pull(rig.objects, RUN, (1, 4), tmp_path / "complex")
    with pytest.raises(MismatchedState, match=r"wave.*complex64"):
        export.export(tmp_path / "complex", tmp_path / "no.safetensors", only="box")


def test_two_modules_keep_their_names_apart(rig: Rig, tmp_path: Path) -> None:
    commit(rig, {"actor": nn.Linear(2, 2), "critic": nn.Linear(2, 2)})
    pull(rig.objects, RUN, (1, 3), tmp_path / "pulled")
    export.export(tmp_path / "pulled", tmp_path / "both.safetensors")
    tensors, _ = read_safetensors(tmp_path / "both.safetensors")
    assert sorted(tensors) == ["actor.bias", "actor.weight", "critic.bias", "critic.weight"]


@pytest.fixture
def local(rig: Rig, trained: Training) -> list[str]:
    """The options by which the command line finds the rig's run."""
    (rig.folder / "bucket").rename(rig.folder / "objects")
    assert trained.losses
    return ["--local", str(rig.folder)]


def test_the_command_line_lists_verifies_fetches_and_exports(rig: Rig, local: list[str], tmp_path: Path) -> None:
    def call(name: str, *words: str) -> Any:
        return CliRunner().invoke(commands, ["checkpoint", name, RUN, *local, *words])

    listed = json.loads(call("ls", "--json").stdout)
    assert [(one["name"], one["standing"]) for one in listed["checkpoints"]] == [("1-3", "newest")]
    assert "1-3" in call("ls").stdout
    assert call("verify").exit_code == 0
    assert call("export", "-o", str(tmp_path / "m.safetensors")).exit_code == 0
    assert call("pull", "--at", "3", "-o", str(tmp_path / "p")).exit_code == 0
    assert (tmp_path / "p" / ".metadata").exists()
    assert json.loads(call("gc", "--dry-run", "--json").stdout)["dropped"] == []

    blob = next((rig.folder / "objects" / s3keys.run_prefix(RUN) / "blobs").iterdir())
    blob.write_bytes(b"no")
    verified = call("verify", "--json")
    assert verified.exit_code == 1
    assert [damage["key"].endswith(blob.name) for damage in json.loads(verified.stdout)["damages"]] == [True]

"""Ranks that call DCP with our storage: some save, others, of another number, load. Writes what they found as JSON.

python -m tests.fakes.resharding FOLDER
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import async_save, save
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

from spotproof.checkpoint import StorageReader, StorageWriter
from tests.fakes.worlds import alone_on_loopback, in_world

RUN = "reshard"
SAVERS = 4
LOADERS = (1, 3, 4)
SHAPES = ((6,), (1, 5), (7, 3), (0, 4))  # over 4 ranks of 2, 2, 2, 0; of one row; that nothing divides; empty


def tensors(world: int, *, is_full: bool) -> dict[str, Any]:
    """The same values in any world, sharded by rows, and one that every rank has."""
    mesh = init_device_mesh("cpu", (world,))
    found: dict[str, Any] = {}
    for number, shape in enumerate(SHAPES):
        whole = torch.arange(float(torch.Size(shape).numel())).reshape(shape) + number
        found[f"t{number}"] = distribute_tensor(whole if is_full else torch.zeros(shape), mesh, [Shard(0)])
    same = torch.arange(5.0) if is_full else torch.zeros(5)
    found["same"] = distribute_tensor(same, mesh, [Replicate()])
    return {"tensors": found, "step": 3 if is_full else 0, "plain": same.clone()}


def save_all(world: int, folder: Path) -> dict[str, Any]:
    state = tensors(world, is_full=True)
    save(state, checkpoint_id="1", storage_writer=StorageWriter(folder, run=RUN))
    state["step"] = 4
    future: Any = async_save(state, checkpoint_id="2", storage_writer=StorageWriter(folder, run=RUN))
    for tensor in state["tensors"].values():
        tensor.fill_(-1)  # training goes on while the save runs
    state["plain"].fill_(-1)
    future.result()
    return {}


def load_all(world: int, folder: Path) -> dict[str, Any]:
    wanted = tensors(world, is_full=True)
    answer: dict[str, Any] = {}
    for step in (1, 2):
        state = tensors(world, is_full=False)
        load(state, storage_reader=StorageReader(folder, run=RUN, at=step))
        differs = [name for name, value in state["tensors"].items() if not same(value, wanted["tensors"][name])]
        differs += [] if torch.equal(state["plain"], wanted["plain"]) else ["plain"]
        answer[str(step)] = {"differs": differs, "step": state["step"]}
    return answer


def same(one: DTensor, other: DTensor) -> bool:
    return torch.equal(one.to_local(), other.to_local()) and one.shape == other.shape


def phase(name: str, world: int, folder: Path) -> None:
    """Let the ranks save or load; each writes what it found."""

    def rank_main(rank: int) -> None:
        act = save_all if name == "save" else load_all
        (folder / f"{name}-{rank}.json").write_text(json.dumps(act(world, folder / "objects")))

    in_world(world, folder / name, rank_main)


def main() -> None:
    alone_on_loopback()
    folder = Path(sys.argv[1])
    phase("save", SAVERS, folder)
    for world in LOADERS:
        phase(f"load{world}", world, folder)


if __name__ == "__main__":
    main()

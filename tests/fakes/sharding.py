"""Ranks on one machine that train sharded models, save them and restore them; each writes what it found as JSON.

python -m tests.fakes.sharding WORLD FOLDER
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from spotproof.checkpoint.dcp import Peers
from spotproof.checkpoint.foreign import start_from
from spotproof.checkpoint.restore import restore
from spotproof.checkpoint.sharded import gathered, local_of
from spotproof.checkpoint.snapshot import Snapshotter
from spotproof.contract import layout
from spotproof.contract.layout import image_name
from spotproof.errors import MismatchedState
from tests.fakes.training import Memory
from tests.fakes.worlds import alone_on_loopback, in_world

STEP = 3
KINDS = ("fsdp", "tp", "fsdp-tp", "hsdp")


class Block(nn.Module):
    """Sizes that most worlds do not divide; the last layer has one row, so that most ranks have nothing of it."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(6, 12)
        self.down = nn.Linear(12, 7)
        self.norm = nn.LayerNorm(7)
        self.out = nn.Linear(7, 1)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.out(self.norm(self.down(torch.tanh(self.up(x)))))
        return result


class Sharded:
    """One rank's training."""

    def __init__(self, kind: str, world: int, seed: int) -> None:
        torch.manual_seed(seed)
        self.model = Block()
        with torch.no_grad():
            for parameter in self.model.parameters():
                parameter.copy_(torch.rand(parameter.shape))
        tensor_parallel = {"up": ColwiseParallel(), "down": RowwiseParallel()}
        match kind:
            case "fsdp":
                fully_shard(self.model.up)
                fully_shard(self.model)
            case "tp":
                parallelize_module(self.model, init_device_mesh("cpu", (world,)), tensor_parallel)
            case "fsdp-tp":
                mesh = init_device_mesh("cpu", (world // 2, 2), mesh_dim_names=("dp", "tp"))
                parallelize_module(self.model, mesh["tp"], tensor_parallel)
                fully_shard(self.model, mesh=mesh["dp"])
            case _:
                fully_shard(self.model, mesh=init_device_mesh("cpu", (2, world // 2), mesh_dim_names=("r", "s")))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.05)
        self.objects = {"model": self.model, "optimizer": self.optimizer}

    def train(self, steps: int) -> None:
        for _ in range(steps):
            self.optimizer.zero_grad()
            self.model(torch.rand(4, 6)).pow(2).sum().backward()
            self.optimizer.step()

    def bits(self) -> list[str]:
        """This rank's bytes of all that is trained."""
        tensors = [local_of(value) for value in self.model.state_dict().values()]
        states = self.optimizer.state_dict()["state"].values()
        tensors += [local_of(value) for state in states for value in state.values()]
        return [tensor.contiguous().flatten().view(torch.uint8).numpy().tobytes().hex() for tensor in tensors]

    def named(self) -> dict[str, Tensor]:
        """Every tensor whole, by the name that it has in a checkpoint."""
        names = [name for name, _ in self.model.named_parameters()]
        found = {f"model.{key}": value for key, value in self.model.state_dict().items()}
        for index, state in self.optimizer.state_dict()["state"].items():
            found |= {f"optimizer.state.{names[index]}.{key}": value for key, value in state.items()}
        return {
            key: (value.full_tensor() if isinstance(value, DTensor) else value).clone() for key, value in found.items()
        }


def rank_main(kind: str, world: int, folder: Path) -> dict[str, Any]:
    rank = dist.get_rank()
    training = Sharded(kind, world, seed=1)
    training.train(STEP)
    memory = Memory(count=2)
    asked: list[Any] = []

    def gather(own: Any) -> list[Any]:
        asked.append(own)
        return gathered(own)

    snapshotter = Snapshotter(training.objects, provide=memory.provide, rank=rank, peers=Peers(gather=gather))
    arenas, done = [], list[int]()
    for step in (STEP - 1, STEP):  # the second save asks nobody
        copy = snapshotter.begin(step=step, generation=1, counters={}, then=done.append)
        assert copy is not None
        copy.gate()
        assert snapshotter.finish(copy)
        arenas.append(copy.arena)
    image = memory.image(arenas[-1])
    plan = memory.plans[-1]
    snapshotter.close()
    memory.close()
    (folder / image_name(rank)).write_bytes(image)
    (folder / f"layout-{rank:05d}.json").write_bytes(layout.encode(plan.layout))
    named, saved = training.named(), training.bits()
    if rank == 0:
        (folder / ".metadata").write_bytes(plan.metadata)
        torch.save(named, folder / "named.pt")
    training.train(2)

    other = Sharded(kind, world, seed=2)
    other.train(1)
    restore(other.objects, bytearray(image), plan.layout, step=STEP)
    restored = other.bits()
    other.train(2)
    dist.barrier()
    third = Sharded(kind, world, seed=3)
    start_from(str(folder), third.objects)
    return {
        "is_equal": other.bits() == training.bits() and restored != other.bits(),
        "begins_equal": third.bits() == saved,
        "asked": len(asked),
        "stock_differs": stock_differences(folder, named) if rank == 0 else [],
        "compared": len(named),
        "payload_bytes": sum(entry.bytes for entry in plan.layout.tensors if is_trained(entry.key)),
        "refused": refusal(image, plan.layout),
    }


def is_trained(key: str) -> bool:
    return key.startswith(("model.", "optimizer.")) and not key.endswith(".step")


def stock_differences(folder: Path, named: dict[str, Tensor]) -> list[str]:
    """What stock DCP, alone, reads otherwise from the ranks' images and `.metadata`."""
    loaded = {key: torch.zeros_like(value) for key, value in named.items()}
    load(loaded, checkpoint_id=folder, no_dist=True)
    return [key for key, value in named.items() if not torch.equal(loaded[key], value)]


def refusal(image: bytes, described: layout.Layout) -> str:
    """What is said when the model is not sharded any more."""
    plain = Block()
    objects = {"model": plain, "optimizer": torch.optim.AdamW(plain.parameters(), lr=0.05)}
    before = [parameter.clone() for parameter in plain.parameters()]
    try:
        restore(objects, bytearray(image), described, step=STEP)
    except MismatchedState as error:
        assert all(torch.equal(one, other) for one, other in zip(before, plain.parameters(), strict=True))
        return str(error)
    return ""


def ranks(rank: int, world: int, folder: Path) -> None:
    for kind in KINDS:
        (folder / kind).mkdir(exist_ok=True)
        found = rank_main(kind, world, folder / kind)
        (folder / kind / f"found-{rank}.json").write_text(json.dumps(found))
        dist.barrier()


def main() -> None:
    world, folder = int(sys.argv[1]), Path(sys.argv[2])
    alone_on_loopback()
    in_world(world, folder / "init", lambda rank: ranks(rank, world, folder))


if __name__ == "__main__":
    main()

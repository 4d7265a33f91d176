"""The lab's training: a small model under DDP that resumes from its own checkpoints and writes down what it does.

Every sample is a pure function of (seed, global index), so that a curve can be compared bit by bit.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

GLOBAL_BATCH = 12


def train(folder: str, steps: int, every: int, pace_s: float, group_timeout_s: float) -> None:
    """The worker's entry point, called by torchrun's agent in a forked process."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, signal.SIG_DFL)  # the launcher's own handlers came along with the fork
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    say = Events(Path(folder))
    say("start")
    dist.init_process_group("gloo", timeout=timedelta(seconds=group_timeout_s))
    say("group")
    run(Path(folder), say, steps=steps, every=every, pace_s=pace_s)
    dist.destroy_process_group()
    say("end")


def run(folder: Path, say: Events, *, steps: int, every: int, pace_s: float) -> None:
    import torch.distributed as dist

    from spotproof.rendezvous.consensus import StopConsensus

    rank, world = dist.get_rank(), dist.get_world_size()
    training = Sharded() if os.environ.get("LAB_MODEL") == "fsdp2" else Replicated()
    step = newest(folder)
    if step:
        training.load(folder / f"step-{step:06d}")
    training.wrap()
    consensus = StopConsensus()
    while step < steps:
        ids = list(range(step * GLOBAL_BATCH, (step + 1) * GLOBAL_BATCH))[rank::world]
        loss = sum(per_sample(training.wrapped, ids)) / len(ids)
        training.optimizer.zero_grad()
        loss.backward()
        training.optimizer.step()
        step += 1
        total = loss.detach().clone()
        dist.all_reduce(total)
        say("step", step=step, loss=float(total).hex(), ids=ids)
        is_stop = consensus.boundary(wants_to_stop=(folder / f"notice-{say.same['node']}").exists())
        if is_stop or step % every == 0:
            dist.barrier()  # a step that is saved has been written down by every rank: nobody makes it again
            training.save(folder, step, takes_s=float(os.environ.get("LAB_SAVE_S", "0")) if is_stop else 0.0)
        if is_stop:
            say("parked", step=step)
            time.sleep(3600)  # until the launcher is told: a leaver never ends with 0
        time.sleep(pace_s)
    say("state", digest=training.digest())


def newest(folder: Path) -> int:
    """The newest checkpoint that rank 0 sees, on every rank."""
    import torch
    import torch.distributed as dist

    found = torch.tensor([max((int(path.name[5:11]) for path in folder.glob("step-*")), default=0)])
    dist.broadcast(found, 0)
    return int(found)


def small_model() -> Any:
    import torch
    from torch import nn

    torch.manual_seed(7)
    return nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))


class Replicated:
    """DDP; rank 0 saves."""

    def __init__(self) -> None:
        import torch

        self.model = small_model()
        self.optimizer: Any = torch.optim.AdamW(self.model.parameters(), lr=1e-2)
        self.wrapped: Any = None

    def load(self, path: Path) -> None:
        import torch

        state = torch.load(path, weights_only=True)
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])

    def wrap(self) -> None:
        from torch import nn

        self.wrapped = nn.parallel.DistributedDataParallel(self.model, find_unused_parameters=True)

    def save(self, folder: Path, step: int, *, takes_s: float) -> None:
        import torch
        import torch.distributed as dist

        if dist.get_rank() == 0:
            aside = folder / f"saving-{os.getpid()}"
            torch.save({"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}, aside)
            time.sleep(takes_s)
            aside.rename(folder / f"step-{step:06d}")

    def digest(self) -> str:
        return digest(self.model)


class Sharded:
    """FSDP2 with torch's own distributed checkpoints."""

    def __init__(self) -> None:
        import torch
        import torch.distributed as dist
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        self.model = small_model()
        fully_shard(self.model, mesh=init_device_mesh("cpu", (dist.get_world_size(),)))
        self.optimizer: Any = torch.optim.AdamW(self.model.parameters(), lr=1e-2)
        self.wrapped: Any = self.model

    def _state(self) -> dict[str, Any]:
        from torch.distributed.checkpoint.state_dict import get_state_dict

        model, optimizer = get_state_dict(self.model, self.optimizer)
        return {"model": model, "optimizer": optimizer}

    def load(self, path: Path) -> None:
        from torch.distributed.checkpoint.state_dict import set_state_dict
        from torch.distributed.checkpoint.state_dict_loader import load

        state = self._state()
        load(state, checkpoint_id=path)
        set_state_dict(self.model, self.optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])

    def wrap(self) -> None:
        """It is sharded already."""

    def save(self, folder: Path, step: int, *, takes_s: float) -> None:
        import torch.distributed as dist
        from torch.distributed.checkpoint.state_dict_saver import save

        aside = folder / f"saving-{step}-{os.environ['MASTER_PORT']}"
        save(self._state(), checkpoint_id=aside)
        time.sleep(takes_s)
        dist.barrier()
        if dist.get_rank() == 0:
            aside.rename(folder / f"step-{step:06d}")

    def digest(self) -> str:
        from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict

        full: dict[str, Any] = get_model_state_dict(self.model, options=StateDictOptions(full_state_dict=True))
        return hashlib.sha256(b"".join(full[name].numpy().tobytes() for name in sorted(full))).hexdigest()


def per_sample(model: Any, ids: list[int]) -> Any:
    import torch

    for one in ids:
        chance = torch.Generator().manual_seed(one)
        x = torch.randn(8, generator=chance)
        yield ((model(x) - x.sum()) ** 2).squeeze()


def digest(model: Any) -> str:
    parts = [tensor.detach().numpy().tobytes() for tensor in model.state_dict().values()]
    return hashlib.sha256(b"".join(parts)).hexdigest()


class Events:
    """Lines of JSON, one file for each worker process."""

    def __init__(self, folder: Path) -> None:
        node, pid = os.environ["LAB_NODE"], os.getpid()
        self.began_at = time.time()
        self.same: dict[str, Any] = {
            "node": node,
            "pid": pid,
            "rank": int(os.environ["RANK"]),
            "world": int(os.environ["WORLD_SIZE"]),
        }
        self.same["group"] = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"  # another one each generation
        self.file = (folder / f"events-{node}-{pid}.jsonl").open("a", buffering=1)

    def __call__(self, kind: str, **more: object) -> None:
        line = {"kind": kind, "at": time.time(), "began_at": self.began_at, **self.same, **more}
        self.file.write(json.dumps(line) + "\n")

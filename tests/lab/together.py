"""The lab's training with in-process recovery: no torchrun, one process a node, survivors keep their memory."""

from __future__ import annotations

import faulthandler
import os
import signal
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from spotproof.rendezvous.decide import Seat, Size
from spotproof.rendezvous.inprocess import WATCHDOG_EXIT, InProcess, state_of
from spotproof.rendezvous.joining import Joining
from spotproof.store.local import LocalTable
from tests.lab.launcher import die_with_parent
from tests.lab.nodes import RESTARTED
from tests.lab.toy import GLOBAL_BATCH, Events, digest, per_sample


def launch_in_process(spec: dict[str, Any]) -> None:
    """A launcher that starts the process again when its watchdog has ended it; it says so in the log."""
    while True:
        child = os.fork()
        if child == 0:
            die_with_parent()
            train_in_process(spec)
            os._exit(0)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if status != WATCHDOG_EXIT:
            os._exit(abs(status))
        print(RESTARTED, flush=True)


def train_in_process(spec: dict[str, Any]) -> None:
    torch.set_num_threads(1)
    faulthandler.register(signal.SIGUSR1)
    folder, steps, _, pace_s, group_timeout_s = spec["training"]
    torch.manual_seed(7)
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    tensors = state_of(model, optimizer)
    smallest, largest = spec["nodes"]
    joining = Joining(
        table=LocalTable(Path(folder) / "table.sqlite"),
        run=spec["run"],
        seat=Seat(node=os.environ["LAB_NODE"]),
        size=Size(smallest=smallest, largest=largest),
    )
    recovery = InProcess(joining, address=spec["address"], group_timeout_s=group_timeout_s, stuck_s=5.0)
    step: int | None = None
    while step is None or step < steps:
        ddp = None
        try:
            met = recovery.form()
            os.environ.update(RANK=str(met.entered.rank), WORLD_SIZE=str(met.entered.world))
            os.environ.update(MASTER_ADDR=met.host, MASTER_PORT=str(met.port))
            say = Events(Path(folder))
            say("group")
            step = recovery.share(tensors, step)
            ddp = nn.parallel.DistributedDataParallel(model, find_unused_parameters=True)
            while step < steps:
                step = one_step(ddp, optimizer, recovery, step=step, say=say)
                time.sleep(pace_s)
        except RuntimeError:
            pass  # the traceback holds DDP until this block ends
        ddp = None
        recovery.come_out()
    if met.entered.rank == 0:
        say("state", digest=digest(model))


def one_step(ddp: nn.Module, optimizer: torch.optim.Optimizer, recovery: InProcess, *, step: int, say: Events) -> int:
    rank, world = dist.get_rank(), dist.get_world_size()
    ids = list(range(step * GLOBAL_BATCH, (step + 1) * GLOBAL_BATCH))[rank::world]
    loss = sum(per_sample(ddp, ids)) / len(ids)
    optimizer.zero_grad()
    loss.backward()
    total = loss.detach().clone()
    dist.all_reduce(total)
    recovery.commit()
    optimizer.step()
    say("step", step=step + 1, loss=float(total).hex(), ids=ids)
    return step + 1

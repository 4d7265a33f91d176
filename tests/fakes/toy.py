"""A training small enough to be interrupted a hundred times: dropout, AdamW, a schedule, shuffled data.

As a module it trains in this process; as a script (`python -m tests.fakes.toy`, settings as JSON) in one of its own.
Every step appends a JSON line to the log: the step, the loss to the last bit, the samples.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from spotproof.contract.orders import FlushOrder, request_line
from spotproof.contract.states import NoticeKind


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What to train, and what happens on the way. Steps are 0 where nothing happens."""

    log: str
    steps: int = 40
    samples: int = 50
    batch: int = 4
    accumulate: int = 1
    workers: int = 0
    delay_s: float = 0.0
    tracked: bool = True
    kill_at: int = 0  # SIGKILL of this process inside this step, once
    hold_at: int = 0  # wait here until a notice is heard
    raise_at: int = 0
    is_sharded: bool = False  # FSDP2 instead of DDP, where there are several ranks


class Toy:
    """The objects of a training, made anew for each process."""

    def __init__(self, plan: Plan) -> None:
        torch.manual_seed(11)
        self.plan = plan
        data = TensorDataset(torch.arange(plan.samples), torch.randn(plan.samples, 8))
        self.loader = DataLoader(data, batch_size=plan.batch, shuffle=True, num_workers=plan.workers)
        self.model = nn.Sequential(nn.Linear(8, 16), nn.Dropout(0.2), nn.Linear(16, 1))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-2)
        self.scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(self.optimizer, 100)
        self.rates: list[float] = []

    @property
    def objects(self) -> dict[str, object]:
        return {
            "model": self.model, "optimizer": self.optimizer, "scheduler": self.scheduler, "loader": self.loader,
        }  # fmt: skip

    def learn(self, batch: Any, *, is_last: bool) -> tuple[float, list[int]]:
        """One micro-batch; the optimizer steps where `is_last`."""
        ids, x = batch
        loss = (self.model(x) - x.sum(1, keepdim=True)).pow(2).mean()
        (loss / self.plan.accumulate).backward()
        if is_last:
            self.optimizer.step()
            self.scheduler.step()
            self.optimizer.zero_grad()
            self.rates.append(self.optimizer.param_groups[0]["lr"])
        return loss.item(), ids.tolist()


def train(plan: Plan, *, opened: Any = None, before: Callable[[Any, int], None] | None = None) -> Toy:
    """Train `plan`; `before(run, step)` is called inside each micro-batch, with the step that it belongs to."""
    toy = Toy(plan)
    if opened is None:
        _train_untracked(toy)
        return toy
    with opened as run:
        run.track(**toy.objects)
        for batch in run.batches(toy.loader, accumulate=plan.accumulate, steps=plan.steps):
            step = run.step + 1
            loss, ids = toy.learn(batch, is_last=not run.accumulating)
            run.report(loss=loss)
            _note(plan, step, loss, ids)
            _happen(plan, run, step)
            if before is not None:
                before(run, step)
    return toy


def _train_untracked(toy: Toy) -> None:
    plan, step = toy.plan, 0
    while True:
        for number, batch in enumerate(toy.loader, start=1):
            is_last = number % plan.accumulate == 0 or number == len(toy.loader)
            loss, ids = toy.learn(batch, is_last=is_last)
            _note(plan, step + 1, loss, ids)
            step += is_last
            if step == plan.steps:
                return


def _note(plan: Plan, step: int, loss: float, ids: list[int]) -> None:
    with Path(plan.log).open("a") as file:
        file.write(json.dumps({"step": step, "loss": loss.hex(), "ids": ids}) + "\n")


def _happen(plan: Plan, run: Any, step: int) -> None:
    time.sleep(plan.delay_s)
    if step == plan.raise_at:
        raise RuntimeError("told to fail")
    mark = Path(f"{plan.log}.killed")
    if step == plan.kill_at and not mark.exists():
        mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    if step == plan.hold_at:
        hold(run)


def hold(run: Any, *, within_s: float = 90.0) -> None:
    """Wait until the agent has passed a notice on."""
    until = time.monotonic() + within_s
    while not run.poll():
        if time.monotonic() > until:
            raise TimeoutError("no notice came")
        time.sleep(0.02)


def drop_order(runtime_dir: Path, name: str, *, in_s: float = 90.0, leaves: bool = True) -> None:
    """A flush order as the SSM document drops it."""
    leavers = frozenset({0}) if leaves else frozenset()
    kind = NoticeKind.INTERRUPTION if leaves else NoticeKind.REBALANCE
    order = FlushOrder(order=name, kind=kind, deadline_at=int(time.time() + in_s), leavers=leavers)
    folder = runtime_dir / "requests"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f".new-{name}").write_text(request_line(order) + "\n")
    (folder / f".new-{name}").rename(folder / f"flush-{name}")


def read_log(path: Path | str) -> list[dict[str, Any]]:
    """The steps of a log, in the order they were taken."""
    return [json.loads(line) for line in Path(path).read_text().splitlines()]


def as_argument(plan: Plan) -> str:
    """`plan` for the command line of a process."""
    return json.dumps(asdict(plan))


def main() -> None:
    torch.set_num_threads(1)
    plan = Plan(**json.loads(sys.argv[1]))
    if not plan.tracked:
        train(plan)
        return
    from spotproof import Run

    train(plan, opened=Run.from_env())


if __name__ == "__main__":
    main()

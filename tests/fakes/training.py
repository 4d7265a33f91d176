"""A tiny training with everything that makes resuming hard: dropout, schedule, tied weights, BatchNorm."""

from __future__ import annotations

import mmap
import os
import random
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor, nn

from spotproof.checkpoint.arena import Arena, create
from spotproof.checkpoint.dcp import ImagePlan
from spotproof.checkpoint.restore import Restored, restore
from spotproof.checkpoint.snapshot import Snapshotter
from spotproof.contract.states import ArenaState

torch.set_num_threads(1)  # two cores are shared with other tests, and one thread sums in one order


class Net(nn.Module):
    """Embedding and head share their weight."""

    def __init__(self, words: int = 11, width: int = 6) -> None:
        super().__init__()
        self.embed = nn.Embedding(words, width)
        self.norm = nn.BatchNorm1d(width)
        self.drop = nn.Dropout(0.3)
        self.head = nn.Linear(width, words, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, words: Tensor) -> Tensor:
        logits: Tensor = self.head(self.drop(self.norm(self.embed(words))))
        return logits


class Training:
    """Deterministic from its seed; every generator is seeded (Python reseeds its own in a forked child)."""

    def __init__(self, seed: int = 7, *, total_steps: int = 100) -> None:
        random.seed(seed)
        np.random.seed(seed)  # noqa: NPY002 -- the generator that scripts use
        torch.manual_seed(seed)
        self.model = Net()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.01)
        self.scheduler = torch.optim.lr_scheduler.OneCycleLR(self.optimizer, max_lr=0.05, total_steps=total_steps)
        self.losses: list[float] = []

    @property
    def objects(self) -> dict[str, object]:
        return {"model": self.model, "optimizer": self.optimizer, "scheduler": self.scheduler}

    def step(self) -> float:
        words = torch.randint(0, 11, (8,))
        self.optimizer.zero_grad()
        loss = nn.functional.cross_entropy(self.model(words), words.roll(1))
        loss.backward()
        self.optimizer.step()
        self.scheduler.step()
        self.losses.append(loss.item())
        return self.losses[-1]


@dataclass
class Memory:
    """Stands for the agent: makes arenas and keeps their memory."""

    count: int = 1
    fds: list[int] = field(default_factory=list)
    plans: list[ImagePlan] = field(default_factory=list)

    def provide(self, plan: ImagePlan) -> list[int]:
        self.close()
        self.plans.append(plan)
        self.fds = [create(plan.layout.image_bytes, name="test") for _ in range(self.count)]
        return [os.dup(fd) for fd in self.fds]

    def free(self, index: int = 0) -> None:
        """What the uploader does when it is done."""
        with Arena(self.fds[index]) as arena:
            arena.move(ArenaState.UPLOADING)
            arena.move(ArenaState.FREE)

    def image(self, index: int = 0) -> bytes:
        with Arena(self.fds[index]) as arena, arena.image() as image:
            return bytes(image)

    def close(self) -> None:
        while self.fds:
            os.close(self.fds.pop())


@contextmanager
def snapshots(objects: Mapping[str, object], *, arenas: int = 1) -> Iterator[tuple[Snapshotter, Memory]]:
    memory = Memory(count=arenas)
    try:
        with Snapshotter(objects, provide=memory.provide) as snapshotter:
            yield snapshotter, memory
    finally:
        memory.close()


@dataclass
class Stored:
    """An image and what is needed to load it."""

    image: bytes
    plan: ImagePlan
    step: int

    def load(self, objects: Mapping[str, object], *, may_convert: frozenset[str] = frozenset()) -> Restored:
        with mmap.mmap(-1, len(self.image)) as memory:
            memory[:] = self.image
            return restore(objects, memory, self.plan.layout, step=self.step, may_convert=may_convert)


def store(objects: Mapping[str, object], *, step: int = 1, **counters: object) -> Stored:
    """The state of `objects` as an image."""
    with snapshots(objects) as (snapshotter, memory):
        snapshotter.save(step=step, generation=1, counters=counters)
        return Stored(image=memory.image(), plan=memory.plans[-1], step=step)


def same_bits(one: Tensor, other: Tensor) -> bool:
    """Same shape, dtype and bytes; strides may differ."""
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    return bool(one.numel() == 0 or torch.equal(raw(one), raw(other)))


def raw(tensor: Tensor) -> Tensor:
    return tensor.detach().clone(memory_format=torch.contiguous_format).reshape(-1).view(torch.uint8)


@dataclass
class Box:
    """Any object of the user's own with a state."""

    state: dict[str, object]

    def state_dict(self) -> dict[str, object]:
        return self.state

    def load_state_dict(self, state: dict[str, object]) -> None:
        self.state = state

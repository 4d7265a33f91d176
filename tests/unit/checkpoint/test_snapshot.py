from __future__ import annotations

import random
from collections.abc import Callable, Iterator

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from spotproof.checkpoint.arena import Arena
from spotproof.checkpoint.snapshot import estimate_bytes, state_after_a_step
from spotproof.checkpoint.state import capture
from spotproof.contract.states import ArenaState
from spotproof.errors import UnstorableState
from tests.fakes.training import Box, Net, Training, same_bits, snapshots, store

pytestmark = pytest.mark.torch


def all_tensors(training: Training) -> dict[str, Tensor]:
    return dict(capture(training.objects, counters={}).tensors)


def test_a_tracked_and_an_untracked_training_are_bit_equal() -> None:
    untracked = Training()
    for _ in range(12):
        untracked.step()
    at_the_end = torch.get_rng_state()

    tracked = Training()
    with snapshots(tracked.objects, arenas=2) as (snapshotter, memory):
        snapshotter.check({"step": 0})
        estimate_bytes(tracked.objects)
        for step in range(1, 13):
            tracked.step()
            index = snapshotter.save(step=step, generation=1, counters={"samples": step * 8})
            assert index is not None
            memory.free(index)
    assert torch.equal(torch.get_rng_state(), at_the_end)
    assert tracked.losses == untracked.losses
    mine, reference = all_tensors(tracked), all_tensors(untracked)
    assert [key for key in reference if not same_bits(mine[key], reference[key])] == []


def test_numpy_and_python_generators_are_only_read() -> None:
    training = Training(seed=1)
    store(training.objects)
    drawn = random.random(), np.random.rand()  # noqa: NPY002 -- the generator that scripts use
    Training(seed=1)
    assert drawn == (random.random(), np.random.rand())  # noqa: NPY002


def test_a_save_holds_the_values_of_its_moment() -> None:
    box = Box({"w": torch.ones(100)})
    with snapshots({"box": box}) as (snapshotter, memory):
        snapshotter.save(step=1, generation=1, counters={})
        held = memory.image()
        value = box.state["w"]
        assert isinstance(value, Tensor)
        value.fill_(2)
        assert memory.image() == held


def test_the_header_tells_step_and_generation_and_a_busy_arena_is_not_touched() -> None:
    box = Box({"w": torch.ones(3)})
    with snapshots({"box": box}, arenas=2) as (snapshotter, memory):
        assert snapshotter.has_free_arena()
        assert [snapshotter.save(step=step, generation=4, counters={}) for step in (10, 11, 12)] == [0, 1, None]
        assert not snapshotter.has_free_arena()
        with Arena(memory.fds[1]) as arena:
            header = arena.header
        assert (header.state, header.generation, header.step) == (ArenaState.COMPLETE, 4, 11)
        memory.free(0)
        assert snapshotter.save(step=13, generation=4, counters={}) == 0
        assert len(memory.plans) == 1


def test_a_save_that_fails_gives_its_arena_back(monkeypatch: pytest.MonkeyPatch) -> None:
    box = Box({"w": torch.ones(3)})

    def fails(*_: object, **__: object) -> Tensor:
        raise RuntimeError("the device is gone")

    with snapshots({"box": box}) as (snapshotter, memory):
        snapshotter.save(step=1, generation=1, counters={})
        memory.free()
        with monkeypatch.context() as patch:
            patch.setattr(Tensor, "copy_", fails)
            with pytest.raises(RuntimeError, match="the device is gone"):
                snapshotter.save(step=2, generation=1, counters={})
        assert snapshotter.save(step=3, generation=1, counters={}) == 0


def test_a_state_that_takes_another_form_gets_new_arenas() -> None:
    box = Box({"w": torch.ones(3)})
    with snapshots({"box": box}) as (snapshotter, memory):
        snapshotter.save(step=1, generation=1, counters={})
        box.state["w"] = torch.ones(5)
        snapshotter.save(step=2, generation=1, counters={})
        box.state["notes"] = ["x" * 1000] * 1000
        snapshotter.save(step=3, generation=1, counters={})
        assert len(memory.plans) == 3
        memory.free()
        snapshotter.save(step=4, generation=1, counters={})
        assert len(memory.plans) == 3


def test_a_document_that_shrinks_leaves_nothing_of_the_longer_one() -> None:
    box = Box({"notes": ["long"] * 100})
    with snapshots({"box": box}) as (snapshotter, memory):
        snapshotter.save(step=1, generation=1, counters={})
        memory.free()
        box.state["notes"] = []
        snapshotter.save(step=2, generation=1, counters={})
        assert b"long" not in memory.image()


def test_what_cannot_be_stored_is_refused_before_the_first_step() -> None:
    training = Training()
    training.objects["box"] = Box({"f": print})
    with (
        snapshots({**training.objects, "box": Box({"f": print})}) as (snapshotter, memory),
        pytest.raises(UnstorableState, match=r"box\.f"),
    ):
        snapshotter.check({})
    assert memory.plans == []


@pytest.mark.parametrize(
    "make",
    [
        lambda p: torch.optim.AdamW(p, amsgrad=True),
        lambda p: torch.optim.AdamW(p, fused=True),
        lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
        lambda p: torch.optim.SGD(p, lr=0.1),
        lambda p: torch.optim.RMSprop(p, centered=True),
    ],
    ids=["adamw", "fused", "momentum", "sgd", "rmsprop"],
)
def test_the_meta_twin_knows_the_size_and_leaves_the_optimizer_alone(
    make: Callable[[Iterator[nn.Parameter]], torch.optim.Optimizer],
) -> None:
    net = Net()
    optimizer = make(net.parameters())
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 10)  # it replaces optimizer.step
    state = state_after_a_step(optimizer)
    assert state is not None
    assert not optimizer.state
    assert all(parameter.grad is None for parameter in net.parameters())
    assert scheduler.last_epoch == 0
    net(torch.arange(8)).sum().backward()
    optimizer.step()
    real = [value for one in optimizer.state.values() for value in one.values() if isinstance(value, Tensor)]
    assert sorted(tensor.shape for tensor in state) == sorted(tensor.shape for tensor in real)


@pytest.mark.parametrize("kind", [torch.optim.LBFGS, torch.optim.Adafactor])
def test_an_optimizer_that_wants_a_closure_or_values_makes_the_estimate_inexact(
    kind: Callable[..., torch.optim.Optimizer],
) -> None:
    net = nn.Linear(2, 2)
    assert not estimate_bytes({"model": net, "optimizer": kind(net.parameters())}).is_exact


def test_the_estimate_before_the_first_step_is_close_to_the_real_image() -> None:
    training = Training()
    estimate = estimate_bytes(training.objects)
    assert estimate.is_exact
    training.step()
    real = store(training.objects).plan.layout.image_bytes
    assert real <= estimate.image_bytes <= real + 128 * 1024


def test_what_nobody_trains_lies_together_and_ends_where_a_chunk_does() -> None:
    chunk = 8 * 1024**2
    base = [nn.Linear(1024, 1024, bias=False).requires_grad_(False) for _ in range(9)]
    adapters = [nn.Linear(8, 8) for _ in base]
    model = nn.Sequential(*(one for pair in zip(base, adapters, strict=True) for one in pair))
    optimizer = torch.optim.AdamW([one for one in model.parameters() if one.requires_grad])
    with snapshots({"model": model, "optimizer": optimizer}) as (snapshotter, memory):
        snapshotter.save(step=1, generation=1, counters={})
        before = memory.image()
        memory.free()
        for adapter in adapters:
            adapter.weight.data.add_(1)
        snapshotter.save(step=2, generation=1, counters={})
        after = memory.image()
    changed = [at for at in range(0, len(after), chunk) if before[at : at + chunk] != after[at : at + chunk]]
    assert changed == [5 * chunk]  # 36 MiB are frozen: five chunks, the last with a gap behind them

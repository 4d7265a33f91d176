"""A snapshot that is copied behind the training loop has the values of its boundary, or it is none."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
import torch
from torch import Tensor, nn

from spotproof.checkpoint import memcopy, overlap
from spotproof.checkpoint.arena import Arena
from spotproof.checkpoint.dcp import payload_views
from spotproof.checkpoint.memcopy import Mover, Piece
from spotproof.checkpoint.overlap import resting
from spotproof.checkpoint.snapshot import Snapshotter
from spotproof.checkpoint.state import capture
from spotproof.contract.states import ArenaState
from tests.fakes.training import Memory, Training, raw, same_bits, snapshots

pytestmark = pytest.mark.torch

Optimizers = dict[str, Callable[[nn.Module], torch.optim.Optimizer]]
OPTIMIZERS: Optimizers = {
    "sgd": lambda model: torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9),
    "adamw": lambda model: torch.optim.AdamW(model.parameters(), foreach=False),
    "foreach": lambda model: torch.optim.AdamW(model.parameters(), foreach=True),
    "fused": lambda model: torch.optim.AdamW(model.parameters(), fused=True),
}


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """The copier waits for this event before it copies a byte: everything that can happen meanwhile does."""
    may_go = threading.Event()
    move = Mover.move

    def waits(self: Mover) -> None:
        assert may_go.wait(20)
        move(self)

    monkeypatch.setattr(Mover, "move", waits)
    yield may_go
    may_go.set()


@contextmanager
def copying(snapshotter: Snapshotter) -> Iterator[overlap.Copy]:
    copy = snapshotter.begin(step=1, generation=1, counters={}, then=lambda _: None)
    assert copy is not None
    yield copy


def stored(memory: Memory, index: int = 0) -> dict[str, Tensor]:
    image = bytearray(memory.image(index))
    return {key: value.clone() for key, value in payload_views(memory.plans[-1].layout, image).items()}


def state_of(memory: Memory, index: int = 0) -> ArenaState:
    with Arena(memory.fds[index]) as arena:
        return arena.header.state


def values(objects: dict[str, object]) -> dict[str, Tensor]:
    return {key: value.clone() for key, value in capture(objects, counters={}).tensors.items()}


def differing(one: dict[str, Tensor], other: dict[str, Tensor]) -> list[str]:
    return [key for key in one if not same_bits(one[key], other[key])]


@pytest.mark.parametrize("name", sorted(OPTIMIZERS))
def test_the_optimizers_step_waits_and_the_snapshot_has_the_old_values(name: str, held: threading.Event) -> None:
    training = Training()
    optimizer = OPTIMIZERS[name](training.model)
    objects: dict[str, object] = {"model": training.model, "optimizer": optimizer}
    training.model(torch.arange(8)).sum().backward()
    optimizer.step()
    with snapshots(objects) as (snapshotter, memory):
        before = values(objects)
        with copying(snapshotter) as copy:
            optimizer.register_step_pre_hook(lambda *_: copy.gate())
            stepping = threading.Thread(target=optimizer.step)
            for _ in range(2):  # gradients are accumulated meanwhile, and BatchNorm changes its buffers
                training.model(torch.arange(8)).sum().backward()
            stepping.start()
            stepping.join(0.1)
            assert stepping.is_alive()
            held.set()
            stepping.join(20)
            assert snapshotter.finish(copy)
        assert state_of(memory) is ArenaState.COMPLETE
        assert "model.embed.weight" in differing(before, values(objects))
        assert differing(before, stored(memory)) == []


def write(tensor: Tensor) -> None:
    with torch.no_grad():
        tensor.add_(1)


def write_by_data(tensor: Tensor) -> None:
    tensor.data.add_(1)


@pytest.mark.parametrize("writes", [write, write_by_data])
def test_a_write_to_a_resting_tensor_is_noticed_and_from_then_on_it_is_copied_at_once(
    writes: Callable[[Tensor], None], held: threading.Event
) -> None:
    training = Training()
    training.step()
    with snapshots(training.objects) as (snapshotter, memory):
        with copying(snapshotter) as copy:
            writes(training.model.embed.weight)
            held.set()
            assert not snapshotter.finish(copy)
        assert copy.changed == "model.embed.weight"
        assert state_of(memory) is ArenaState.FREE

        held.clear()
        before = values(training.objects)
        with copying(snapshotter) as copy:
            writes(training.model.embed.weight)
            held.set()
            assert snapshotter.finish(copy)
        assert differing(before, stored(memory)) == []


def test_what_the_copier_meets_is_raised_and_the_arena_is_free_again(monkeypatch: pytest.MonkeyPatch) -> None:
    training = Training()
    training.step()

    def fails(_: Mover) -> None:
        raise RuntimeError("the memory is gone")

    monkeypatch.setattr(Mover, "move", fails)
    with snapshots(training.objects) as (snapshotter, memory), copying(snapshotter) as copy:
        with pytest.raises(RuntimeError, match="the memory is gone"):
            snapshotter.finish(copy)
        assert state_of(memory) is ArenaState.FREE


def test_parameters_optimizer_state_and_a_frozen_base_rest_and_buffers_do_not() -> None:
    training = Training()
    frozen = nn.Linear(3, 3).requires_grad_(False)
    training.step()
    at_rest = resting(training.objects | {"base": frozen}).pointers
    weight = training.model.embed.weight
    mine = [weight, frozen.weight, training.optimizer.state[weight]["exp_avg"]]
    assert [tensor.data_ptr() in at_rest for tensor in mine] == [True, True, True]
    running = training.model.norm.running_mean
    assert running is not None
    assert running.data_ptr() not in at_rest


def in_backward(optimizer: torch.optim.Optimizer) -> None:
    optimizer.param_groups[0]["params"][0].register_post_accumulate_grad_hook(lambda _: None)


def captured_in_a_graph(optimizer: torch.optim.Optimizer) -> None:
    optimizer.param_groups[0]["capturable"] = True


def replaced(optimizer: torch.optim.Optimizer) -> None:
    optimizer.step = lambda closure=None: closure  # type: ignore[method-assign]


@pytest.mark.parametrize(
    ("spoil", "why"),
    [(in_backward, "backward"), (captured_in_a_graph, "graph"), (replaced, "replaced")],
)
def test_where_an_optimizer_cannot_wait_nothing_rests(spoil: Callable[[torch.optim.Optimizer], None], why: str) -> None:
    training = Training()
    training.step()
    spoil(training.optimizer)
    found = resting(training.objects)
    assert found.pointers == frozenset()
    assert why in found.why


def test_without_an_optimizer_nothing_rests() -> None:
    assert resting({"model": nn.Linear(2, 2)}).why == "no optimizer is tracked"


@pytest.mark.parametrize("has_call", [True, False])
def test_pieces_of_every_size_are_moved_and_nothing_beside_them(
    has_call: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if not has_call:
        monkeypatch.setattr(memcopy, "_READ", None)
    lengths = [0, 1, 7, 64, 4096, 256 * 1024, 700_001, *([3] * 2100)]
    sources = [torch.randint(0, 256, (length,), dtype=torch.uint8) for length in lengths]
    gap = 5
    target = torch.zeros(sum(lengths) + gap * len(lengths), dtype=torch.uint8)
    expected, at, pieces = target.clone(), 0, []
    for source in sources:
        pieces.append(Piece(target.data_ptr() + at, source.data_ptr(), source.numel()))
        expected[at : at + source.numel()] = source
        at += source.numel() + gap
    mover = Mover(pieces)
    before = mover.sample()
    mover.move()
    assert torch.equal(target, expected)
    assert mover.differs(before, mover.sample()) is None
    ctypes.memset(sources[6].data_ptr() + 512 * 1024, int(raw(sources[6])[512 * 1024]) ^ 255, 1)
    assert mover.differs(before, mover.sample()) == 6


def test_a_compiled_model_is_copied_behind_the_loop_and_a_compiled_step_is_not(held: threading.Event) -> None:
    training = Training()
    compiled = torch.compile(training.model, backend="eager")
    objects: dict[str, object] = {"model": compiled, "optimizer": training.optimizer}
    compiled(torch.arange(8)).sum().backward()
    training.optimizer.step()
    with snapshots(objects) as (snapshotter, memory):
        before = values(objects)
        with copying(snapshotter) as copy:
            compiled(torch.arange(8)).sum().backward()
            assert not copy.is_over.is_set()
            held.set()
            assert snapshotter.finish(copy)
        assert differing(before, stored(memory)) == []
        assert "model.embed.weight" in before  # no `_orig_mod` in a name
        training.optimizer.step = torch.compile(training.optimizer.step, backend="eager")  # type: ignore[method-assign]
        assert "replaced" in resting(objects).why

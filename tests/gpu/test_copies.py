"""A snapshot of GPU state: registered memory, a side stream, the step held back on the GPU and not on the host."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from spotproof.checkpoint.dcp import payload_views
from spotproof.checkpoint.hostmemory import Registration
from spotproof.checkpoint.overlap import cannot_rest, resting
from spotproof.checkpoint.snapshot import Snapshotter
from spotproof.checkpoint.state import capture
from tests.fakes.training import Memory, same_bits, snapshots

pytestmark = pytest.mark.torch
WIDTH = 1024
SLEEP_CYCLES = 500_000_000  # a quarter of a second or more on any GPU

Optimizers = dict[str, Callable[[nn.Module], torch.optim.Optimizer]]
OPTIMIZERS: Optimizers = {
    "plain": lambda model: torch.optim.AdamW(model.parameters(), foreach=False),
    "foreach": lambda model: torch.optim.AdamW(model.parameters(), foreach=True),
    "fused": lambda model: torch.optim.AdamW(model.parameters(), fused=True),
    "sgd": lambda model: torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9),
}


class Training:
    """A few layers on the GPU, after a real step."""

    def __init__(self, name: str, *, layers: int = 4, compiled: bool = False) -> None:
        torch.manual_seed(3)
        self.model: nn.Module = nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(layers))).cuda()
        self.optimizer = OPTIMIZERS[name](self.model)
        self.forward: Callable[[Tensor], Tensor] = torch.compile(self.model) if compiled else self.model
        self.backward()
        self.optimizer.step()
        torch.cuda.synchronize()

    @property
    def objects(self) -> dict[str, object]:
        return {"model": self.model, "optimizer": self.optimizer}

    def backward(self) -> None:
        self.forward(torch.ones(8, WIDTH, device="cuda")).square().mean().backward()

    def values(self) -> dict[str, Tensor]:
        return {key: value.cpu().clone() for key, value in capture(self.objects, counters={}).tensors.items()}


def stored(memory: Memory) -> dict[str, Tensor]:
    return payload_views(memory.plans[-1].layout, bytearray(memory.image()))


def assert_holds(memory: Memory, values: dict[str, Tensor]) -> None:
    found = stored(memory)
    wrong = [key for key, value in values.items() if not key.startswith("rng.") and not same_bits(found[key], value)]
    assert wrong == []


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
@pytest.mark.parametrize("name", sorted(OPTIMIZERS))
def test_the_step_waits_on_the_gpu_and_the_snapshot_has_the_old_values(name: str, compiled: bool) -> None:
    training = Training(name, compiled=compiled)
    with snapshots(training.objects) as (snapshotter, memory):
        snapshotter.save(step=1, generation=1, counters={})
        memory.free()
        before = training.values()
        torch.cuda._sleep(SLEEP_CYCLES)  # the copy cannot begin before this: it stands behind the main stream
        copy = snapshotter.begin(step=2, generation=1, counters={}, then=lambda _: None)
        assert copy is not None
        training.optimizer.register_step_pre_hook(lambda *_: copy.gate())
        for _ in range(2):
            training.backward()
        begun = time.perf_counter()
        training.optimizer.step()
        host_s = time.perf_counter() - begun
        assert snapshotter.finish(copy)
        torch.cuda.synchronize()
        assert host_s < 0.1, "the host waited for the copy"
        assert_holds(memory, before)
        assert "model.0.weight" in [
            key for key, value in training.values().items() if not same_bits(value, before[key])
        ]


def test_the_arena_is_registered_and_let_go_of(monkeypatch: pytest.MonkeyPatch) -> None:
    ended: list[bool] = []
    end = Registration.end

    def noted(self: Registration) -> None:
        ended.append(self.is_done)
        end(self)

    monkeypatch.setattr(Registration, "end", noted)
    training = Training("fused")
    with snapshots(training.objects, arenas=2) as (snapshotter, _):
        snapshotter.save(step=1, generation=1, counters={})
        assert all(payload(snapshotter, index).is_pinned() for index in range(2))
    assert ended == [True, True]


def payload(snapshotter: Snapshotter, index: int) -> Tensor:
    return snapshotter._slots[index].payloads["model.0.weight"]


def test_a_step_that_is_captured_in_a_graph_is_not_copied_behind() -> None:
    training = Training("plain")
    for group in training.optimizer.param_groups:
        group["capturable"] = True
    assert "graph" in cannot_rest(training.objects)
    assert resting(training.objects).pointers == frozenset()


def test_a_snapshot_between_replays_of_a_captured_step_is_whole() -> None:
    model = nn.Linear(WIDTH, WIDTH).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), capturable=True)
    batch = torch.ones(8, WIDTH, device="cuda")

    def step() -> None:
        optimizer.zero_grad(set_to_none=False)
        model(batch).square().mean().backward()
        optimizer.step()

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    objects: dict[str, object] = {"model": model, "optimizer": optimizer}
    with snapshots(objects) as (snapshotter, memory):
        for number in range(1, 4):
            graph.replay()
            torch.cuda.synchronize()
            before = {key: value.cpu().clone() for key, value in capture(objects, counters={}).tensors.items()}
            copy = snapshotter.begin(step=number, generation=1, counters={}, then=lambda _: None)
            assert copy is not None
            graph.replay()  # at once: nothing of the snapshot may come from it
            assert snapshotter.finish(copy)
            assert_holds(memory, before)
            memory.free()


def test_a_copy_runs_at_the_speed_of_the_link() -> None:
    """What a save takes beside a copy of as many bytes into memory that torch pins, in turns."""
    training = Training("fused", layers=64)  # 0.8 GB with its moments
    size = sum(
        value.numel() * value.element_size() for value in capture(training.objects, counters={}).tensors.values()
    )
    source = torch.empty(size, dtype=torch.uint8, device="cuda")
    target = torch.empty(size, dtype=torch.uint8, pin_memory=True)
    ratios, stalls = [], []
    with snapshots(training.objects) as (snapshotter, memory):
        snapshotter.save(step=1, generation=1, counters={})
        memory.free()
        for number in range(2, 9):
            begun = time.perf_counter()
            target.copy_(source, non_blocking=True)
            torch.cuda.synchronize()
            link_s = time.perf_counter() - begun
            begun = time.perf_counter()
            copy = snapshotter.begin(step=number, generation=1, counters={}, then=lambda _: None)
            assert copy is not None
            stalls.append((time.perf_counter() - begun) / link_s)
            assert snapshotter.finish(copy)
            ratios.append((time.perf_counter() - begun) / link_s)
            memory.free()
    ratio, stall = sorted(ratios)[len(ratios) // 2], sorted(stalls)[len(stalls) // 2]
    print(f"gpu: {size / 1e9:.2f} GB, copy {ratio:.2f} and stall {stall:.2f} of a pinned copy over the link")
    assert ratio <= 1.25
    assert stall <= 0.5

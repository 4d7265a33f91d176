"""Whatever torch has to be tracked goes on bit-equal: every optimizer and schedule, scaler, averages, generators."""

from __future__ import annotations

import random
import warnings
from collections import Counter, deque
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.optim import lr_scheduler as schedules
from torch.optim.swa_utils import SWALR, AveragedModel, get_ema_multi_avg_fn

from spotproof.errors import MismatchedState
from tests.fakes.training import Box, store

OPTIMIZERS = [
    name
    for name, kind in vars(torch.optim).items()
    if isinstance(kind, type) and issubclass(kind, torch.optim.Optimizer) and name not in {"Optimizer", "SparseAdam"}
]


def made(name: str, seed: int) -> tuple[nn.Sequential, torch.optim.Optimizer]:
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 2))
    chosen = [parameter for parameter in model.parameters() if name != "Muon" or parameter.dim() == 2]
    return model, getattr(torch.optim, name)(chosen, lr=0.01)


def learn(model: nn.Module, optimizer: torch.optim.Optimizer, number: float) -> None:
    def closure() -> Tensor:
        optimizer.zero_grad()
        loss: Tensor = model(torch.full((2, 4), float(number))).pow(2).sum()
        loss.backward()
        return loss

    if isinstance(optimizer, torch.optim.LBFGS):
        optimizer.step(closure)
    else:
        closure()
        optimizer.step()


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_every_optimizer_of_torch_goes_on_bit_equal(name: str) -> None:
    model, optimizer = made(name, 1)
    for number in range(3):
        learn(model, optimizer, number)
    stored = store({"model": model, "optimizer": optimizer})
    other, its_optimizer = made(name, 2)
    stored.load({"model": other, "optimizer": its_optimizer})
    for number in range(3):
        learn(model, optimizer, number + 1)
        learn(other, its_optimizer, number + 1)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), other.parameters(), strict=True))


SCHEDULES: dict[str, Callable[[Any], Any]] = {
    "LambdaLR": lambda o: schedules.LambdaLR(o, lambda epoch: 0.9**epoch),
    "MultiplicativeLR": lambda o: schedules.MultiplicativeLR(o, lambda _: 0.9),
    "StepLR": lambda o: schedules.StepLR(o, 2),
    "MultiStepLR": lambda o: schedules.MultiStepLR(o, [2, 4, 4]),
    "ConstantLR": schedules.ConstantLR,
    "LinearLR": schedules.LinearLR,
    "ExponentialLR": lambda o: schedules.ExponentialLR(o, 0.9),
    "PolynomialLR": schedules.PolynomialLR,
    "CosineAnnealingLR": lambda o: schedules.CosineAnnealingLR(o, 10),
    "CosineAnnealingWarmRestarts": lambda o: schedules.CosineAnnealingWarmRestarts(o, 3),
    "CyclicLR": lambda o: schedules.CyclicLR(o, 0.01, 0.1),
    "OneCycleLR": lambda o: schedules.OneCycleLR(o, 0.1, total_steps=20),
    "ReduceLROnPlateau": lambda o: schedules.ReduceLROnPlateau(o, patience=1),
    "SequentialLR": lambda o: schedules.SequentialLR(
        o, [schedules.LinearLR(o), schedules.ExponentialLR(o, 0.9)], milestones=[2]
    ),
    "ChainedScheduler": lambda o: schedules.ChainedScheduler([schedules.LinearLR(o), schedules.ExponentialLR(o, 0.9)]),
    "SWALR": lambda o: SWALR(o, 0.05),
}


@pytest.mark.parametrize("name", SCHEDULES)
@pytest.mark.filterwarnings("ignore::UserWarning")  # schedules warn of orders that do not matter here
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_every_schedule_of_torch_goes_on_with_the_same_rates(name: str) -> None:
    def fresh() -> dict[str, Any]:
        model = nn.Linear(1, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        return {"model": model, "optimizer": optimizer, "schedule": SCHEDULES[name](optimizer)}

    def rates(tracked: dict[str, Any], steps: int) -> list[float]:
        found = []
        for _ in range(steps):
            tracked["optimizer"].step()
            tracked["schedule"].step(*([1.0] if name == "ReduceLROnPlateau" else []))
            found.append(tracked["optimizer"].param_groups[0]["lr"])
        return found

    tracked, other = fresh(), fresh()
    rates(tracked, 3)
    store(tracked).load(other)
    assert rates(other, 5) == rates(tracked, 5)


def test_a_gradient_scaler_comes_back() -> None:
    scaler, other = torch.amp.GradScaler("cpu", init_scale=8.0), torch.amp.GradScaler("cpu")
    scaler.scale(torch.ones(1))
    scaler.update(4.0)
    store({"scaler": scaler}).load({"scaler": other})
    assert other.state_dict() == scaler.state_dict()


def test_an_average_of_the_weights_comes_back_with_its_count() -> None:
    model, optimizer = made("SGD", 1)
    average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9))
    for number in range(3):
        learn(model, optimizer, number)
        average.update_parameters(model)
    other_model, other_optimizer = made("SGD", 2)
    other = AveragedModel(other_model, multi_avg_fn=get_ema_multi_avg_fn(0.9))
    objects = {"model": other_model, "optimizer": other_optimizer, "ema": other}
    store({"model": model, "optimizer": optimizer, "ema": average}).load(objects)
    other.update_parameters(other_model)
    average.update_parameters(model)
    mine, theirs = average.state_dict(), other.state_dict()
    assert all(torch.equal(mine[key], theirs[key]) for key in mine)


DRAWS: dict[str, tuple[Callable[[int], Any], Callable[[Any], Any]]] = {
    "torch": (lambda seed: torch.Generator().manual_seed(seed), lambda g: torch.rand(3, generator=g).tolist()),
    "python": (random.Random, lambda g: [g.random(), g.gauss(0, 1)]),
    "numpy": (np.random.default_rng, lambda g: g.normal(size=3).tolist()),
    "philox": (lambda seed: np.random.Generator(np.random.Philox(seed)), lambda g: g.normal(size=3).tolist()),
    "mt19937": (lambda seed: np.random.Generator(np.random.MT19937(seed)), lambda g: g.normal(size=3).tolist()),
    "legacy": (np.random.RandomState, lambda g: g.normal(size=3).tolist()),
}


@pytest.mark.parametrize("kind", DRAWS)
def test_a_generator_of_ones_own_draws_on_as_if_nothing_had_been(kind: str) -> None:
    make, draw = DRAWS[kind]
    generator, other = make(1), make(2)
    draw(generator)
    stored = store({"generator": generator})
    expected = [draw(generator) for _ in range(10)]
    stored.load({"generator": other})
    assert [draw(other) for _ in range(10)] == expected


def test_a_generator_of_another_kind_is_refused() -> None:
    stored = store({"generator": np.random.default_rng(1)})
    with pytest.raises(MismatchedState, match="a generator of numpy was saved, here is torch"):
        stored.load({"generator": torch.Generator()})
    with pytest.raises(MismatchedState, match="a PCG64 was saved, here is a Philox"):
        stored.load({"generator": np.random.Generator(np.random.Philox(1))})


def test_counters_and_windows_keep_their_types() -> None:
    box = Box({"seen": Counter("abca"), "window": deque([1.0, 2.0], maxlen=2), "queue": deque()})
    other = Box({})
    store({"box": box}).load({"box": other})
    assert other.state == box.state
    window: Any = other.state["window"]
    assert (type(other.state["seen"]), window.maxlen, other.state["queue"]) == (Counter, 2, deque())


@pytest.mark.parametrize("compiled", [True, False])
def test_frozen_and_unused_parameters_come_back_too(compiled: bool) -> None:
    model, _ = made("SGD", 1)
    next(model.parameters()).requires_grad_(False)
    optimizer = torch.optim.AdamW([one for one in model.parameters() if one.requires_grad], lr=0.1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        wrapped = torch.compile(model, backend="eager") if compiled else model
    learn(model, optimizer, 1.0)
    other, _ = made("SGD", 2)
    next(other.parameters()).requires_grad_(False)
    its = torch.optim.AdamW([one for one in other.parameters() if one.requires_grad], lr=0.1)
    store({"model": wrapped, "optimizer": optimizer}).load({"model": other, "optimizer": its})
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), other.parameters(), strict=True))

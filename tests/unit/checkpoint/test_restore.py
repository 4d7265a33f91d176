from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from spotproof.errors import BadManifest, Damaged, MismatchedState
from tests.fakes.training import Box, Net, Stored, Training, same_bits, store

pytestmark = pytest.mark.torch


def test_training_goes_on_bit_equal_in_a_fresh_process_state() -> None:
    whole = Training()
    for _ in range(20):
        whole.step()

    first = Training()
    for _ in range(9):
        first.step()
    stored = store(first.objects, step=9, samples=72)

    second = Training(seed=99)
    restored = stored.load(second.objects)
    assert restored.counters == {"samples": 72, "step": 9, "generation": 1}
    second.losses = first.losses[:9]
    for _ in range(11):
        second.step()
    assert second.losses == whole.losses
    for one, other in zip(second.model.state_dict().values(), whole.model.state_dict().values(), strict=True):
        assert same_bits(one, other)


def test_parameters_are_written_in_place() -> None:
    training = Training()
    stored = store(training.objects)
    target = Training(seed=1)
    pointers = [parameter.data_ptr() for parameter in target.model.parameters()]
    stored.load(target.objects)
    assert [parameter.data_ptr() for parameter in target.model.parameters()] == pointers


def test_nothing_in_memory_refers_to_the_image_afterwards() -> None:
    training = Training()
    training.step()
    stored = store({**training.objects, "box": Box({"t": torch.ones(3)})})
    target = Training(seed=1)
    box = Box({})
    stored.load({**target.objects, "box": box})  # it unmaps the image: what referred to it would raise BufferError
    assert isinstance(box.state["t"], Tensor)
    assert torch.equal(box.state["t"], torch.ones(3))


def test_optimizer_parameters_are_matched_by_name_whatever_their_order() -> None:
    net = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 4))
    optimizer = torch.optim.AdamW(net.parameters())
    net(torch.rand(1, 2)).sum().backward()
    optimizer.step()
    stored = store({"model": net, "optimizer": optimizer})

    other = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 4))
    backwards = torch.optim.AdamW(list(other.parameters())[::-1])
    stored.load({"model": other, "optimizer": backwards})
    for name, parameter in net.named_parameters():
        mine = backwards.state[dict(other.named_parameters())[name]]
        assert torch.equal(mine["exp_avg"], optimizer.state[parameter]["exp_avg"])


def test_optimizer_state_of_another_dtype_than_its_parameter_stays_so() -> None:
    net = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(net.parameters(), momentum=0.9, lr=0.1)
    optimizer.state[net.weight]["momentum_buffer"] = torch.rand(2, 2).to(torch.bfloat16)
    stored = store({"model": net, "optimizer": optimizer})
    other = nn.Linear(2, 2)
    target = torch.optim.SGD(other.parameters(), momentum=0.9, lr=0.1)
    stored.load({"model": other, "optimizer": target})
    assert same_bits(target.state[other.weight]["momentum_buffer"], optimizer.state[net.weight]["momentum_buffer"])


@pytest.mark.parametrize(("dtype", "is_fused"), [(torch.float32, True), (torch.bfloat16, False)])
def test_optimizer_state_lies_in_memory_as_its_parameter_does(dtype: torch.dtype, is_fused: bool) -> None:
    def make() -> tuple[nn.Module, torch.optim.Optimizer]:
        torch.manual_seed(3)
        net = nn.Conv2d(3, 4, 3, dtype=dtype)
        net.weight.data = net.weight.data.contiguous(memory_format=torch.channels_last)
        return net, torch.optim.AdamW(net.parameters(), lr=0.01, fused=is_fused)

    def learn(net: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        optimizer.zero_grad()
        net(torch.randn(2, 3, 8, 8, dtype=dtype)).pow(2).mean().backward()
        optimizer.step()

    net, optimizer = make()
    learn(net, optimizer)
    stored = store({"model": net, "optimizer": optimizer})
    for _ in range(3):
        learn(net, optimizer)
    other, target = make()
    stored.load({"model": other, "optimizer": target})
    for _ in range(3):
        learn(other, target)
    for one, another in zip(net.parameters(), other.parameters(), strict=True):
        assert same_bits(one, another)


def two_groups() -> tuple[nn.Linear, torch.optim.Optimizer]:
    net = nn.Linear(2, 2)
    groups: list[dict[str, Any]] = [{"params": [net.weight]}, {"params": [net.bias], "lr": 0.5}]
    return net, torch.optim.SGD(groups, lr=0.1)


def test_parameters_that_changed_their_group_are_an_error_that_names_them() -> None:
    net, optimizer = two_groups()
    stored = store({"model": net, "optimizer": optimizer})
    other = nn.Linear(2, 2)
    groups: list[dict[str, Any]] = [{"params": [other.bias]}, {"params": [other.weight]}]
    swapped = torch.optim.SGD(groups, lr=0.1)
    with pytest.raises(MismatchedState, match=r"optimizer.param_groups.0: .*bias.*weight"):
        stored.load({"model": other, "optimizer": swapped})
    with pytest.raises(MismatchedState, match="2 parameter groups in the checkpoint, 1 here"):
        stored.load({"model": other, "optimizer": torch.optim.SGD(other.parameters(), lr=0.1)})


@pytest.mark.parametrize(
    ("objects", "message"),
    [
        ({"model": nn.Linear(2, 4)}, r"model.weight: shape \(3, 2\) in the checkpoint, \(4, 2\) here"),
        ({"model": nn.Linear(2, 3, bias=False)}, r"model: .*not here \[bias\]"),
        ({"model": nn.Sequential(nn.Linear(2, 3))}, r"not in the checkpoint \[0.bias; 0.weight\]"),
        ({"model": nn.Linear(2, 3), "ema": Box({})}, r"tracked objects: not in the checkpoint \[ema\]"),
        ({}, r"tracked objects: .*not here \[model\]"),
        ({"model": nn.Linear(2, 3).double()}, "model.weight: float32 in the checkpoint, float64 here"),
    ],
    ids=["shape", "extra", "missing", "object", "no object", "dtype"],
)
def test_what_does_not_fit_is_named_and_nothing_changes(objects: dict[str, object], message: str) -> None:
    stored = store({"model": nn.Linear(2, 3)})
    model = objects.get("model")
    before = {key: value.clone() for key, value in model.state_dict().items()} if isinstance(model, nn.Module) else {}
    with pytest.raises(MismatchedState, match=message):
        stored.load(objects)
    after = model.state_dict() if isinstance(model, nn.Module) else {}
    assert all(torch.equal(before[key], after[key]) for key in before)


def test_an_object_that_changed_its_kind_is_an_error() -> None:
    stored = store({"model": Box({"weight": torch.ones(1)})})
    with pytest.raises(MismatchedState, match="it was a object when it was saved and is a module now"):
        stored.load({"model": nn.Linear(1, 1)})


def test_an_expanded_buffer_comes_back() -> None:
    net = nn.Module()
    net.register_buffer("scale", torch.tensor([[2.0], [3.0]]).expand(2, 4))
    stored = store({"model": net})
    other = nn.Module()
    other.register_buffer("scale", torch.zeros(2, 1).expand(2, 4))
    stored.load({"model": other})
    assert torch.equal(other.get_buffer("scale"), net.get_buffer("scale"))


class Versioned(nn.Module):
    _version = 3

    def __init__(self) -> None:
        super().__init__()
        self.extra = 0
        self.seen: object = None

    def get_extra_state(self) -> dict[str, object]:
        return {"extra": self.extra, "t": torch.full((2,), self.extra)}

    def set_extra_state(self, state: object) -> None:
        assert isinstance(state, dict)
        self.extra = state["extra"]

    def _load_from_state_dict(
        self, state: object, prefix: str, local_metadata: dict[str, object], *rest: object
    ) -> None:
        self.seen = local_metadata.get("version")
        super()._load_from_state_dict(state, prefix, local_metadata, *rest)


def test_a_modules_extra_state_and_version_come_back() -> None:
    net = Versioned()
    net.extra = 5
    stored = store({"model": nn.Sequential(net)})
    other = Versioned()
    stored.load({"model": nn.Sequential(other)})
    assert (other.extra, other.seen) == (5, 3)


def test_the_image_of_another_step_is_damage() -> None:
    stored = store({"model": nn.Linear(1, 1)}, step=4)
    with pytest.raises(Damaged, match="checkpoint of step 5 holds the state of step 4"):
        Stored(image=stored.image, plan=stored.plan, step=5).load({"model": nn.Linear(1, 1)})


def test_an_image_without_a_state_document_is_refused() -> None:
    stored = store({"model": nn.Linear(1, 1)})
    entry = stored.plan.layout.tensors[-1]
    blank = stored.image[: entry.offset] + bytes(entry.bytes) + stored.image[entry.offset + entry.bytes :]
    with pytest.raises(BadManifest, match="not JSON"):
        Stored(image=blank, plan=stored.plan, step=1).load({"model": nn.Linear(1, 1)})


def test_tied_weights_stay_tied() -> None:
    stored = store({"model": Net()})
    other = Net()
    stored.load({"model": other})
    assert other.head.weight.data_ptr() == other.embed.weight.data_ptr()

"""What is kept from save to save never shows: the answer is that of a capture from scratch, whatever was changed."""

from __future__ import annotations

import weakref
from collections.abc import Callable

import pytest
import torch
from torch import nn

from spotproof.checkpoint.dcp import payload_views
from spotproof.checkpoint.keeping import Keeper
from spotproof.checkpoint.state import Captured, capture, encode_object
from spotproof.errors import UnstorableState
from tests.fakes.training import Box, Net, Training, same_bits, snapshots

pytestmark = pytest.mark.torch


class Lived(Training):
    """With everything that can be changed about it, after a real step."""

    def __init__(self) -> None:
        super().__init__()
        self.frozen = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2)).requires_grad_(False)
        self.box = Box({"seen": 0, "sum": torch.zeros(3)})
        self.step()

    @property
    def objects(self) -> dict[str, object]:
        first = {"frozen": self.frozen, "box": self.box}
        return first | super().objects


def assert_same(one: Captured, other: Captured) -> None:
    assert one.document == other.document
    assert list(one.tensors) == list(other.tensors)
    assert dict(one.aliases) == dict(other.aliases)
    for key, tensor in one.tensors.items():
        assert same_bits(tensor, other.tensors[key]), key
        assert key.startswith("rng.") or tensor.data_ptr() == other.tensors[key].data_ptr(), key


def test_a_second_capture_is_the_same_plan_and_takes_no_plain_object_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    lived = Lived()
    keeper = Keeper(lived.objects)
    first = keeper.capture(counters={"step": 1})
    apart: list[str] = []

    def noted(name: str, *rest: object) -> object:
        apart.append(name)
        return encode_object(name, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr("spotproof.checkpoint.keeping.encode_object", noted)
    lived.step()
    lived.box.state["seen"] = 77
    second = keeper.capture(counters={"step": 2})
    assert apart == ["box", "scheduler"]
    assert second.plan is first.plan
    assert second.plan is not None
    assert_same(second, capture(lived.objects, counters={"step": 2}))


Change = Callable[[Lived], object]


def swap_data(lived: Lived) -> None:
    lived.model.embed.weight.data = lived.model.embed.weight.detach().clone()


def swap_parameter(lived: Lived) -> None:
    linear = lived.frozen[0]
    assert isinstance(linear, nn.Linear)
    linear.weight = nn.Parameter(torch.full((4, 4), 9.0), requires_grad=False)


def swap_for_equal_memory(lived: Lived) -> None:
    """The same bytes at the same address in another form."""
    norm = lived.model.norm
    norm.running_mean = norm.running_mean.view(2, 3)  # type: ignore[union-attr]


def turn(lived: Lived) -> None:
    linear = lived.frozen[0]
    assert isinstance(linear, nn.Linear)
    linear.weight.data = linear.weight.data.t()


def negate(lived: Lived) -> None:
    linear = lived.frozen[0]
    assert isinstance(linear, nn.Linear)
    linear.weight.data = torch._neg_view(linear.weight.data)


def swap_moment(lived: Lived) -> None:
    state = lived.optimizer.state[lived.model.embed.weight]
    state["exp_avg"] = state["exp_avg"].clone()


def load_optimizer(lived: Lived) -> None:
    lived.optimizer.load_state_dict(lived.optimizer.state_dict())


def another_module_of_the_same_memory(lived: Lived) -> None:
    lived.frozen[1] = nn.Identity()


def rename(lived: Lived) -> None:
    lived.frozen.add_module("last", lived.frozen[2])
    del lived.frozen._modules["2"]


def hook(lived: Lived) -> None:
    lived.model.register_state_dict_post_hook(  # type: ignore[no-untyped-call]
        lambda module, state, prefix, meta: state.update({f"{prefix}extra": 5})
    )


def own_state_dict(lived: Lived) -> None:
    lived.optimizer.register_state_dict_post_hook(lambda _, state: {**state, "note": "mine"})


def use_values_before_the_kept(lived: Lived) -> None:
    lived.box.state["sum"] = lived.model.embed.weight.detach()


def untie(lived: Lived) -> None:
    lived.model.head.weight = nn.Parameter(lived.model.head.weight.detach().clone())


CHANGES: dict[str, Change] = {
    change.__name__: change
    for change in (
        swap_data,
        swap_parameter,
        swap_for_equal_memory,
        turn,
        negate,
        swap_moment,
        load_optimizer,
        another_module_of_the_same_memory,
        rename,
        hook,
        own_state_dict,
        use_values_before_the_kept,
        untie,
    )
}
CHANGES |= {
    "half": lambda lived: lived.frozen.half(),
    "double in place": lambda lived: lived.frozen.double(),
    "write in place": lambda lived: lived.model.embed.weight.data.add_(1),
    "add a buffer": lambda lived: lived.model.register_buffer("more", torch.ones(2)),
    "a buffer that is not stored": lambda lived: lived.model.register_buffer("no", torch.ones(2), persistent=False),
    "hide a buffer": lambda lived: lived.model.norm._non_persistent_buffers_set.add("running_var"),
    "add a parameter": lambda lived: lived.model.register_parameter("more", nn.Parameter(torch.ones(2))),
    "remove a bias": lambda lived: lived.frozen[2].register_parameter("bias", None),
    "add a group": lambda lived: lived.optimizer.add_param_group({"params": [lived.frozen[0].weight], "lr": 0.5}),
    "another rate": lambda lived: lived.optimizer.param_groups[0].update(lr=0.123),
    "a rate that is a tensor": lambda lived: lived.optimizer.param_groups[0].update(lr=torch.tensor(0.5)),
    "a number in a group": lambda lived: lived.optimizer.param_groups[0].update({"$odd": 3}),
    "an empty state": lambda lived: lived.optimizer.state.clear(),
    "a moment that is None": lambda lived: lived.optimizer.state[lived.model.embed.weight].update(exp_avg=None),
    "a step that is a number": lambda lived: lived.optimizer.state[lived.model.embed.weight].update(step=7),
    "a state for one more": lambda lived: lived.optimizer.state[lived.model.embed.weight].update(z=torch.ones(1)),
    "the box grows": lambda lived: lived.box.state.update(more=torch.zeros(2)),
    "the box's tensor takes another form": lambda lived: lived.box.state.update(sum=torch.zeros(4)),
    "nothing": lambda lived: None,
}


@pytest.mark.parametrize("name", sorted(CHANGES))
def test_whatever_changes_between_two_saves_the_capture_is_that_from_scratch(name: str) -> None:
    lived = Lived()
    keeper = Keeper(lived.objects)
    for _ in range(2):
        keeper.capture(counters={})
    CHANGES[name](lived)
    for _ in range(3):
        assert_same(keeper.capture(counters={}), capture(lived.objects, counters={}))


STAYS = {"nothing", "another rate", "write in place", "load_optimizer"}
MOVED = sorted(CHANGES.keys() - STAYS)


@pytest.mark.parametrize("name", MOVED)
def test_a_change_of_names_forms_or_places_is_another_plan(name: str) -> None:
    lived = Lived()
    keeper = Keeper(lived.objects)
    keeper.capture(counters={})
    plan = keeper.capture(counters={}).plan
    CHANGES[name](lived)
    assert keeper.capture(counters={}).plan is not plan


@pytest.mark.parametrize("name", sorted(CHANGES))
def test_a_save_after_a_change_holds_the_values_of_its_moment(name: str) -> None:
    lived = Lived()
    with snapshots(lived.objects) as (snapshotter, memory):
        for change in (CHANGES["nothing"], CHANGES[name], lambda lived: lived.box.state.update(seen=8)):
            change(lived)
            expected = capture(lived.objects, counters={})
            copy = snapshotter.begin(step=1, generation=1, counters={}, then=lambda _: None)
            assert copy is not None
            assert snapshotter.finish(copy)
            stored = payload_views(memory.plans[-1].layout, bytearray(memory.image()))
            for key, tensor in expected.tensors.items():
                assert same_bits(stored[key], tensor), key
            memory.free()


def test_what_stood_on_a_kept_tensor_is_no_longer_kept_once_it_is_gone() -> None:
    one, two = Net(), Net()
    two.embed.weight = one.embed.weight
    objects: dict[str, object] = {"one": one, "two": two}
    keeper = Keeper(objects)
    assert "two.embed.weight" in keeper.capture(counters={}).aliases
    one.embed.weight = nn.Parameter(one.embed.weight.detach().clone())
    one.head.weight = one.embed.weight
    captured = keeper.capture(counters={})
    assert_same(captured, capture(objects, counters={}))
    assert "two.embed.weight" in captured.tensors


def test_what_cannot_be_stored_is_refused_and_the_next_capture_is_good() -> None:
    lived = Lived()
    keeper = Keeper(lived.objects)
    keeper.capture(counters={})
    lived.optimizer.param_groups[0]["why"] = object()
    with pytest.raises(UnstorableState, match=r"optimizer\.param_groups\.0\.why"):
        keeper.capture(counters={})
    del lived.optimizer.param_groups[0]["why"]
    assert_same(keeper.capture(counters={}), capture(lived.objects, counters={}))


def test_nothing_that_is_kept_keeps_a_tensor_alive() -> None:
    lived = Lived()
    keeper = Keeper(lived.objects)
    keeper.capture(counters={})
    keeper.capture(counters={})
    gone = weakref.ref(lived.optimizer.state[lived.model.embed.weight]["exp_avg"])
    lived.optimizer.state.clear()
    assert gone() is None

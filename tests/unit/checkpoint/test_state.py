from __future__ import annotations

import json

import pytest
import torch
from torch import nn

from spotproof.checkpoint.state import canonical_name, capture, optimizer_names
from spotproof.errors import UnstorableState
from tests.fakes.training import Box, Net, Training

pytestmark = pytest.mark.torch


def test_tensors_are_the_live_ones_and_tied_weights_are_one() -> None:
    net = Net()
    captured = capture({"model": net}, counters={})
    assert captured.tensors["model.embed.weight"].data_ptr() == net.embed.weight.data_ptr()
    assert captured.aliases == {"model.head.weight": "model.embed.weight"}
    assert "model.head.weight" not in captured.tensors


def test_optimizer_state_is_named_by_parameter() -> None:
    training = Training()
    training.step()
    captured = capture(training.objects, counters={})
    assert "optimizer.state.norm.bias.exp_avg" in captured.tensors
    groups = json.loads(captured.document)["objects"]["optimizer"]["groups"]
    assert groups[0]["params"] == ["embed.weight", "norm.weight", "norm.bias"]


def test_with_two_trained_modules_the_modules_name_comes_first() -> None:
    one, two = nn.Linear(1, 1), nn.Linear(1, 1)
    optimizer = torch.optim.SGD([one.weight, two.weight])
    assert optimizer_names("o", optimizer, {"a": one, "b": two}) == ["a.weight", "b.weight"]
    assert optimizer_names("o", torch.optim.SGD([two.weight]), {"a": one, "b": two}) == ["weight"]


def test_a_parameter_of_no_tracked_module_is_refused() -> None:
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))])
    with pytest.raises(UnstorableState, match="track the module that owns it") as refused:
        capture({"optimizer": optimizer}, counters={})
    assert refused.value.path == "optimizer.param_groups.0.params.0"


def test_wrappers_do_not_show_in_names() -> None:
    inner = nn.Sequential(nn.Linear(2, 2))
    compiled = nn.Module()  # what torch.compile returns looks like this, and takes seconds to import
    compiled._orig_mod = inner
    assert [canonical_name(compiled, key) for key in compiled.state_dict()] == ["0.weight", "0.bias"]
    parallel = nn.DataParallel(inner)
    assert [canonical_name(parallel, key) for key in parallel.state_dict()] == ["0.weight", "0.bias"]


def test_a_users_own_submodule_called_module_keeps_its_name() -> None:
    net = nn.Module()
    net.module = nn.Linear(1, 1)
    assert canonical_name(net, "module.weight") == "module.weight"


@pytest.mark.parametrize(
    ("state", "path", "why"),
    [
        ({"a": [torch.zeros(1), torch.zeros(1).to_sparse()]}, "box.a.1", "plain strided"),
        ({"a": torch.zeros(1, device="meta")}, "box.a", "meta device"),
        ({"a": {"b": nn.Linear(1, 1)}}, "box.a.b", "Linear"),
        ({"g": torch.Generator()}, "box.g", "Generator"),
    ],
    ids=["sparse", "meta", "module", "generator"],
)
def test_what_cannot_be_stored_is_refused_by_its_path(state: dict[str, object], path: str, why: str) -> None:
    with pytest.raises(UnstorableState, match=why) as refused:
        capture({"box": Box(state)}, counters={})
    assert refused.value.path == path


def test_an_object_without_state_is_refused() -> None:
    with pytest.raises(UnstorableState, match=r"no state_dict\(\)"):
        capture({"thing": object()}, counters={})


def test_two_values_of_one_name_are_refused() -> None:
    with pytest.raises(UnstorableState, match="this one path"):
        capture({"box": Box({"a.b": torch.zeros(1), "a": {"b": torch.ones(1)}})}, counters={})


def test_capturing_changes_nothing() -> None:
    one, other = Training(), Training()
    generator = torch.get_rng_state()
    capture(one.objects, counters={"x": 1})
    assert torch.equal(generator, torch.get_rng_state())
    assert one.optimizer.state_dict()["state"] == other.optimizer.state_dict()["state"] == {}

"""Images that are whole and of no use."""

from __future__ import annotations

import math
import random
import struct

import pytest
import torch

from spotproof.checkpoint.sanity import check_state
from spotproof.contract.layout import Layout, TensorEntry
from spotproof.errors import BadManifest, Damaged
from tests.fakes.training import Stored, Training, store


def stored(training: Training, *, step: int = 4) -> Stored:
    return store(training.objects, step=step)


def looked_at(one: Stored, *, step: int = 4) -> None:
    check_state(memoryview(one.image), one.plan.layout, step=step)


def trained(dtype: torch.dtype = torch.float32) -> Training:
    training = Training()
    training.step()
    training.model.to(dtype)
    return training


def test_a_trained_state_is_fit_to_go_on_from() -> None:
    looked_at(stored(trained()))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
def test_nan_in_a_parameter_is_damage_and_named(dtype: torch.dtype) -> None:
    training = trained(dtype)
    with torch.no_grad():
        training.model.norm.bias[-1] = math.nan
    with pytest.raises(Damaged, match=r"model\.norm\.bias holds NaN"):
        looked_at(stored(training))


def test_nan_in_the_optimizers_state_is_damage() -> None:
    training = trained()
    training.optimizer.state[training.model.norm.weight]["exp_avg"].fill_(math.nan)
    with pytest.raises(Damaged, match=r"optimizer\.state\.norm\.weight\.exp_avg holds NaN"):
        looked_at(stored(training))


@pytest.mark.parametrize("value", [math.inf, -math.inf])
def test_what_is_infinite_is_no_damage(value: float) -> None:
    training = trained()
    with torch.no_grad():
        training.model.norm.bias[0] = value
    looked_at(stored(training))


def test_a_buffer_may_be_anything() -> None:
    training = trained()
    assert training.model.norm.running_mean is not None
    training.model.norm.running_mean.fill_(math.nan)
    looked_at(stored(training))


def test_the_state_of_another_step_is_damage() -> None:
    with pytest.raises(Damaged, match="step 5 holds the state of step 4"):
        looked_at(stored(trained()), step=5)


def test_state_that_is_no_json_is_no_state() -> None:
    one = stored(trained())
    entry = next(entry for entry in one.plan.layout.tensors if entry.key == "spotproof.state")
    image = bytearray(one.image)
    image[entry.offset] = 0
    with pytest.raises(BadManifest, match="not JSON"):
        check_state(memoryview(image), one.plan.layout, step=4)


def test_an_image_without_state_is_not_judged() -> None:
    entry = TensorEntry(key="w", dtype="float32", shape=(1,), offset=0, bytes=4)
    check_state(memoryview(struct.pack("<f", math.nan)), Layout(image_bytes=4, tensors=(entry,)), step=1)


def test_random_bits_are_judged_as_torch_does() -> None:
    chance = random.Random(1)
    for _ in range(50):
        training = trained()
        bits = torch.tensor([chance.randrange(-(2**31), 2**31)], dtype=torch.int32).view(torch.float32)
        with torch.no_grad():
            training.model.norm.bias[chance.randrange(6)] = bits[0]
        is_bad = bool(bits.isnan())
        try:
            looked_at(stored(training))
        except Damaged:
            assert is_bad
        else:
            assert not is_bad

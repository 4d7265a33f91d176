"""Where the elements of a tensor lie in memory: the same place for optimizer state, one place for repeated ones."""

from __future__ import annotations

import torch
from torch import Tensor


def like(parameter: Tensor, value: Tensor) -> Tensor:
    """`value` with the strides that an optimizer gives to the state of `parameter`."""
    if value.shape != parameter.shape:
        return value
    made = torch.empty_like(parameter, dtype=value.dtype, device=value.device, requires_grad=False)
    return value if made.stride() == value.stride() else made.copy_(value)


def collapsed(target: Tensor) -> Tensor:
    """`target` with each repeated dimension (stride 0) taken once: it can be written to."""
    for dimension, stride in enumerate(target.stride()):
        if stride == 0:
            target = target.narrow(dimension, 0, 1)
    return target


def narrowed(saved: Tensor, target: Tensor) -> Tensor:
    """`saved` as `collapsed` makes `target`."""
    for dimension, stride in enumerate(target.stride()):
        if stride == 0:
            saved = saved.narrow(dimension, 0, 1)
    return saved

"""DTensors (FSDP2, tensor parallel): each rank's image holds its own part; DCP's planner says where the parts belong.

A part is stored as the plain tensor that this rank has; the state document says how the whole was placed. Restoring in
the same world is a copy of each rank's bytes. For stock DCP rank 0's `.metadata` lists every rank's parts (replicated
ones once): `gathered` brings the plans together, one collective per layout; a save runs none.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

import torch
import torch.distributed as dist
from torch import Tensor, no_grad
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset
from torch.distributed.tensor.placement_types import Partial

from spotproof.checkpoint import tagged
from spotproof.checkpoint.tagged import Json
from spotproof.errors import MismatchedState

SHARD: Final = "$shard"
_ALONG: Final = re.compile(r"S\((\d+)\)")
_GATHER_WITHIN: Final = timedelta(seconds=120)

Gather = Callable[[Any], list[Any]]
"""Gives every rank's value to every rank, in rank order. All ranks call it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """This rank's part of a tensor, and how the whole was placed when it was saved."""

    local: Tensor
    placements: tuple[str, ...]
    shape: tuple[int, ...]

    def misfit(self, target: Tensor) -> str:
        """Why this part is not this rank's part of `target`; empty: it is."""
        if not isinstance(target, DTensor):
            return "sharded in the checkpoint, a plain tensor here"
        if self.shape != tuple(target.shape):
            return f"shape {self.shape} in the checkpoint, {tuple(target.shape)} here"
        if self.placements != placements_of(target) or self.local.shape != local_of(target).shape:
            return (
                f"sharded as {','.join(self.placements)} {tuple(self.local.shape)} in the checkpoint, "
                f"{','.join(placements_of(target))} {tuple(local_of(target).shape)} here"
            )
        return ""

    def like(self, target: Tensor) -> Tensor:
        """The part as a DTensor that is placed as `target`, whose part it is."""
        if not isinstance(target, DTensor):
            return self.local
        return DTensor.from_local(
            self.local,
            target.device_mesh,
            target.placements,
            run_check=False,
            shape=target.shape,
            stride=target.stride(),
        )


def cut(whole: Tensor, target: DTensor) -> Part:
    """This rank's part of `whole`, which has the shape of `target`."""
    shape, offset = compute_local_shape_and_global_offset(target.shape, target.device_mesh, target.placements)
    local = whole
    for dimension, (length, at) in enumerate(zip(shape, offset, strict=True)):
        local = local.narrow(dimension, min(at, local.shape[dimension]), length)
    local = local.clone(memory_format=torch.contiguous_format)  # of its own: whoever keeps it must not keep the whole
    return Part(local=local, placements=placements_of(target), shape=tuple(whole.shape))


def joined(parts: Sequence[Tensor], key: str, placements: tuple[str, ...], shape: tuple[int, ...]) -> Tensor:
    """The whole of a tensor whose parts lay along one dimension of one mesh, rank by rank, as FSDP2 lays them.

    Raises MismatchedState for other placements, or a mesh of some of the ranks: only a world like the one that saved
    them fits those.
    """
    found = _ALONG.fullmatch(placements[0]) if len(placements) == 1 else None
    if placements == ("R",):
        return parts[0].clone()
    whole = None if found is None else torch.cat(list(parts), dim=int(found[1]))
    if whole is None or tuple(whole.shape) != shape:
        raise MismatchedState(
            f"{key}: sharded as {','.join(placements)} by a world of another size",
            next_step="go on with as many ranks as before; only state on a mesh of one dimension fits another world",
        )
    return whole


def local_of(tensor: Tensor) -> Tensor:
    """The memory that this rank has of `tensor`; a plain tensor itself."""
    if isinstance(tensor, DTensor):
        with no_grad():
            return tensor.to_local()
    return tensor


def placements_of(tensor: DTensor) -> tuple[str, ...]:
    """How a tensor lies on its mesh, one word for each dimension of it."""
    return tuple(str(placement) for placement in tensor.placements)


def described(tensor: DTensor, key: str) -> Json:
    """What the state document says of a part that the image holds under `key`."""
    return {SHARD: [key, list(placements_of(tensor)), list(tensor.shape)]}


def check_storable(tensor: DTensor, path: str) -> None:
    """Raise UnstorableState if the parts of the ranks do not make up the tensor."""
    if tensor.device_mesh.get_coordinate() is None:
        raise tagged.refuse(tensor, path, "this rank has no part in its mesh")
    if any(isinstance(placement, Partial) for placement in tensor.placements):
        raise tagged.refuse(tensor, path, "its parts are terms of a sum; redistribute it first")


def form_of(wholes: Mapping[str, DTensor]) -> object:
    """What the layout of all ranks together depends on: the same on every rank of a program that all of them run."""
    return tuple((key, whole.dtype, whole.shape, placements_of(whole)) for key, whole in wholes.items())


def gathered(own: Any) -> list[Any]:  # Any: the planner's plans
    """Every rank's `own`, over gloo, whatever the training's backend is."""
    if not dist.is_initialized() or dist.get_world_size() == 1:
        return [own]
    group = dist.new_group(backend="gloo", timeout=_GATHER_WITHIN)
    found: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(found, own, group=group)
    dist.destroy_process_group(group)
    return found

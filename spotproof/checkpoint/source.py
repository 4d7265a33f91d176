"""The tensors that a restore reads from, and what is wrong with them for the objects that are here."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field

import torch
from torch import Tensor

from spotproof.checkpoint import sharded, tagged
from spotproof.checkpoint.tagged import Json
from spotproof.errors import BadManifest


@dataclass(slots=True, kw_only=True)
class Source:
    """The tensors of an image, what is wrong with them for these objects, and what was converted."""

    tensors: Mapping[str, Tensor]
    may_convert: AbstractSet[str]
    problems: list[str] = field(default_factory=list)
    conversions: list[str] = field(default_factory=list)

    def view(self, key: str) -> Tensor:
        """The tensor under `key`, sharing the image's memory."""
        if key not in self.tensors:
            raise BadManifest(f"the stored state refers to tensor {key!r}, which the layout does not have")
        return self.tensors[key]

    def part(self, content: Json) -> sharded.Part:
        """This rank's part of a tensor that several ranks have, sharing the image's memory."""
        key, placements, shape = content
        return sharded.Part(local=self.view(key), placements=tuple(placements), shape=tuple(shape))

    def check_part(self, path: str, part: sharded.Part, target: Tensor) -> None:
        """Note what forbids taking `part` for this rank's part of `target`."""
        why = part.misfit(target)
        if why:
            self.problems.append(f"{path}: {why}")
        else:
            self.check(path, part.local, target, is_shape_fixed=False)

    def decode(self, node: Json, path: str) -> object:
        """The value of a node; tensors in it are copies of their own."""
        return tagged.decode(node, path=path, unhook=self._unhook)

    def check(self, path: str, saved: Tensor, target: Tensor, *, is_shape_fixed: bool) -> None:
        """Note what forbids writing `saved` over `target`."""
        if is_shape_fixed and saved.shape != target.shape:
            self.problems.append(f"{path}: shape {tuple(saved.shape)} in the checkpoint, {tuple(target.shape)} here")
        if saved.dtype == target.dtype:
            return
        change = f"{path}: {saved.dtype} in the checkpoint, {target.dtype} here".replace("torch.", "")
        both_floating = saved.dtype.is_floating_point and target.dtype.is_floating_point
        if both_floating and path in self.may_convert:
            self.conversions.append(change)
        else:
            self.problems.append(change)

    def _unhook(self, tag: str, content: Json, path: str) -> object:
        match tag:
            case "$tensor":
                return self.view(content).clone()
            case sharded.SHARD:
                return self.part(content)
            case "$ndarray":
                return self.view(content).clone().numpy()
            case "$size":
                return torch.Size(content)
            case "$dtype":
                return _dtype(content, path)
            case "$device":
                return torch.device(content)
            case "$npscalar":
                return _numpy_scalar(content)
            case _:
                raise BadManifest(f"stored state at {path} has the unknown tag {tag!r}")


def value_of(node: Json, path: str, tensors: Mapping[str, Tensor]) -> object:
    """The value that `node` stands for, with what it refers to in `tensors`. Raises BadManifest."""
    return Source(tensors=tensors, may_convert=frozenset()).decode(node, path)


def _dtype(name: str, path: str) -> torch.dtype:
    dtype = getattr(torch, name, None)
    if not isinstance(dtype, torch.dtype):
        raise BadManifest(f"stored state at {path} has the unknown dtype {name!r}")
    return dtype


def _numpy_scalar(content: Json) -> object:
    import numpy as np

    return np.frombuffer(base64.b64decode(content[1]), dtype=np.dtype(content[0]))[0]

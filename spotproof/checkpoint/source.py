"""The tensors that a restore reads from, and what is wrong with them for the objects that are here."""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field

import torch
from torch import Tensor

from spotproof.checkpoint import sharded, tagged
from spotproof.checkpoint.tagged import Json
from spotproof.errors import BadManifest


@dataclass(slots=True, kw_only=True)
class Source:
    """The tensors of an image, what is wrong with them for these objects, and what was converted.

    `parts`: the tensors of all ranks' images, in their order, where a world of another size saved them. They are asked
    for when the first tensor has to be put together; what every rank has whole needs nobody else's.
    """

    tensors: Mapping[str, Tensor]
    may_convert: AbstractSet[str]
    parts: Callable[[], Sequence[Mapping[str, Tensor]]] | None = None
    problems: list[str] = field(default_factory=list)
    conversions: list[str] = field(default_factory=list)
    _asked: Sequence[Mapping[str, Tensor]] = ()

    def is_part(self, content: object) -> bool:
        """Whether `content` stands for this rank's part of a tensor, saved by as many ranks as there are."""
        return self.parts is None and isinstance(content, dict) and sharded.SHARD in content

    def tensor(self, content: object) -> Tensor | None:
        """The whole tensor that `content` stands for; None: it stands for something else."""
        if isinstance(content, dict) and "$tensor" in content:
            return self.view(content["$tensor"])
        return self._whole(content[sharded.SHARD]) if isinstance(content, dict) and sharded.SHARD in content else None

    def _whole(self, content: Json) -> Tensor:
        """A tensor that was saved by the parts of a world of another size, put together."""
        key, placements, shape = content
        if not self._asked and self.parts is not None:
            self._asked = self.parts()
        return sharded.joined([one[key] for one in self._asked if key in one], key, tuple(placements), tuple(shape))

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
                return self.part(content) if self.parts is None else self._whole(content)
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

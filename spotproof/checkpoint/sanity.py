"""Whether a whole image is worth going on from: it holds the state of its step, and what was trained is no NaN.

Every byte can be as it was written and the checkpoint still be of no use: a training that diverged just before it
saved, or one step's description with another one's data. Seen here, by the agent, it is damage like any other: the
next older checkpoint is taken, and this one is quarantined. Looked at are the ends and the middle of each tensor that
an optimizer trains, and of the optimizer's own: a loss that is NaN makes all of them NaN within a step.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator, Mapping
from typing import Any, Final

from spotproof.contract.layout import STATE_KEY, Layout, TensorEntry
from spotproof.errors import BadManifest, Damaged

__all__ = ["check_state"]

_TENSOR: Final = "$tensor"
_SHARD: Final = "$shard"  # a rank's part of a tensor: its key comes first
_LOOK_BYTES: Final = 256  # at each of the three places of a tensor
# dtype -> (struct's letter for as many bits, exponent, mantissa). A NaN has all of the exponent and some mantissa.
_FORMATS: Final[Mapping[str, tuple[str, int, int]]] = {
    "float64": ("Q", 0x7FF0_0000_0000_0000, 0x000F_FFFF_FFFF_FFFF),
    "float32": ("I", 0x7F80_0000, 0x007F_FFFF),
    "float16": ("H", 0x7C00, 0x03FF),
    "bfloat16": ("H", 0x7F80, 0x007F),
}


def check_state(image: memoryview, layout: Layout, *, step: int) -> None:
    """Raises Damaged where the image holds another step's state, or NaN in what was trained; BadManifest where its
    state is not told as it should be. An image that tells no state at all is not ours to judge."""
    entries = {entry.key: entry for entry in layout.tensors}
    if STATE_KEY not in entries:
        return
    document = _document(image, entries[STATE_KEY])
    held = document.get("run", {}).get("step", step)
    if held != step:
        raise Damaged(f"the checkpoint of step {step} holds the state of step {held}")
    for key in _trained(document.get("objects", {})):
        entry = entries.get(key)
        if entry is not None and _has_nan(image, entry):
            raise Damaged(f"{key} holds NaN: the training had diverged before step {step} was saved")


def _document(image: memoryview, entry: TensorEntry) -> dict[str, Any]:
    try:
        document = json.loads(bytes(image[entry.offset : entry.offset + entry.bytes]))
    except ValueError as error:
        raise BadManifest(f"the state document is not JSON: {error}") from error
    if not isinstance(document, dict):
        raise BadManifest("the state document is no object")
    return document


def _trained(objects: Mapping[str, Any]) -> Iterator[str]:
    """Keys of the tensors that the optimizers train, and of their own."""
    optimizers = [node for node in objects.values() if node.get("kind") == "optimizer"]
    names = {name for node in optimizers for group in node.get("groups", ()) for name in group.get("params", ())}
    for prefix, node in objects.items():
        if node.get("kind") == "module":
            for name, content in node.get("state", {}).items():
                if name in names or f"{prefix}.{name}" in names:
                    yield from _tensors(content)
    for node in optimizers:
        yield from _tensors(node.get("state", {}))


def _tensors(node: Any) -> Iterator[str]:
    if isinstance(node, dict):
        if isinstance(node.get(_TENSOR), str):
            yield node[_TENSOR]
        elif isinstance(node.get(_SHARD), list):
            yield str(node[_SHARD][0])
        else:
            for inner in node.values():
                yield from _tensors(inner)


def _has_nan(image: memoryview, entry: TensorEntry) -> bool:
    known = _FORMATS.get(entry.dtype)
    if known is None:
        return False
    letter, exponent, mantissa = known
    size = struct.calcsize(f"<{letter}")
    count = entry.bytes // size
    some = min(count, _LOOK_BYTES // size)
    for first in {0, (count - some) // 2, count - some}:
        at = entry.offset + first * size
        for bits in struct.unpack(f"<{some}{letter}", image[at : at + some * size]):
            if bits & exponent == exponent and bits & mantissa:
                return True
    return False

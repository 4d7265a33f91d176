"""What a run has to remember, taken apart: tensors by name, and everything else as one tagged-JSON document.

Capturing reads, never writes: the live optimizer, generators and modules are as they were. Tensors are the live ones
(no copy is made here); a name that shares its storage with another, as tied weights do, is an alias of it.
"""

from __future__ import annotations

import base64
import random
import sys
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass, field
from typing import Any, Final, Protocol, runtime_checkable

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from spotproof.checkpoint import sharded, tagged
from spotproof.checkpoint.generators import as_stateful
from spotproof.checkpoint.tagged import Json
from spotproof.errors import UnstorableState

DOCUMENT_FORMAT: Final = 1
KIND: Final = "kind"
MODULE: Final = "module"
OPTIMIZER: Final = "optimizer"
OBJECT: Final = "object"

WRAPPERS: Final = frozenset({"_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module"})
_DATA_PARALLEL: Final = (nn.parallel.DistributedDataParallel, nn.DataParallel)
_PLAIN_TENSORS: Final = (Tensor, nn.Parameter, nn.Buffer)
_NUMPY_SCALARS: Final = "biufcmM"  # kinds whose bytes say everything


@runtime_checkable
class Stateful(Protocol):
    """Anything that can be tracked. `state_dict` is called at every save, `load_state_dict` once, at the restore."""

    def state_dict(self) -> Any:
        """The state, as values that tagged JSON and tensors can hold."""

    def load_state_dict(self, state_dict: Any) -> Any:
        """Take the state that `state_dict` gave."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Captured:
    """The state of one moment. `tensors` are live and in file order, `aliases` map a name to the key that holds it.

    `wholes` are the DTensors among them, of which `tensors` has this rank's part.

    The same `plan` object in two of them (not None): same keys, dtypes, shapes and aliases, and each tensor that is not
    `loose` at the same address.
    """

    tensors: Mapping[str, Tensor]
    aliases: Mapping[str, str]
    document: bytes
    wholes: Mapping[str, DTensor] = field(default_factory=dict)
    plan: object = None
    loose: frozenset[str] = frozenset()


def capture(objects: Mapping[str, object], *, counters: Mapping[str, object]) -> Captured:
    """The state of `objects`, of the random generators of this process and of `counters` (the run's own).

    Raises:
        UnstorableState: some value cannot be stored or loaded safely; its path begins with the object's name.
    """
    sink = TensorSink()
    encoded = {name: encode_object(name, thing, objects, sink) for name, thing in objects.items()}
    document = {
        "format": DOCUMENT_FORMAT,
        "objects": encoded,
        "rng": encode_rng(sink),
        "run": tagged.encode(dict(counters), path="run", hook=sink.hook),
    }
    return Captured(tensors=sink.tensors, aliases=sink.aliases, document=tagged.dumps(document), wholes=sink.wholes)


def canonical_name(root: nn.Module, name: str) -> str:
    """`name` of a parameter or buffer without the segments that torch.compile, DDP and other wrappers add."""
    kept: list[str] = []
    module: nn.Module | None = root
    for segment in name.split("."):
        is_wrapper = segment in WRAPPERS or (segment == "module" and isinstance(module, _DATA_PARALLEL))
        if not is_wrapper:
            kept.append(segment)
        module = None if module is None else module._modules.get(segment)  # noqa: SLF001 -- a get without raising
    return ".".join(kept)


def parameter_names(objects: Mapping[str, object]) -> dict[int, tuple[str, str]]:
    """id of each parameter -> (tracked module, canonical name); a tied or twice-tracked one has its first name."""
    names: dict[int, tuple[str, str]] = {}
    for module_name, thing in objects.items():
        if isinstance(thing, nn.Module):
            for name, parameter in thing.named_parameters():
                names.setdefault(id(parameter), (module_name, canonical_name(thing, name)))
    return names


def optimizer_names(name: str, optimizer: torch.optim.Optimizer, objects: Mapping[str, object]) -> list[str]:
    """Names of the optimizer's parameters, in the order of its own indices.

    They are the module's own names; with the module's name before them where several modules are trained.

    Raises:
        UnstorableState: a parameter belongs to no tracked module, so that only its index could name it.
    """
    known = parameter_names(objects)
    found: list[tuple[str, str]] = []
    for group_index, group in enumerate(optimizer.param_groups):
        for index, parameter in enumerate(group["params"]):
            if id(parameter) not in known:
                raise UnstorableState(
                    "this parameter belongs to no tracked module, so it has no name to be restored by",
                    path=f"{name}.param_groups.{group_index}.params.{index}",
                    next_step="track the module that owns it as well",
                )
            found.append(known[id(parameter)])
    one_module = len({module for module, _ in found}) <= 1
    return [own if one_module else f"{module}.{own}" for module, own in found]


@dataclass(slots=True)
class TensorSink:
    """Collects the tensors of a document and hands out references to them."""

    tensors: dict[str, Tensor] = field(default_factory=dict)
    aliases: dict[str, str] = field(default_factory=dict)
    wholes: dict[str, DTensor] = field(default_factory=dict)
    keys: MutableMapping[tuple[object, ...], str] = field(default_factory=dict)  # by the view that a key holds

    def hook(self, value: object, path: str) -> Json | None:
        """The JSON of what torch and numpy know."""
        if isinstance(value, DTensor):
            return sharded.described(value, self.add_part(value, path))
        if isinstance(value, Tensor):
            return {"$tensor": self.add(value, path)}
        if isinstance(value, torch.Size):
            return {"$size": [int(length) for length in value]}
        if isinstance(value, torch.dtype):
            return {"$dtype": str(value).removeprefix("torch.")}
        if isinstance(value, torch.device):
            return {"$device": str(value)}
        return self._numpy(value, path)

    def add(self, tensor: Tensor, path: str) -> str:
        """The key that holds `tensor`; the same memory seen in the same way is held once."""
        _check_plain(tensor, path)
        return self._add(tensor, path, memory=tensor.data_ptr() if tensor.numel() else None)

    def add_part(self, whole: DTensor, path: str) -> str:
        """The key that holds this rank's part of `whole`."""
        sharded.check_storable(whole, path)
        part = sharded.local_of(whole)
        _check_plain(part, path)
        # By storage, not by address: parts of no elements must be aliases on this rank where they are on the others.
        key = self._add(part, path, memory=part.untyped_storage().data_ptr() or None)
        if key == path:
            self.wholes[path] = whole
        return key

    def _add(self, tensor: Tensor, path: str, *, memory: int | None) -> str:
        if path in self.tensors or path in self.aliases:
            raise UnstorableState("two values have this one path", path=path, next_step="rename a key")
        sight = (tensor.dtype, tensor.shape, tensor.stride(), tensor.is_conj(), tensor.is_neg())
        key = path if memory is None else self.keys.setdefault((tensor.device, memory, *sight), path)
        if key == path:
            self.tensors[path] = tensor.detach()
        else:
            self.aliases[path] = key
        return key

    def _numpy(self, value: object, path: str) -> Json | None:
        numpy = loaded_numpy()
        if numpy is None:
            return None
        if isinstance(value, numpy.generic):
            scalar: Any = value  # Any: numpy is not imported for its types
            if scalar.dtype.kind in _NUMPY_SCALARS:
                return {"$npscalar": [scalar.dtype.str, base64.b64encode(scalar.tobytes()).decode("ascii")]}
        if type(value) is numpy.ndarray:
            try:
                tensor = torch.from_numpy(numpy.array(value, order="C"))  # a copy: it may be read-only or strided
            except (TypeError, ValueError) as error:
                raise tagged.refuse(value, path, str(error)) from error
            return {"$ndarray": self.add(tensor, path)}
        return None


def _check_plain(tensor: Tensor, path: str) -> None:
    why = ""
    if type(tensor) not in _PLAIN_TENSORS:
        why = "a tensor subclass needs the reader's code"
    elif tensor.layout is not torch.strided or tensor.is_quantized:
        why = f"its layout is {tensor.layout}, only plain strided tensors are stored"
    elif tensor.is_meta:
        why = "it is on the meta device and has no values"
    if why:
        raise tagged.refuse(tensor, path, why)


def encode_object(name: str, thing: object, objects: Mapping[str, object], sink: TensorSink) -> Json:
    """The JSON of one tracked object; its tensors go into `sink`. Raises UnstorableState."""
    if isinstance(thing, nn.Module):
        return _encode_module(name, thing, sink)
    if isinstance(thing, torch.optim.Optimizer):
        return _encode_optimizer(name, thing, objects, sink)
    stateful = as_stateful(thing)
    if not isinstance(stateful, Stateful):
        raise tagged.refuse(thing, name, "it has no state_dict() and load_state_dict()")
    return {KIND: OBJECT, "state": tagged.encode(stateful.state_dict(), path=name, hook=sink.hook)}


def _encode_module(name: str, module: nn.Module, sink: TensorSink) -> Json:
    state = module.state_dict()
    versions = {
        canonical_name(module, prefix): info["version"]
        for prefix, info in getattr(state, "_metadata", {}).items()
        if info.get("version", 1) != 1
    }
    values = {canonical_name(module, key): value for key, value in state.items()}
    if len(values) != len(state):
        raise UnstorableState("two entries have one name once wrappers are removed", path=name)
    body = tagged.encode(values, path=name, hook=sink.hook)
    return {KIND: MODULE, "state": body, "versions": versions}


def _encode_optimizer(
    name: str, optimizer: torch.optim.Optimizer, objects: Mapping[str, object], sink: TensorSink
) -> Json:
    names = optimizer_names(name, optimizer, objects)
    packed = optimizer.state_dict()
    state = {names[key] if type(key) is int else key: value for key, value in packed["state"].items()}
    groups = [{**group, "params": [names[index] for index in group["params"]]} for group in packed["param_groups"]]
    rest = {key: value for key, value in packed.items() if key not in ("state", "param_groups")}
    return {
        KIND: OPTIMIZER,
        "state": tagged.encode(state, path=f"{name}.state", hook=sink.hook),
        "groups": tagged.encode(groups, path=f"{name}.param_groups", hook=sink.hook),
        "rest": tagged.encode(rest, path=name, hook=sink.hook),
    }


def encode_rng(sink: TensorSink) -> Json:
    """Python, numpy (if it is there), torch on the CPU and on every device that has been used."""
    body: dict[str, object] = {"python": random.getstate(), "torch": torch.get_rng_state()}
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        body["cuda"] = torch.cuda.get_rng_state_all()
    numpy = loaded_numpy()
    if numpy is not None:
        state = numpy.random.get_state(legacy=False)
        key = state["state"]["key"].tobytes()  # as text: its presence must not change the layout of tensors
        body["numpy"] = {**state, "state": {**state["state"], "key": key}}
    return tagged.encode(body, path="rng", hook=sink.hook)


def loaded_numpy() -> Any:  # Any: a module that is not imported for us
    """The numpy module if this process has imported it, else None: without it none of its values can exist."""
    return sys.modules.get("numpy")

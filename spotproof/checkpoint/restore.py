"""A verified image back into the tracked objects: checked whole first, then written in place.

Nothing is unpickled: tensors are views of the image, everything else is tagged JSON. Everything that can be compared
is compared before the first object changes, so a checkpoint that does not fit leaves the objects as they were.
"""

from __future__ import annotations

import json
import random
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from spotproof.checkpoint import sharded, tagged
from spotproof.checkpoint.dcp import payload_views
from spotproof.checkpoint.generators import as_stateful
from spotproof.checkpoint.source import Source
from spotproof.checkpoint.state import (
    DOCUMENT_FORMAT,
    KIND,
    MODULE,
    OPTIMIZER,
    Stateful,
    canonical_name,
    optimizer_names,
)
from spotproof.checkpoint.strides import collapsed, like, narrowed
from spotproof.checkpoint.tagged import Json
from spotproof.contract.layout import STATE_KEY, Layout
from spotproof.errors import BadManifest, Damaged, MismatchedState

_EXTRA_STATE = "_extra_state"  # torch's key for what set_extra_state gets; it may keep it, so it gets a copy
_LISTED_MAX = 10
_CODE_CHANGED = "restore into the objects that were saved, or start a new run from exported weights"


Parts = Callable[[], Sequence[tuple[Any, Layout]]]  # Any: writable buffers


@dataclass(frozen=True, slots=True, kw_only=True)
class Restored:
    """What came back besides the objects: the run's own counters, and each dtype that was converted by permission."""

    step: int
    counters: Mapping[str, object]
    conversions: tuple[str, ...]


def restore(
    objects: Mapping[str, object],
    image: Any,  # Any: a writable buffer; map a memfd privately
    layout: Layout,
    *,
    step: int,
    may_convert: AbstractSet[str] = frozenset(),
    parts: Parts | None = None,
) -> Restored:
    """Put the state in `image`, which must be that of `step`, into `objects` and the random generators of this process.

    `may_convert` names tensors (`model.head.weight`) whose dtype may differ between floating types. `parts` gives the
    images of all ranks and their layouts, where a world of another size saved them: tensors of which each rank had a
    part are put together and cut anew.

    Raises:
        MismatchedState: an object, a key, a shape or a dtype differs; every difference is named, nothing has changed.
        BadManifest: the image does not hold a state document of a known format.
        Damaged: the image is that of another step.
    """
    source = Source(tensors=payload_views(layout, image), may_convert=may_convert, parts=_views_of(parts))
    document = _document(source)
    saved: Mapping[str, Json] = document["objects"]
    _same_names("tracked objects", set(saved), set(objects))
    plans = [_plan(name, thing, saved[name], objects, source) for name, thing in objects.items()]
    if source.problems:
        raise MismatchedState(_listed(source.problems), next_step=_CODE_CHANGED)
    counters = cast("dict[str, object]", source.decode(document["run"], "run"))
    if counters.get("step") != step:
        raise Damaged(f"the checkpoint of step {step} holds the state of step {counters.get('step')}")
    for plan in plans:
        plan.load()
    _restore_rng(cast("dict[str, Any]", source.decode(document["rng"], "rng")))
    return Restored(step=step, counters=counters, conversions=tuple(source.conversions))


def _views_of(parts: Parts | None) -> Callable[[], Sequence[Mapping[str, Tensor]]] | None:
    return None if parts is None else lambda: [payload_views(layout, image) for image, layout in parts()]


def take(
    objects: Mapping[str, object],
    saved: Mapping[str, Json],
    tensors: Mapping[str, Tensor],
    *,
    may_convert: AbstractSet[str] = frozenset(),
) -> tuple[str, ...]:
    """Put what `saved` says of some of the `objects` into them; `saved` refers to `tensors`, which are whole.

    Returns each dtype that was converted by permission. Raises MismatchedState, as `restore`.
    """
    source = Source(tensors=tensors, may_convert=may_convert)
    plans = [_plan(name, objects[name], node, objects, source) for name, node in saved.items()]
    if source.problems:
        raise MismatchedState(_listed(source.problems), next_step=_CODE_CHANGED)
    for plan in plans:
        plan.load()
    return tuple(source.conversions)


def mark_as_stepped(objects: Mapping[str, object]) -> None:
    """Optimizers have stepped, in an earlier process: a schedule that looks only at this one would warn."""
    for thing in objects.values():
        if isinstance(thing, torch.optim.Optimizer):
            setattr(thing, "_opt_called", True)  # noqa: B010 -- torch's own, and private


def counters_of(image: Any, layout: Layout) -> dict[str, object]:  # Any: a writable buffer
    """The run's own counters in `image`, without touching any object: where to go on is known before the restore."""
    source = Source(tensors=payload_views(layout, image), may_convert=frozenset())
    return cast("dict[str, object]", source.decode(_document(source)["run"], "run"))


@dataclass(frozen=True, slots=True, kw_only=True)
class _ModulePlan:
    """Tensors go straight into the module's own; what its code wants to see goes through load_state_dict."""

    name: str
    module: nn.Module
    state: OrderedDict[str, object]
    overlapping: Mapping[str, tuple[Tensor, Tensor]]

    def load(self) -> None:
        """Write every value; tied weights are written through each of their names."""
        with torch.no_grad():
            for target, saved in self.overlapping.values():
                collapsed(target).copy_(narrowed(saved, target))
        try:
            answer = self.module.load_state_dict(self.state, strict=False)
        except RuntimeError as error:
            raise MismatchedState(f"{self.name}: {error}", next_step=_CODE_CHANGED) from error
        missing = set(answer.missing_keys) - set(self.overlapping)
        if missing or answer.unexpected_keys:
            raise MismatchedState(
                f"{self.name}: not taken {sorted(answer.unexpected_keys)}, not given {sorted(missing)}",
                next_step=_CODE_CHANGED,
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class _OptimizerPlan:
    """State by parameter, put back under the indices that the parameters have in this process."""

    optimizer: torch.optim.Optimizer
    packed: dict[str, Any]

    def load(self) -> None:
        """load_state_dict casts state to its parameter's dtype; what was stored otherwise is put back as it was.

        In memory it lies as its parameter does (channels last): fused optimizers pair elements by address, and others
        round otherwise where the strides differ.
        """
        self.optimizer.load_state_dict(self.packed)
        parameters = [p for group in self.optimizer.param_groups for p in group["params"]]
        for index, saved in self.packed["state"].items():
            if isinstance(index, int):
                mine = self.optimizer.state[parameters[index]]
                for key, value in saved.items():
                    if isinstance(value, Tensor):
                        mine[key] = like(parameters[index], value.to(mine[key].device))


@dataclass(frozen=True, slots=True, kw_only=True)
class _ObjectPlan:
    """Anything else loads itself."""

    thing: Stateful
    state: object

    def load(self) -> None:
        """Call its load_state_dict."""
        self.thing.load_state_dict(self.state)


def _document(source: Source) -> dict[str, Json]:
    raw = bytes(source.view(STATE_KEY).numpy())
    try:
        document = json.loads(raw)
    except ValueError as error:
        raise BadManifest(f"the state document is not JSON: {error}") from error
    if not isinstance(document, dict) or document.get("format") != DOCUMENT_FORMAT:
        raise BadManifest(f"the state document has not format {DOCUMENT_FORMAT}")
    return document


def _plan(
    name: str, thing: object, node: Json, objects: Mapping[str, object], source: Source
) -> _ModulePlan | _OptimizerPlan | _ObjectPlan:
    if isinstance(thing, nn.Module):
        _same_kind(name, MODULE, node)
        return _plan_module(name, thing, node, source)
    if isinstance(thing, torch.optim.Optimizer):
        _same_kind(name, OPTIMIZER, node)
        return _plan_optimizer(name, thing, node, objects, source)
    stateful = as_stateful(thing)
    if not isinstance(stateful, Stateful):
        raise tagged.refuse(thing, name, "it has no state_dict() and load_state_dict()")
    state = source.decode(node["state"], name)
    _check_dtypes(name, state, stateful.state_dict(), source)
    return _ObjectPlan(thing=stateful, state=state)


def _plan_module(name: str, module: nn.Module, node: Json, source: Source) -> _ModulePlan:
    targets = module.state_dict()
    canonical = {key: canonical_name(module, key) for key in targets}
    saved: Mapping[str, Json] = node["state"]
    _same_names(name, set(saved), set(canonical.values()))
    state: OrderedDict[str, object] = OrderedDict()
    overlapping: dict[str, tuple[Tensor, Tensor]] = {}
    for key, target in targets.items():
        path, content = f"{name}.{canonical[key]}", saved[canonical[key]]
        if not isinstance(target, Tensor) or key.endswith(_EXTRA_STATE):
            state[key] = source.decode(content, path)
            continue
        if source.is_part(content):
            part = source.part(content[sharded.SHARD])
            source.check_part(path, part, target)
            state[key] = part.like(target) if not source.problems else part.local
            continue
        tensor = source.tensor(content)
        if tensor is None:
            source.problems.append(f"{path}: no such tensor in the checkpoint, a {type(target).__name__} here")
            continue
        source.check(path, tensor, target, is_shape_fixed=True)
        if isinstance(target, DTensor) and tensor.shape == target.shape:
            tensor = sharded.cut(tensor, target).like(target)
        if 0 in target.stride() and target.numel() > 1:
            overlapping[key] = (target, tensor)
        else:
            state[key] = tensor
    versions: Mapping[str, int] = node["versions"]
    metadata = {prefix: {"version": versions.get(canonical_name(module, prefix), 1)} for prefix in _prefixes(targets)}
    state._metadata = metadata  # type: ignore[attr-defined]  # noqa: SLF001 -- where torch keeps versions
    return _ModulePlan(name=name, module=module, state=state, overlapping=overlapping)


def _prefixes(state: Mapping[str, object]) -> list[str]:
    return list(getattr(state, "_metadata", {}))


def _plan_optimizer(
    name: str, optimizer: torch.optim.Optimizer, node: Json, objects: Mapping[str, object], source: Source
) -> _OptimizerPlan:
    names = optimizer_names(name, optimizer, objects)
    index_of = {parameter: index for index, parameter in enumerate(names)}
    groups = cast("list[dict[str, Any]]", source.decode(node["groups"], f"{name}.param_groups"))
    state = cast("dict[Any, Any]", source.decode(node["state"], f"{name}.state"))
    rest = cast("dict[str, Any]", source.decode(node["rest"], name))
    current = _current_groups(optimizer, names)
    if len(groups) != len(current):
        raise MismatchedState(
            f"{name}: {len(groups)} parameter groups in the checkpoint, {len(current)} here", next_step=_CODE_CHANGED
        )
    for number, (saved, mine) in enumerate(zip(groups, current, strict=True)):
        _same_names(f"{name}.param_groups.{number}", set(saved["params"]), set(mine))
        saved["params"] = [index_of[parameter] for parameter in mine]
    by_index = {index_of.get(key, key) if isinstance(key, str) else key: value for key, value in state.items()}
    _take_parts(name, optimizer, names, by_index, source)
    _check_state_of(name, optimizer, names, by_index, source)
    return _OptimizerPlan(optimizer=optimizer, packed={**rest, "state": by_index, "param_groups": groups})


def _current_groups(optimizer: torch.optim.Optimizer, names: list[str]) -> list[list[str]]:
    remaining = iter(names)
    return [[next(remaining) for _ in group["params"]] for group in optimizer.param_groups]


def _take_parts(
    name: str, optimizer: torch.optim.Optimizer, names: list[str], saved: Mapping[Any, Any], source: Source
) -> None:
    """State of a sharded parameter lies where its parameter does."""
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    for index, parameter in enumerate(parameters):
        for key, value in saved.get(index, {}).items():
            if isinstance(parameter, DTensor) and isinstance(value, Tensor) and value.shape == parameter.shape:
                saved[index][key] = sharded.cut(value, parameter).like(parameter)
            elif isinstance(value, sharded.Part):
                path = f"{name}.state.{names[index]}.{key}"
                why = value.misfit(parameter)
                if why:
                    source.problems.append(f"{path}: {why}")
                else:
                    saved[index][key] = replace(value, local=value.local.clone()).like(parameter)


def _check_state_of(
    name: str, optimizer: torch.optim.Optimizer, names: list[str], saved: Mapping[Any, Any], source: Source
) -> None:
    """Where the optimizer has state already (it has made a step), shapes must agree with it."""
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    for index, parameter in enumerate(parameters):
        mine = optimizer.state.get(parameter, {})
        for key, value in saved.get(index, {}).items():
            target = mine.get(key)
            if isinstance(value, Tensor) and isinstance(target, Tensor):
                source.check(f"{name}.state.{names[index]}.{key}", value, target, is_shape_fixed=True)


def _check_dtypes(path: str, saved: object, target: object, source: Source) -> None:
    """In an object of the user's own, shapes may have grown; a tensor that became another type is a mistake."""
    if isinstance(saved, Tensor) and isinstance(target, Tensor):
        source.check(path, saved, target, is_shape_fixed=False)
    elif isinstance(saved, Mapping) and isinstance(target, Mapping):
        for key in saved.keys() & target.keys():
            _check_dtypes(f"{path}.{key}", saved[key], target[key], source)
    elif isinstance(saved, list | tuple) and isinstance(target, list | tuple):
        for index, (one, other) in enumerate(zip(saved, target, strict=False)):
            _check_dtypes(f"{path}.{index}", one, other, source)


def _same_names(what: str, saved: AbstractSet[str], here: AbstractSet[str]) -> None:
    if saved != here:
        missing, extra = sorted(here - saved), sorted(saved - here)
        raise MismatchedState(
            f"{what}: not in the checkpoint [{_listed(missing)}], not here [{_listed(extra)}]", next_step=_CODE_CHANGED
        )


def _same_kind(name: str, kind: str, node: Json) -> None:
    if node.get(KIND) != kind:
        raise MismatchedState(
            f"{name}: it was a {node.get(KIND)} when it was saved and is a {kind} now", next_step=_CODE_CHANGED
        )


def _listed(texts: list[str]) -> str:
    shown = "; ".join(texts[:_LISTED_MAX])
    return shown if len(texts) <= _LISTED_MAX else f"{shown}; and {len(texts) - _LISTED_MAX} more"


def _restore_rng(body: Mapping[str, Any]) -> None:
    random.setstate(body["python"])
    torch.set_rng_state(body["torch"])
    if "cuda" in body and torch.cuda.is_available():
        torch.cuda.set_rng_state_all(body["cuda"])
    if "numpy" in body:
        import numpy as np

        state = body["numpy"]
        key = np.frombuffer(state["state"]["key"], dtype=np.uint32)
        np.random.set_state({**state, "state": {**state["state"], "key": key}})  # noqa: NPY002 -- the user's generator

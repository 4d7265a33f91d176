"""Starting from a checkpoint that is not this run's.

Stock DCP (a folder, or S3 as s3torchconnector writes it), a file of `torch.save`, or safetensors. Read once, where the
run has no checkpoint of its own; training then begins at step 0.

Every tracked module must be there, whole and fitting: each key that is missing, extra or of another shape or dtype is
named. An optimizer, schedule or other object that the checkpoint has is taken too; one that it lacks starts afresh, and
that is said. Optimizer state is matched by parameter names, where there are none by order and shape.
"""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.distributed.checkpoint.metadata import Metadata, MetadataIndex, TensorStorageMetadata

from spotproof.checkpoint import tagged
from spotproof.checkpoint.chunks import digest, placed
from spotproof.checkpoint.foreignfiles import Files, SafeUnpickler, loaded, safetensors
from spotproof.checkpoint.pull import MANIFEST_FILE
from spotproof.checkpoint.restore import mark_as_stepped, take
from spotproof.checkpoint.state import (
    KIND,
    MODULE,
    OBJECT,
    OPTIMIZER,
    WRAPPERS,
    TensorSink,
    canonical_name,
    optimizer_names,
)
from spotproof.checkpoint.tagged import Json
from spotproof.contract.layout import STATE_KEY
from spotproof.contract.manifest import decode_manifest
from spotproof.errors import BadSettings, CheckpointError, MismatchedState, NoLoadableCheckpoint

RESTORE_FIRST: Final = "call run.restore() before the first step, or iterate over run.batches(loader)"
METADATA: Final = ".metadata"
_SAFETENSORS: Final = ".safetensors"
_SUFFIX: Final = "_state_dict"
_SOLE: Final[Mapping[str, tuple[str, ...]]] = {
    MODULE: ("model", "state_dict", "model_state_dict"),
    OPTIMIZER: ("optimizer", "optimizer_state_dict"),
}
_OF_ANOTHER_SHAPE: Final = (torch.optim.Adafactor, torch.optim.LBFGS)  # their state is not by element
_FIT: Final = "start from a checkpoint of this model, or rename its keys"
_LOG: Final = logging.getLogger("spotproof")


@dataclass(frozen=True, slots=True, kw_only=True)
class Taken:
    """What came from where, and which tracked objects it does not have."""

    where: str
    taken: tuple[str, ...]
    fresh: tuple[str, ...]
    conversions: tuple[str, ...]


def start_from(
    where: str,
    objects: Mapping[str, object],
    *,
    may_convert: AbstractSet[str] = frozenset(),
    files: Files | None = None,
) -> Taken:
    """Put the checkpoint at `where` (a path, or `s3://BUCKET/PREFIX`) into `objects`. Nothing changes if it raises.

    Raises:
        BadSettings: there is nothing, or nothing that is a checkpoint.
        MismatchedState: a key, shape or dtype differs, or it holds what only its own code could load.
        NoLoadableCheckpoint: it is damaged; the file is named.
    """
    tree, flat = _read(files or Files.of(where), objects)
    document = _document_of(where, flat)
    sink = TensorSink()
    if document is None:
        found = {name: _found(name, thing, tree, objects) for name, thing in objects.items()}
        nodes = {
            name: _node(name, objects[name], value, objects, sink) for name, value in found.items() if value is not None
        }
        tensors: Mapping[str, Tensor] = sink.tensors
    else:
        nodes, tensors = {name: node for name, node in document.items() if name in objects}, flat
    _need_modules(where, objects, nodes, tree)
    conversions = take(objects, nodes, tensors, may_convert=may_convert)
    fresh = tuple(name for name in objects if name not in nodes)
    if fresh:
        _LOG.warning("%s has no state for %s: it starts afresh", where, ", ".join(fresh))
    return Taken(where=where, taken=tuple(nodes), fresh=fresh, conversions=conversions)


def begin(where: str, objects: Mapping[str, object], *, has_begun: bool) -> None:
    """A run that has no checkpoint starts at step 0: from `where`, or (empty) from what the script has made.

    Raises CheckpointError if training has begun without it, and as `start_from`.
    """
    if not where:
        _LOG.info("nothing to restore: training starts at step 0")
        return
    if has_begun:
        raise CheckpointError(f"training has begun without {where}", next_step=RESTORE_FIRST)
    taken = start_from(where, objects).taken
    if any(isinstance(objects[name], torch.optim.Optimizer) for name in taken):
        mark_as_stepped(objects)
    _LOG.info("training starts at step 0 from %s: %s", where, ", ".join(taken))


def _read(files: Files, objects: Mapping[str, object]) -> tuple[dict[str, Any], dict[str, Any]]:
    """What the files hold, nested as it was saved; and of DCP the same by its keys."""
    if METADATA in files.names:
        flat, paths = _stock_dcp(files, objects)
        tree: dict[str, Any] = {}
        for key, value in flat.items():
            _put(tree, paths[key], value)
        return _listed(tree), flat
    return _plain(files), {}


def _plain(files: Files) -> dict[str, Any]:
    weights = [name for name in files.names if name.endswith(_SAFETENSORS)]
    if weights:
        return _all_safetensors(files, weights)
    if len(files.names) != 1:
        raise BadSettings(
            f"{files.where} holds neither {METADATA} nor *{_SAFETENSORS}", next_step="name the file of torch.save"
        )
    (name,) = files.names
    body = loaded(files, name, files.read(name))
    if not isinstance(body, Mapping):
        raise MismatchedState(f"{files.where} holds a {type(body).__name__}, not a state_dict", next_step=_FIT)
    return dict(body)


def _all_safetensors(files: Files, names: list[str]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name in names:
        tensors = safetensors(files, name)
        if twice := sorted(found.keys() & tensors.keys()):
            raise MismatchedState(f"{files.where}: {twice[0]} is in two files", next_step="name one of them")
        found |= tensors
    for name in files.names:
        if name.endswith(f"{_SAFETENSORS}.index.json"):
            with files.reading(name):
                wanted = json.loads(bytes(files.read(name)))["weight_map"]
            if missing := sorted(wanted.keys() - found.keys()):
                raise NoLoadableCheckpoint(f"{files.where}: {missing[0]} is in {wanted[missing[0]]}, which is missing")
    return found


# ------------------------------------------------------------------------------------------------------- stock DCP
def _stock_dcp(files: Files, objects: Mapping[str, object]) -> tuple[dict[str, Any], dict[str, tuple[str | int, ...]]]:
    """Values by key, only those that tracked objects can want, and where in the nested state each stood."""
    with files.reading(METADATA):
        metadata: Metadata = SafeUnpickler(io.BytesIO(files.read(METADATA))).load()
        known, planned = dict(metadata.state_dict_metadata), metadata.planner_data or {}
        paths = {key: tuple(planned.get(key, (key,))) for key in known}
    is_ours = STATE_KEY in known  # its frames have no CRC; a folder that was pulled has digests
    if MANIFEST_FILE in files.names:
        _check_digests(files)
    flat: dict[str, Any] = {}
    for key, described in known.items():
        if key != STATE_KEY and len(paths[key]) > 1 and not _may_want(str(paths[key][0]), objects):
            continue
        if isinstance(described, TensorStorageMetadata):
            flat[key] = _whole(files, metadata, key, described, is_ours=is_ours)
        else:
            flat[key] = _piece(files, metadata, MetadataIndex(key), is_ours=False)
    return flat, paths


def _whole(files: Files, metadata: Metadata, key: str, described: TensorStorageMetadata, *, is_ours: bool) -> Tensor:
    whole = torch.empty(described.size, dtype=described.properties.dtype)
    for chunk in described.chunks:
        part = _piece(files, metadata, MetadataIndex(key, chunk.offsets), is_ours=is_ours)
        target = whole
        for dimension, (at, length) in enumerate(zip(chunk.offsets, chunk.sizes, strict=True)):
            target = target.narrow(dimension, at, length)
        if not isinstance(part, Tensor) or part.shape != target.shape or part.dtype != whole.dtype:
            raise NoLoadableCheckpoint(f"{files.where}: {key} is not the tensor that {METADATA} describes")
        target.copy_(part)
    return whole


def _piece(files: Files, metadata: Metadata, index: MetadataIndex, *, is_ours: bool) -> Any:  # Any: a tensor or value
    where = (metadata.storage_data or {}).get(index)
    if where is None:
        raise NoLoadableCheckpoint(f"{files.where}: {METADATA} does not say where {index.fqn} is")
    if getattr(where, "transform_descriptors", None):
        raise MismatchedState(
            f"{files.where}: {index.fqn} is stored through {where.transform_descriptors}", next_step="save it plainly"
        )
    data = files.read(where.relative_path)
    if where.offset + where.length > len(data):
        raise NoLoadableCheckpoint(
            f"{files.where}: {where.relative_path} has {len(data)} bytes, {index.fqn} ends at "
            f"{where.offset + where.length}",
            next_step="name another checkpoint, or get this one again",
        )
    piece = data[where.offset : where.offset + where.length]
    if is_ours:
        with files.reading(where.relative_path, index.fqn):
            return torch.load(io.BytesIO(piece), map_location="cpu", weights_only=True)
    return loaded(files, where.relative_path, piece, index.fqn)


def _check_digests(files: Files) -> None:
    """A folder that `spotproof checkpoint pull` wrote says what its bytes have to be."""
    with files.reading(MANIFEST_FILE):
        manifest = decode_manifest(bytes(files.read(MANIFEST_FILE)))
    for part in manifest.parts:
        data = files.read(part.image.name)
        for offset, chunk in placed(part.image):
            if digest(data[offset : offset + chunk.bytes]) != chunk.digest:
                raise NoLoadableCheckpoint(f"{files.where}: {part.image.name} is damaged at byte {offset}")


def _put(tree: dict[str, Any], path: tuple[Any, ...], value: object) -> None:
    """Lists are dicts of numbers here; `_listed` makes lists of them again."""
    for step in path[:-1]:
        tree = tree.setdefault(step, {})
    tree[path[-1]] = value


def _listed(value: Any) -> Any:  # Any: nested state
    if not isinstance(value, dict):
        return value
    inner = {key: _listed(item) for key, item in value.items()}
    if inner and set(inner) == set(range(len(inner))):
        return [inner[index] for index in range(len(inner))]
    return inner


# --------------------------------------------------------------------------------------------- what belongs to what
def _kind(thing: object) -> str:
    return MODULE if isinstance(thing, nn.Module) else OPTIMIZER if isinstance(thing, torch.optim.Optimizer) else OBJECT


def _names_for(name: str, objects: Mapping[str, object]) -> tuple[str, ...]:
    """Under which names of the checkpoint the state of a tracked object is looked for, in order."""
    kind = _kind(objects[name])
    is_sole = sum(_kind(thing) == kind for thing in objects.values()) == 1
    return (name, f"{name}{_SUFFIX}", *(_SOLE.get(kind, ()) if is_sole else ()))


def _may_want(top: str, objects: Mapping[str, object]) -> bool:
    return any(top in _names_for(name, objects) for name in objects)


def _found(name: str, thing: object, tree: Mapping[str, Any], objects: Mapping[str, object]) -> Any:  # Any: its state
    for candidate in _names_for(name, objects):
        if isinstance(tree.get(candidate), Mapping | list | tuple):
            return tree[candidate]
    if not isinstance(thing, nn.Module):
        return None
    flat = {key: value for key, value in tree.items() if isinstance(value, Tensor)}
    modules = [one for one in objects.values() if isinstance(one, nn.Module)]
    if len(modules) == 1:
        return flat or None
    own = {key.removeprefix(f"{name}."): value for key, value in flat.items() if key.startswith(f"{name}.")}
    return own or None


def _document_of(where: str, flat: Mapping[str, Any]) -> Mapping[str, Json] | None:
    """The tracked objects as our own state document says them; None: the checkpoint is not one of `Run`."""
    text = flat.get(STATE_KEY)
    if not isinstance(text, Tensor):
        return None
    try:
        nodes: Mapping[str, Json] = json.loads(bytes(text.numpy()))["objects"]
    except (KeyError, ValueError) as error:
        raise NoLoadableCheckpoint(f"{where}: {STATE_KEY} does not parse: {error!r}") from error
    return {name: _unsharded(node) for name, node in nodes.items()} or None


def _unsharded(node: Json) -> Json:
    """Parts of ranks have become whole tensors."""
    if isinstance(node, list):
        return [_unsharded(item) for item in node]
    if not isinstance(node, dict):
        return node
    if set(node) == {"$shard"}:
        return {"$tensor": node["$shard"][0]}
    return {key: _unsharded(item) for key, item in node.items()}


def _need_modules(
    where: str, objects: Mapping[str, object], nodes: Mapping[str, Json], tree: Mapping[str, Any]
) -> None:
    missing = [name for name, thing in objects.items() if isinstance(thing, nn.Module) and name not in nodes]
    if missing:
        there = ", ".join(sorted(map(str, tree))[:10])
        raise MismatchedState(f"{where} has nothing for {', '.join(missing)}; it has {there}", next_step=_FIT)


# ---------------------------------------------------------------------------------------- as our own document has it
def _node(name: str, thing: object, value: Any, objects: Mapping[str, object], sink: TensorSink) -> Json:
    if isinstance(thing, nn.Module):
        return _module_node(name, thing, value, sink)
    if isinstance(thing, torch.optim.Optimizer):
        return _optimizer_node(name, thing, value, objects, sink)
    return {KIND: OBJECT, "state": tagged.encode(value, path=name, hook=sink.hook)}


def _module_node(name: str, module: nn.Module, value: Mapping[str, Any], sink: TensorSink) -> Json:
    """Its keys without what wrappers have added to them."""
    here = {canonical_name(module, key) for key in module.state_dict()}
    plain = {".".join(part for part in key.split(".") if part not in WRAPPERS): item for key, item in value.items()}
    prefix = "module."
    if all(key.startswith(prefix) for key in plain) and not any(key.startswith(prefix) for key in here):
        plain = {key.removeprefix(prefix): item for key, item in plain.items()}
    versions = {
        key: info["version"]
        for key, info in getattr(value, "_metadata", {}).items()
        if isinstance(info, Mapping) and info.get("version", 1) != 1
    }
    # Each by itself, so that tied weights need not be tied in the same way.
    state = {key: _tensor_node(name, key, item, sink) for key, item in plain.items()}
    return {KIND: MODULE, "state": state, "versions": versions}


def _tensor_node(name: str, key: str, item: object, sink: TensorSink) -> Json:
    return tagged.encode(item, path=f"{name}.{key}", hook=sink.hook)


def _optimizer_node(
    name: str, optimizer: torch.optim.Optimizer, value: Any, objects: Mapping[str, object], sink: TensorSink
) -> Json:
    """By the parameters' names: those of the checkpoint, or those that stand at the same places here."""
    groups, state = _groups_of(name, value)
    order = [parameter for group in groups for parameter in group["params"]]
    names = optimizer_names(name, optimizer, objects)
    named = [word for group in groups for word in group.get("param_names", ())]
    if all(isinstance(parameter, str) for parameter in order):
        known = {parameter: _bare(parameter) for parameter in order}
    elif len(named) == len(order):
        known = {parameter: _bare(word) for parameter, word in zip(order, named, strict=True)}
    elif len(order) == len(names):
        known = dict(zip(order, names, strict=True))
    else:
        raise MismatchedState(f"{name}: {len(order)} parameters in the checkpoint, {len(names)} here", next_step=_FIT)
    _check_shapes(name, optimizer, names, {known[key]: item for key, item in state.items() if key in known})
    body = {known.get(key, key): item for key, item in state.items()}
    kept = [{key: item for key, item in group.items() if key != "param_names"} for group in groups]
    renamed = [{**group, "params": [known[parameter] for parameter in group["params"]]} for group in kept]
    return {
        KIND: OPTIMIZER,
        "state": tagged.encode(body, path=f"{name}.state", hook=sink.hook),
        "groups": tagged.encode(renamed, path=f"{name}.param_groups", hook=sink.hook),
        "rest": {},
    }


def _groups_of(name: str, value: Any) -> tuple[list[dict[str, Any]], dict[Any, Any]]:
    groups = value.get("param_groups") if isinstance(value, Mapping) else None
    state = value.get("state", {}) if isinstance(value, Mapping) else None
    if isinstance(state, list):
        state = dict(enumerate(state))
    if not isinstance(groups, list) or not isinstance(state, dict) or not all("params" in group for group in groups):
        raise MismatchedState(f"{name}: the checkpoint's is no state_dict of an optimizer", next_step=_FIT)
    if all(isinstance(parameter, int) for group in groups for parameter in group["params"]):
        state = {int(key) if isinstance(key, str) and key.isdecimal() else key: item for key, item in state.items()}
    return [dict(group) for group in groups], state  # DCP makes text of the numbers


def _bare(parameter: str) -> str:
    words = [word for word in parameter.split(".") if word not in WRAPPERS]
    return ".".join(words[1:] if words[0] == "module" else words)


def _check_shapes(
    name: str, optimizer: torch.optim.Optimizer, names: list[str], state: Mapping[str, Mapping[str, Any]]
) -> None:
    """State that was matched by order alone must at least have its parameter's shape, if it is not a single number."""
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    kind = type(optimizer)
    is_elementwise = kind.__module__.startswith("torch.optim.") and kind not in _OF_ANOTHER_SHAPE
    problems = [
        f"{name}.state.{own}.{key}: shape {tuple(item.shape)} in the checkpoint, {tuple(parameter.shape)} here"
        for own, parameter in zip(names, parameters, strict=True)
        for key, item in state.get(own, {}).items()
        if isinstance(item, Tensor) and item.dim() and item.shape != parameter.shape
        if is_elementwise or item.dim() == parameter.dim()
    ]
    if problems:
        raise MismatchedState("; ".join(problems[:10]), next_step=_FIT)

"""Python values as JSON and back, exactly: same value, same type, no code ever run.

Plain JSON is used where it is exact; everything else becomes an object with one key that begins with `$`, e.g.
`{"$tuple": [1, 2]}`. A value without an exact form is refused by its path, before the run and not at the restore.
Tensors and arrays are not ours: the caller's hook stores them elsewhere and leaves a reference.
"""

from __future__ import annotations

import base64
import json
import math
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Mapping
from datetime import date, datetime, time, timedelta, timezone
from pathlib import PosixPath, PurePath, PurePosixPath, PureWindowsPath
from typing import Any, Final

from spotproof.errors import BadManifest, UnstorableState

Json = Any  # Any: JSON is where types end; what comes back from it is checked value by value
Hook = Callable[[object, str], Json | None]
"""(value, path) -> its JSON, or None where the hook does not know this kind of value."""
Unhook = Callable[[str, Json, str], object]
"""(tag, content, path) -> the value; raises BadManifest for a tag that it does not know."""

_DEPTH_MAX: Final = 100
_JSON_INT_BITS: Final = 1024  # longer ones travel as hex: Python limits the decimal digits that it parses
_FACTORIES: Final[Mapping[str, type]] = {kind.__name__: kind for kind in (bool, dict, float, int, list, set, str)}
_PATHS: Final[Mapping[str, type[PurePath]]] = {
    kind.__name__: kind for kind in (PosixPath, PurePosixPath, PureWindowsPath)
}
_NEXT_STEP: Final = "store it as numbers, text, lists, dicts or tensors, or leave it out of state_dict()"


def encode(value: object, *, path: str, hook: Hook) -> Json:
    """`value` as JSON.

    Raises:
        UnstorableState: something in it has no exact, safe form; `path` names that value.
    """
    return _encode(value, path, hook, 0)


def decode(node: Json, *, path: str, unhook: Unhook) -> object:
    """The value that `encode` made `node` from. Raises BadManifest, naming the path, if it is no such node."""
    try:
        return _decode(node, path, unhook)
    except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
        raise BadManifest(f"stored state at {path} does not parse: {error!r}") from error


def dumps(node: Json) -> bytes:
    """Compact ASCII JSON in the order of insertion: dicts come back in the order they had."""
    return json.dumps(node, separators=(",", ":"), allow_nan=False).encode("ascii")


def refuse(value: object, path: str, why: str = "") -> UnstorableState:
    """The error for a value that cannot be stored."""
    kind = f"{type(value).__module__}.{type(value).__qualname__}"
    reason = f" ({why})" if why else ""
    return UnstorableState(f"a {kind} cannot be stored safely{reason}", path=path, next_step=_NEXT_STEP)


def _encode(value: object, path: str, hook: Hook, depth: int) -> Json:
    if depth > _DEPTH_MAX:
        raise refuse(value, path, f"nested deeper than {_DEPTH_MAX} levels, or it contains itself")
    if value is None or type(value) in (bool, str):
        return value
    scalar = _encode_scalar(value, path)
    if scalar is not None:
        return scalar
    hooked = hook(value, path)
    if hooked is not None:
        return hooked
    return _encode_container(value, path, hook, depth + 1)


def _encode_scalar(value: object, path: str) -> Json | None:
    match value:
        case int() if type(value) is int:
            return value if value.bit_length() <= _JSON_INT_BITS else {"$int": hex(value)}
        case float() if type(value) is float:
            return value if math.isfinite(value) else {"$float": repr(value)}
        case complex() if type(value) is complex:
            return {"$complex": [_encode_scalar(value.real, path), _encode_scalar(value.imag, path)]}
        case bytes() | bytearray() if type(value) in (bytes, bytearray):
            return {f"${type(value).__name__}": base64.b64encode(value).decode("ascii")}
        case PurePath() if type(value).__name__ in _PATHS:
            return {"$path": [type(value).__name__, str(value)]}
        case _:
            return _encode_time(value, path)


def _encode_time(value: object, path: str) -> Json | None:
    if type(value) is timedelta:
        return {"$timedelta": [value.days, value.seconds, value.microseconds]}
    if type(value) is date:
        return {"$date": value.isoformat()}
    if type(value) is datetime or type(value) is time:
        if value.tzinfo is not None and type(value.tzinfo) is not timezone:
            raise refuse(value, path, "its time zone has rules; convert it to UTC")
        return {f"${type(value).__name__}": [value.isoformat(), value.fold]}
    return None


def _encode_container(value: object, path: str, hook: Hook, depth: int) -> Json:
    if type(value) is list:
        return _encode_items(value, path, hook, depth)
    if type(value) is tuple:
        return {"$tuple": _encode_items(list(value), path, hook, depth)}
    if type(value) in (set, frozenset):
        items = sorted(value, key=lambda item: (type(item).__name__, repr(item)))  # type: ignore[call-overload]
        return {f"${type(value).__name__}": _encode_items(items, path, hook, depth)}
    if type(value) in (dict, OrderedDict):
        body = _encode_dict(value, path, hook, depth)  # type: ignore[arg-type]
        return body if type(value) is dict else {"$OrderedDict": body}
    if type(value) is Counter:
        return {"$Counter": _encode_dict(value, path, hook, depth)}
    if type(value) is deque:
        return {"$deque": [value.maxlen, _encode_items(list(value), path, hook, depth)]}
    if type(value) is defaultdict:
        factory = value.default_factory
        name = None if factory is None else getattr(factory, "__name__", "")
        if name is not None and _FACTORIES.get(name) is not factory:
            raise refuse(value, path, "its default factory is code")
        return {"$defaultdict": [name, _encode_dict(value, path, hook, depth)]}
    raise refuse(value, path)


def _encode_items(items: list[Any], path: str, hook: Hook, depth: int) -> list[Json]:
    return [_encode(item, f"{path}.{index}", hook, depth) for index, item in enumerate(items)]


def _encode_dict(value: Mapping[Any, Any], path: str, hook: Hook, depth: int) -> Json:
    """Text keys that cannot be taken for a tag stay a JSON object; other keys make a list of pairs."""
    for key in value:
        if type(key) not in (str, int):
            raise refuse(key, f"{path}[{key!r}]", "as a key only text and integers are")
    encoded = [(key, _encode(item, f"{path}.{key}", hook, depth)) for key, item in value.items()]
    if all(type(key) is str and not key.startswith("$") for key in value):
        return dict(encoded)
    return {"$dict": [[_encode_scalar(key, path) if type(key) is int else key, item] for key, item in encoded]}


def _decode(node: Json, path: str, unhook: Unhook) -> object:
    if isinstance(node, list):
        return [_decode(item, f"{path}.{index}", unhook) for index, item in enumerate(node)]
    if not isinstance(node, dict):
        return node
    tag = next(iter(node), "")
    if len(node) != 1 or not tag.startswith("$"):
        return {key: _decode(item, f"{path}.{key}", unhook) for key, item in node.items()}
    return _decode_tagged(tag, node[tag], path, unhook)


def _decode_tagged(tag: str, content: Json, path: str, unhook: Unhook) -> object:
    if tag in _SCALARS:
        return _SCALARS[tag](content)
    if tag in _SEQUENCES:
        return _SEQUENCES[tag](_decode(content, path, unhook))
    if tag == "$dict":
        return {_decode(key, path, unhook): _decode(item, f"{path}.{key}", unhook) for key, item in content}
    if tag == "$deque":
        longest, items = content
        return deque(_decode(items, path, unhook), longest)  # type: ignore[call-overload]
    if tag == "$defaultdict":
        name, body = content
        return defaultdict(None if name is None else _FACTORIES[name], _decode(body, path, unhook))  # type: ignore[call-overload]
    return unhook(tag, content, path)


def _complex(content: Json) -> complex:
    real, imaginary = (part if isinstance(part, float) else float(part["$float"]) for part in content)
    return complex(real, imaginary)


_SCALARS: Final[Mapping[str, Callable[[Json], object]]] = {
    "$int": lambda text: int(text, 16),
    "$float": float,
    "$complex": _complex,
    "$bytes": lambda text: base64.b64decode(text, validate=True),
    "$bytearray": lambda text: bytearray(base64.b64decode(text, validate=True)),
    "$path": lambda pair: _PATHS[pair[0]](pair[1]),
    "$timedelta": lambda parts: timedelta(days=parts[0], seconds=parts[1], microseconds=parts[2]),
    "$date": date.fromisoformat,
    "$datetime": lambda pair: datetime.fromisoformat(pair[0]).replace(fold=pair[1]),
    "$time": lambda pair: time.fromisoformat(pair[0]).replace(fold=pair[1]),
}
_SEQUENCES: Final[Mapping[str, Callable[[Any], object]]] = {  # Any: what _decode made of the content
    "$tuple": tuple,
    "$set": set,
    "$frozenset": frozenset,
    "$OrderedDict": OrderedDict,
    "$Counter": Counter,
}

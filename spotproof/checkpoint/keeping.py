"""Capturing again and again: an object that is as it was at the save before is not taken apart anew.

Thousands of tensors make tens of milliseconds of Python for each save, nearly all of them to find the same names in the
same places. What is kept holds no tensor: it is good for as long as a walk over the live objects finds the same
structure, and every tensor at its address with its dtype and shape. Whatever is not plain (a `state_dict` of one's own,
hooks, sharded tensors, objects) is captured anew each time. The answer is always what `capture` would give.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, islice
from operator import attrgetter, eq
from typing import Any, Final

import torch
from torch import Tensor, nn

from spotproof.checkpoint import tagged
from spotproof.checkpoint.sharded import form_of
from spotproof.checkpoint.state import (
    DOCUMENT_FORMAT,
    KIND,
    OPTIMIZER,
    Captured,
    TensorSink,
    capture,
    encode_object,
    encode_rng,
    optimizer_names,
)

_PLAIN: Final = frozenset({Tensor, nn.Parameter, nn.Buffer})
_OWN_WAYS: Final = ("state_dict", "_save_to_state_dict", "get_extra_state", "named_parameters", "named_modules")
_HOOKS: Final = ("_state_dict_hooks", "_state_dict_pre_hooks")
_OPTIMIZER_HOOKS: Final = ("_optimizer_state_dict_pre_hooks", "_optimizer_state_dict_post_hooks")
_GROUPS_PATH: Final = "param_groups"

View = tuple[object, ...]
"""How a sink sees a tensor: its memory, and the form in which that is read."""

_dtype: Final = attrgetter("dtype")
_shape: Final = attrgetter("shape")
_trained: Final = attrgetter("requires_grad")


@dataclass(frozen=True, slots=True)
class Look:
    """An object at one moment: all that the names and the order of its tensors depend on, and the live tensors."""

    structure: list[object]
    tensors: list[Tensor]


@dataclass(frozen=True, slots=True)
class _Sight:
    """Where tensors lay and what form they had. Compared lazily: no object is made that lives longer than a moment."""

    pointers: tuple[int, ...]
    dtypes: tuple[torch.dtype, ...]
    shapes: tuple[torch.Size, ...]
    strides: tuple[tuple[int, ...], ...]
    is_complex: bool  # some of them: only these can be conjugated

    @classmethod
    def of(cls, tensors: Sequence[Tensor]) -> _Sight:
        return cls(
            tuple(map(Tensor.data_ptr, tensors)),
            tuple(map(_dtype, tensors)),
            tuple(map(_shape, tensors)),
            tuple(map(Tensor.stride, tensors)),
            any(map(Tensor.is_complex, tensors)),
        )

    def is_still(self, tensors: Sequence[Tensor]) -> bool:
        """Whether these tensors look alike; there are as many."""
        return (
            all(map(eq, map(Tensor.data_ptr, tensors), self.pointers))
            and all(map(eq, map(_dtype, tensors), self.dtypes))
            and all(map(eq, map(_shape, tensors), self.shapes))
            and all(map(eq, map(Tensor.stride, tensors), self.strides))
            and not any(map(Tensor.is_neg, tensors))
            and not (self.is_complex and any(map(Tensor.is_conj, tensors)))
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Kept:
    """What an object came to. `before` is its JSON, of an optimizer up to its groups, whose values change."""

    structure: list[object]
    sight: _Sight
    keys: Sequence[str]
    places: Sequence[int]  # of each key: which of the look's tensors it is
    aliases: Mapping[str, str]
    views: dict[View, str]
    before: bytes
    parameters: Sequence[bytes] = ()  # of each group of an optimizer: its parameters' names as JSON

    def is_still(self, look: Look | None) -> bool:
        """Whether the object would come to the same."""
        return look is not None and look.structure == self.structure and self.sight.is_still(look.tensors)


@dataclass(frozen=True, slots=True)
class _Loose:
    """What the tensors that are captured anew have to be like, so that all the rest of a plan still holds."""

    forms: Mapping[str, tuple[object, ...]]
    aliases: Mapping[str, str]
    wholes: object
    trained: tuple[bool, ...]


@dataclass(frozen=True, slots=True)
class _Marks:
    """How much stood in a sink that had been captured anew (views) or in all (tensors, aliases)."""

    tensors: int
    aliases: int
    views: int

    @classmethod
    def of(cls, way: _Pass) -> _Marks:
        return cls(len(way.sink.tensors), len(way.sink.aliases), len(way.views.maps[0]))

    def since(self, way: _Pass) -> tuple[list[str], dict[str, str], dict[View, str]]:
        """Keys, aliases and views that have been added."""
        keys = list(islice(way.sink.tensors, self.tensors, None))
        aliases = dict(islice(way.sink.aliases.items(), self.aliases, None))
        return keys, aliases, dict(islice(way.views.maps[0].items(), self.views, None))

    def plus(self, kept: _Kept) -> _Marks:
        """With all that `kept` adds."""
        return _Marks(self.tensors + len(kept.keys), self.aliases + len(kept.aliases), self.views)


@dataclass(slots=True)
class _Pass:
    """One capture on its way."""

    views: ChainMap[View, str] = field(default_factory=ChainMap)
    sink: TensorSink = field(init=False)
    texts: list[bytes] = field(default_factory=list)
    kept: dict[str, _Kept] = field(default_factory=dict)
    steady: list[str] = field(default_factory=list)  # keys of objects that were captured anew and should not have moved
    loose: list[str] = field(default_factory=list)
    is_intact: bool = True  # everything that had been kept is still good, and nothing is kept for the first time

    def __post_init__(self) -> None:
        self.sink = TensorSink(keys=self.views)


class Keeper:
    """`capture` of the same objects, save after save."""

    def __init__(self, objects: Mapping[str, object]) -> None:
        self._objects = objects
        self._kept: dict[str, _Kept] = {}
        self._loose: _Loose | None = None
        self._plan = object()

    def capture(self, *, counters: Mapping[str, object]) -> Captured:
        """As `state.capture`, except that tensors may require gradients. Raises UnstorableState as that does.

        Where `Captured.plan` is the same object as in the answer before, all names, forms and aliases are the same too,
        and every tensor that is not `loose` lies where it lay.
        """
        looks = {name: look_at(thing) for name, thing in self._objects.items()}
        way = _Pass()
        if not self._walk(way, looks):
            self._kept = {}
            return capture(self._objects, counters=counters)  # two objects have come to share what is kept
        first = len(way.sink.tensors)
        head = f'{{"format":{DOCUMENT_FORMAT},"objects":{{'.encode()
        rng = tagged.dumps(encode_rng(way.sink))
        run = tagged.dumps(tagged.encode(dict(counters), path="run", hook=way.sink.hook))
        way.loose += list(way.sink.tensors)[first:]
        self._note(way)
        return Captured(
            tensors=way.sink.tensors,
            aliases=way.sink.aliases,
            wholes=way.sink.wholes,
            document=b"".join((head, b",".join(way.texts), b'},"rng":', rng, b',"run":', run, b"}")),
            plan=self._plan,
            loose=frozenset(way.loose),
        )

    def _walk(self, way: _Pass, looks: Mapping[str, Look | None]) -> bool:
        """Capture every object, in order. False: something that was captured anew lies where kept tensors lie."""
        still = {name: name in self._kept and self._kept[name].is_still(look) for name, look in looks.items()}
        modules = [name for name, thing in self._objects.items() if isinstance(thing, nn.Module)]
        names_stay = all(still[name] for name in modules)
        for name, thing in self._objects.items():
            look = looks[name]
            is_good = still[name] and way.is_intact and (names_stay or name in modules)
            if is_good and look is not None:
                kept = self._kept[name]
                text = _text_of(kept, name, thing)
                if text is None or not _take(way, kept, look):
                    return False
                way.kept[name] = kept
                way.texts.append(_named(name, text))
            else:
                is_named = name in modules or all(looks[module] is not None for module in modules)
                self._capture_anew(way, name, thing, look if is_named else None)
        return True

    def _capture_anew(self, way: _Pass, name: str, thing: object, look: Look | None) -> None:
        marks = _Marks.of(way)
        body = encode_object(name, thing, self._objects, way.sink)
        text = tagged.dumps(body)
        way.texts.append(_named(name, text))
        kept = None
        if isinstance(thing, torch.optim.Optimizer) and look is not None:
            state = tagged.dumps({KIND: OPTIMIZER, "state": body["state"]})[:-1]
            names = iter(optimizer_names(name, thing, self._objects))
            parameters = [tagged.dumps([next(names) for _ in group["params"]]) for group in thing.param_groups]
            kept = _keep(way, marks, look, before=state, parameters=parameters)
        elif look is not None:
            kept = _keep(way, marks, look, before=text, parameters=())
        way.is_intact = way.is_intact and kept is None and name not in self._kept
        if kept is not None:
            way.kept[name] = kept
        else:
            is_steady = isinstance(thing, nn.Module | torch.optim.Optimizer)
            (way.steady if is_steady else way.loose).extend(marks.since(way)[0])

    def _note(self, way: _Pass) -> None:
        """Remember this pass; it is another plan if anything is not as it was."""
        sink = way.sink
        forms = {key: _form(sink.tensors[key]) for key in way.loose}
        forms |= {key: _place(sink.tensors[key]) for key in way.steady}
        anew = set(sink.aliases).difference(*(kept.aliases for kept in way.kept.values()))
        others = [thing for name, thing in self._objects.items() if name not in way.kept]
        trained = [_trained(value) for thing in others if isinstance(thing, nn.Module) for value in thing.parameters()]
        loose = _Loose(forms, {alias: sink.aliases[alias] for alias in anew}, form_of(sink.wholes), tuple(trained))
        if not way.is_intact or loose != self._loose:
            self._plan = object()
        self._kept, self._loose = way.kept, loose


def look_at(thing: object) -> Look | None:
    """How `thing` looks now; None: it is not plain, so its looks do not say what `state_dict` would give."""
    if isinstance(thing, nn.Module):
        look = _look_at_module(thing)
    elif isinstance(thing, torch.optim.Optimizer):
        look = _look_at_optimizer(thing)
    else:
        return None
    return look if look is not None and set(map(type, look.tensors)) <= _PLAIN else None


def _is_plain_kind(kind: type[nn.Module]) -> bool:
    return all(getattr(kind, name, None) is getattr(nn.Module, name, None) for name in _OWN_WAYS)


def _look_at_module(root: nn.Module) -> Look | None:
    structure: list[object] = []
    tensors: list[Tensor] = []
    waiting: list[nn.Module] = [root]
    plain: set[type[nn.Module]] = set()
    while waiting:
        module = waiting.pop()
        inside, kind = vars(module), type(module)
        if kind not in plain:
            if not _is_plain_kind(kind):
                return None
            plain.add(kind)
        if any(inside.get(name) for name in _HOOKS) or any(name in inside for name in _OWN_WAYS):
            return None
        parameters, buffers, children = inside["_parameters"], inside["_buffers"], inside["_modules"]
        hidden = inside["_non_persistent_buffers_set"]
        mine = [value for value in parameters.values() if value is not None]
        structure += (kind, *parameters, *map(id, parameters.values()), *map(_trained, mine))
        structure += (buffers.keys() - hidden, *buffers, *(value is None for value in buffers.values()), *children)
        tensors += mine
        tensors += [value for name, value in buffers.items() if value is not None and name not in hidden]
        below = [child for child in children.values() if child is not None]
        structure.append(len(below))
        waiting += below
    return Look(structure, tensors)


def _look_at_optimizer(optimizer: torch.optim.Optimizer) -> Look | None:
    inside = vars(optimizer)
    if type(optimizer).state_dict is not torch.optim.Optimizer.state_dict or "state_dict" in inside:
        return None
    entries: list[Any] = list(optimizer.state.values())
    if any(inside.get(name) for name in _OPTIMIZER_HOOKS) or not set(map(type, entries)) <= {dict}:
        return None
    if not set(map(type, optimizer.state)) <= _PLAIN:
        return None
    values = list(chain.from_iterable(map(dict.values, entries)))
    nothing = [index for index, value in enumerate(values) if value is None]
    structure: list[object] = [type(optimizer), *map(id, optimizer.state), None, *nothing, None]
    structure += chain.from_iterable(entries)
    structure += map(len, entries)
    for group in optimizer.param_groups:
        structure += (None, *map(id, group["params"]))
    return Look(structure, [value for value in values if value is not None] if nothing else values)


def _keep(way: _Pass, marks: _Marks, look: Look, *, before: bytes, parameters: Sequence[bytes]) -> _Kept | None:
    """What can be kept of what stands in the sink behind `marks`. None where a tensor is not among those looked at, or
    is an alias of one that need not be there next time."""
    sink = way.sink
    keys, aliases, views = marks.since(way)
    holders = {key for other in way.kept.values() for key in other.keys}
    if any(map(_is_turned, look.tensors)) or not set(aliases.values()) <= {*keys, *holders}:
        return None
    places = {_place(tensor): at for at, tensor in enumerate(look.tensors)}
    found = [places.get(_place(sink.tensors[key])) for key in keys]
    if None in found:
        return None
    return _Kept(
        structure=look.structure,
        sight=_Sight.of(look.tensors),
        keys=keys,
        places=[at for at in found if at is not None],
        aliases=aliases,
        views=views,
        before=before,
        parameters=parameters,
    )


def _text_of(kept: _Kept, name: str, thing: object) -> bytes | None:
    """The object's JSON now; None: an optimizer's groups hold what needs another form."""
    if not isinstance(thing, torch.optim.Optimizer):
        return kept.before
    sink = TensorSink()
    groups = []
    for index, group in enumerate(thing.param_groups):
        values = {key: value for key, value in group.items() if key != "params"}
        if not all(type(key) is str and not key.startswith("$") for key in values):
            return None
        encoded = tagged.encode(values, path=f"{name}.{_GROUPS_PATH}.{index}", hook=sink.hook)
        rest = tagged.dumps(encoded)[:-1] + (b"," if values else b"")
        groups.append(rest + b'"params":' + kept.parameters[index] + b"}")
    if sink.tensors or sink.wholes:
        return None  # a learning rate that is a tensor
    return kept.before + b',"groups":[' + b",".join(groups) + b'],"rest":{}}'


def _take(way: _Pass, kept: _Kept, look: Look) -> bool:
    """Add to the sink what `encode_object` would; False: another object has just added some of it."""
    if any(view in kept.views for view in way.views.maps[0]):
        return False
    expected = _Marks.of(way).plus(kept)
    way.sink.tensors.update(zip(kept.keys, map(look.tensors.__getitem__, kept.places), strict=True))
    way.sink.aliases.update(kept.aliases)
    way.views.maps.append(kept.views)
    return _Marks.of(way) == expected


def _named(name: str, text: bytes) -> bytes:
    return tagged.dumps(name) + b":" + text


def _place(tensor: Tensor) -> tuple[object, ...]:
    return tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride()


def _form(tensor: Tensor) -> tuple[object, ...]:
    return tensor.dtype, tensor.shape


def _is_turned(tensor: Tensor) -> bool:
    """Whether its values are not what its memory says: negated or conjugated when they are read."""
    return tensor.is_neg() or tensor.is_conj()

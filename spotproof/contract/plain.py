"""Plain values, from JSON or the table, back to the types that a dataclass names. Nothing is converted silently."""

from __future__ import annotations

import functools
import types
import typing
from collections.abc import Callable
from enum import StrEnum
from typing import Any

from spotproof.contract.frozen import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Reader:
    """`typed` for one hint, looked through once: contents of exactly these types stand as they are, others are read."""

    passes: frozenset[type[Any]]
    read: Callable[[Any], Any]


def reader_of(hint: Any) -> Reader:
    """What makes contents a `hint`, with the promises of `typed`."""
    choices = typing.get_args(hint) if _is_union(hint) else (hint,)
    kind = next(choice for choice in choices if choice is not types.NoneType)
    is_plain = kind in (str, int, float, bool)
    passes = frozenset({types.NoneType} & set(choices) | ({kind} if is_plain else set()))
    if isinstance(kind, type) and issubclass(kind, StrEnum):
        return Reader(passes=passes, read=_member(kind))
    if typing.get_origin(kind) in (tuple, frozenset):
        return Reader(passes=passes, read=functools.partial(_several, origin=typing.get_origin(kind)))
    return Reader(passes=passes, read=functools.partial(typed, hint=hint))


def _member(kind: type[StrEnum]) -> Callable[[Any], StrEnum]:
    members: dict[Any, StrEnum] = {member.value: member for member in kind}

    def read(content: Any) -> StrEnum:
        try:
            return members[content]
        except (KeyError, TypeError):
            return kind(content)  # raises ValueError, in its words

    return read


def typed(content: Any, hint: Any) -> Any:  # Any: the edge where plain values become types
    """`content` as a `hint`: int, float, bool, str, a StrEnum, a tuple or frozenset of texts, or one of these or None.

    An int is a float too; a bool is no int; a text is no tuple of letters. Raises ValueError if it does not fit.
    """
    choices = typing.get_args(hint) if _is_union(hint) else (hint,)
    if content is None and types.NoneType in choices:
        return None
    kind = next(choice for choice in choices if choice is not types.NoneType)
    origin = typing.get_origin(kind)
    if origin in (tuple, frozenset):
        return _several(content, origin)
    if isinstance(kind, type) and issubclass(kind, StrEnum):
        return kind(content)
    if kind is float and type(content) is int:
        return float(content)
    if type(content) is not kind:
        raise ValueError(f"{content!r} is no {kind.__name__}")
    return content


def _several(content: Any, origin: Any) -> Any:
    if not isinstance(content, list | tuple | set | frozenset) or not all(isinstance(one, str) for one in content):
        raise ValueError(f"{content!r} is not several texts")
    return origin(content)


def _is_union(hint: Any) -> bool:
    return typing.get_origin(hint) in (typing.Union, types.UnionType)

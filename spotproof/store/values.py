"""Python values <-> DynamoDB's typed attributes, for both tables, so that neither can store what the other cannot.

A whole number always comes back as `int`, any other number as `float` with the same value: nothing that leaves here
is a Decimal, so it can be counted with, put into JSON and compared.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Collection, Mapping
from decimal import Decimal
from typing import Any

from spotproof.contract.keys import Key
from spotproof.errors import StoreError
from spotproof.store.table import Item, Value

__all__ = ["MAX_ITEM_BYTES", "Wire", "from_wire", "item_from_wire", "item_to_wire", "key_to_wire", "to_wire"]

Wire = dict[str, Any]
"""One typed attribute, e.g. {"S": "text"}; the low-level client takes and gives these."""

MAX_ITEM_BYTES = 400 * 1024
"""DynamoDB's limit for names and values of one item together."""

_MAX_DIGITS = 38
_MAX_EXPONENT = 125
_MIN_EXPONENT = -130


class Base64(str):
    """Bytes as they are on the wire, for a client that takes attributes as they stand (store.clients).

    Any other client encodes text before it writes it in base 64 itself: for that one `encode` gives the bytes.
    """

    __slots__ = ()

    def encode(self, encoding: str = "utf-8", errors: str = "strict") -> bytes:
        """The bytes that it stands for."""
        del encoding, errors
        return base64.b64decode(str(self))


def to_wire(value: Value, *, path: str) -> Wire:
    """Return the typed attribute for `value`. Raises StoreError naming `path` for what cannot be stored exactly."""
    match value:
        case None:
            return {"NULL": True}
        case bool():
            return {"BOOL": value}
        case str():
            return {"S": str(value)}
        case int() | float():
            return {"N": _number(value, path=path)}
        case bytes() | bytearray() | memoryview():
            return {"B": Base64(base64.b64encode(value).decode())}
        case set() | frozenset():
            return {"SS": _members(value, path=path)}
        case list() | tuple():
            return {"L": [to_wire(one, path=f"{path}[{n}]") for n, one in enumerate(value)]}
        case Mapping():
            return {"M": {str(name): to_wire(one, path=f"{path}.{name}") for name, one in value.items()}}
        case _:
            raise StoreError(
                f"{path}: a {type(value).__name__} has no form in the table", next_step="store plain values"
            )


def from_wire(wire: Mapping[str, Any]) -> Value:
    """Return the value of a typed attribute; a string set comes back as frozenset."""
    [(kind, held)] = wire.items()
    match kind:
        case "S" | "BOOL":
            return held
        case "NULL":
            return None
        case "N":
            return _from_number(held)
        case "B":
            return base64.b64decode(str.encode(held)) if isinstance(held, str) else bytes(held)
        case "SS":
            return frozenset(held)
        case "L":
            return [from_wire(one) for one in held]
        case "M":
            return {name: from_wire(one) for name, one in held.items()}
        case _:
            raise StoreError(
                f"attribute of type {kind}: not a type that spotproof writes", next_step="see who wrote it"
            )


def key_to_wire(key: Key) -> dict[str, Wire]:
    """Return the two key attributes."""
    return {"pk": {"S": key.pk}, "sk": {"S": key.sk}}


def item_to_wire(key: Key, item: Item) -> dict[str, Wire]:
    """Return the whole item with its key. Raises StoreError if it is larger than DynamoDB takes."""
    wire = {name: to_wire(value, path=name) for name, value in item.items()} | key_to_wire(key)
    size_bytes = sum(len(name.encode()) + _size(attribute) for name, attribute in wire.items())
    if size_bytes > MAX_ITEM_BYTES:
        raise StoreError(
            f"item {key.pk} / {key.sk}: {size_bytes} bytes, the limit is {MAX_ITEM_BYTES}",
            next_step="keep what grows in items of its own",
        )
    return wire


def item_from_wire(wire: Mapping[str, Mapping[str, Any]]) -> Item:
    """Return the plain item of an answer."""
    return {name: from_wire(attribute) for name, attribute in wire.items()}


def _number(value: float, *, path: str) -> str:
    if not (isinstance(value, int) or math.isfinite(value)):
        raise StoreError(f"{path}: {value} has no form in the table", next_step="leave it out or store it as text")
    # repr of a float is the shortest text that reads back as the same float: never more than 17 digits.
    exact = Decimal(value) if isinstance(value, int) else Decimal(repr(value))
    if exact == 0:
        return "0"
    digits = "".join(map(str, exact.as_tuple().digits)).rstrip("0")
    if len(digits) > _MAX_DIGITS or not _MIN_EXPONENT <= exact.adjusted() <= _MAX_EXPONENT:
        raise StoreError(
            f"{path}: {value} needs more digits or range than the table keeps", next_step="store it as text"
        )
    return str(int(exact)) if exact == exact.to_integral_value() else str(exact)


def _from_number(text: str) -> int | float:
    exact = Decimal(text)
    return int(exact) if exact == exact.to_integral_value() else float(text)


def _members(value: Collection[object], *, path: str) -> list[str]:
    members = [member for member in value if isinstance(member, str)]
    if not members or len(members) != len(value):
        raise StoreError(
            f"{path}: only a set of strings with a member can be stored", next_step="leave it out if empty"
        )
    return sorted(members)


def _size(wire: Wire) -> int:
    """Size of a value as DynamoDB counts it; numbers rounded up."""
    [(kind, held)] = wire.items()
    match kind:
        case "S":
            return len(held.encode())
        case "N":
            return len(held) // 2 + 2
        case "B":
            return len(held.encode())
        case "SS":
            return sum(len(member.encode()) for member in held)
        case "L":
            return 3 + sum(1 + _size(one) for one in held)
        case "M":
            return 3 + sum(1 + len(name.encode()) + _size(one) for name, one in held.items())
        case _:
            return 1

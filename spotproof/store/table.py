"""The one small interface to the table, and everything it is asked as plain data.

The domain stores beside this file are written once over `Table`. Two implementations exist: `DynamoTable` on AWS
and `LocalTable` off AWS; one test body holds both to the promises below.

Items are flat: conditions look at top-level attributes only, and a range of keys is one query.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import Protocol

from spotproof.contract.frozen import dataclass
from spotproof.contract.keys import Key

__all__ = [
    "Absent",
    "AllOf",
    "AnyOf",
    "BulkTable",
    "Check",
    "Condition",
    "Contains",
    "Delete",
    "Eq",
    "Exists",
    "Ge",
    "Gt",
    "Item",
    "Key",
    "Lacks",
    "Le",
    "Lt",
    "Ne",
    "Op",
    "Put",
    "Table",
    "Update",
    "Value",
    "Write",
]

Value = object
"""str, int, float, bool, bytes, None, list, dict with str keys, or a non-empty set of str. Anything else is refused."""

Item = Mapping[str, Value]
"""Attributes of one item, `pk` and `sk` among them when it was read."""


# Conditions are positional on purpose: `Eq("status", "open")` is read as the sentence that it is.
@dataclass(frozen=True, slots=True)
class Eq:
    """The attribute is there, of the same type, and equal."""

    attribute: str
    value: Value


@dataclass(frozen=True, slots=True)
class Ne:
    """The attribute is absent, of another type, or different (what DynamoDB's `<>` means)."""

    attribute: str
    value: Value


@dataclass(frozen=True, slots=True)
class Lt:
    """The attribute is there, of the same type, and smaller. An absent attribute compares to nothing."""

    attribute: str
    value: Value


@dataclass(frozen=True, slots=True)
class Le:
    """The attribute is there, of the same type, and not larger."""

    attribute: str
    value: Value


@dataclass(frozen=True, slots=True)
class Gt:
    """The attribute is there, of the same type, and larger."""

    attribute: str
    value: Value


@dataclass(frozen=True, slots=True)
class Ge:
    """The attribute is there, of the same type, and not smaller."""

    attribute: str
    value: Value


@dataclass(frozen=True, slots=True)
class Absent:
    """The item has no such attribute; `Absent("pk")`: there is no item."""

    attribute: str


@dataclass(frozen=True, slots=True)
class Exists:
    """The item has the attribute, whatever it holds; `Exists("pk")`: there is an item."""

    attribute: str


@dataclass(frozen=True, slots=True)
class Contains:
    """The attribute is a set or list that has the member, or a string that has the part."""

    attribute: str
    member: str


@dataclass(frozen=True, slots=True)
class Lacks:
    """The attribute is absent, or a set, list or string without the member."""

    attribute: str
    member: str


@dataclass(frozen=True, slots=True, init=False)
class AllOf:
    """Every one of the conditions holds."""

    conditions: tuple[Condition, ...]

    def __init__(self, first: Condition, *others: Condition) -> None:
        object.__setattr__(self, "conditions", (first, *others))


@dataclass(frozen=True, slots=True, init=False)
class AnyOf:
    """At least one of the conditions holds."""

    conditions: tuple[Condition, ...]

    def __init__(self, first: Condition, *others: Condition) -> None:
        object.__setattr__(self, "conditions", (first, *others))


Condition = Eq | Ne | Lt | Le | Gt | Ge | Absent | Exists | Contains | Lacks | AllOf | AnyOf


@dataclass(frozen=True, slots=True, kw_only=True)
class Put:
    """Replace the whole item. `item` is given without its key."""

    key: Key
    item: Item
    when: Condition | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Update:
    """Change some attributes; creates the item if there is none, so name `Exists("pk")` where that would be wrong.

    `set` assigns, `remove` takes attributes away, `increment` adds to a number (absent counts as 0), `include` and
    `exclude` add and take members of a set. One attribute may appear in one of them only.
    """

    key: Key
    set: Item = field(default_factory=dict)
    remove: Sequence[str] = ()
    increment: Mapping[str, int | float] = field(default_factory=dict)
    include: Mapping[str, frozenset[str]] = field(default_factory=dict)
    exclude: Mapping[str, frozenset[str]] = field(default_factory=dict)
    when: Condition | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Delete:
    """Remove the item; removing what is not there succeeds unless `when` says otherwise."""

    key: Key
    when: Condition | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """Change nothing, but let the transaction lose unless `when` holds for the item."""

    key: Key
    when: Condition


Write = Put | Update | Delete
Op = Put | Update | Delete | Check


class Table(Protocol):
    """Items under (pk, sk) with conditional writes.

    Every read is consistent: it sees each write that was acknowledged before it began. A write is retried inside
    within the time the implementation was given; `Unavailable` means that its outcome is unknown. After a lost answer
    the retry of a conditional write meets its own first try and raises `Lost`: a caller for whom that matters
    compares `current` with what it wanted to write. A transaction does not have this problem.
    """

    def get(self, key: Key) -> Item | None:
        """Return the item with its key attributes, or None."""

    def query(
        self, pk: str, *, prefix: str = "", since: str = "", limit: int | None = None, newest_first: bool = False
    ) -> list[Item]:
        """Return the items of one partition in the order of their sort keys (UTF-8 bytes).

        Only keys that begin with `prefix` and are not below `since`; all pages are read, up to `limit` items.
        """

    def write(self, op: Write) -> Item:
        """Perform one write and return the item as it stands after it; for `Delete` what was removed ({}: nothing).

        Raises Lost with the current item when the condition does not hold.
        """

    def transact(self, ops: Sequence[Op]) -> None:
        """Perform all of the operations or none; at most 100, no two on one item.

        Raises Lost for the first operation (by position) whose condition does not hold, with its index and the item
        that it met.
        """


class BulkTable(Table, Protocol):
    """A table that also does many things in few requests: what the control plane is given."""

    def get_many(self, keys: Sequence[Key]) -> list[Item | None]:
        """Return the items of `keys` in their order, None where there is none: as many `get`s, in few requests.

        Each item is read consistently, all of them not at one moment. A key may come twice.
        """

    def put_many(self, items: Mapping[Key, Item]) -> None:
        """Replace whole items, whatever stands there, in few requests and in no order.

        Not one write but many: after `Unavailable` some may stand and others not. Putting them all again is right.
        """

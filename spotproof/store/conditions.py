"""What a condition means: evaluated in Python for the local table, compiled to an expression for DynamoDB.

Both live here so that they can be compared side by side; a seeded history in the conformance tests holds them equal.
"""

from __future__ import annotations

from typing import Any, assert_never

from spotproof.store.table import (
    Absent,
    AllOf,
    AnyOf,
    Condition,
    Contains,
    Eq,
    Exists,
    Ge,
    Gt,
    Item,
    Lacks,
    Le,
    Lt,
    Ne,
    Update,
    Value,
)
from spotproof.store.values import Wire, to_wire

__all__ = ["Expression", "holds"]


def holds(condition: Condition | None, item: Item | None) -> bool:
    """Say whether DynamoDB would accept the condition for this item (None: there is no item)."""
    attributes: Item = {} if item is None else item
    match condition:
        case None:
            return True
        case AllOf(conditions=parts):
            return all(holds(part, attributes) for part in parts)
        case AnyOf(conditions=parts):
            return any(holds(part, attributes) for part in parts)
        case Absent() | Exists() | Contains() | Lacks():
            return _has(condition, attributes)
        case Eq() | Ne() | Lt() | Le() | Gt() | Ge():
            return _compares(condition, attributes)
        case _:
            assert_never(condition)


def _has(condition: Absent | Exists | Contains | Lacks, attributes: Item) -> bool:
    match condition:
        case Absent(attribute=name):
            return name not in attributes
        case Exists(attribute=name):
            return name in attributes
        case Contains(attribute=name, member=member):
            return _contains(attributes.get(name), member)
        case Lacks(attribute=name, member=member):
            return not _contains(attributes.get(name), member)
        case _:
            assert_never(condition)


def _compares(condition: Eq | Ne | Lt | Le | Gt | Ge, attributes: Item) -> bool:
    if condition.attribute not in attributes:
        return isinstance(condition, Ne)
    stored = attributes[condition.attribute]
    match condition:
        case Eq():
            return _same(stored, condition.value)
        case Ne():
            return not _same(stored, condition.value)
        case _:
            return _in_order(condition, stored)


def _same(one: Value, other: Value) -> bool:
    if type(one) is type(other) and isinstance(one, str | bool | int):
        return one == other  # nearly every condition: numbers and ids
    # By typed form: True is not 1, "1" is not 1, 1.0 is 1.
    return to_wire(one, path="stored") == to_wire(other, path="wanted")


def _contains(value: Value, member: str) -> bool:
    return isinstance(value, str | list | set | frozenset) and member in value


def _in_order(condition: Lt | Le | Gt | Ge, stored: Value) -> bool:
    one, other = _comparable(stored), _comparable(condition.value)
    if one is None or other is None or one[0] != other[0]:
        return False
    match condition:
        case Lt():
            return bool(one[1] < other[1])
        case Le():
            return bool(one[1] <= other[1])
        case Gt():
            return bool(one[1] > other[1])
        case Ge():
            return bool(one[1] >= other[1])
        case _:
            assert_never(condition)


def _comparable(value: Value) -> tuple[str, Any] | None:
    """Return (type, key to order by), or None for a type that DynamoDB does not order."""
    match value:
        case bool():
            return None
        case str():
            return "S", value.encode()
        case bytes():
            return "B", value
        case int() | float():
            return "N", value
        case _:
            return None


class Expression:
    """Builds the texts of one request, with the placeholders that they share.

    Every name and value goes through a placeholder: many plain words (`state`, `owner`, `step`) are reserved.
    """

    def __init__(self) -> None:
        self.names: dict[str, str] = {}
        self.values: dict[str, Wire] = {}

    def arguments(self) -> dict[str, Any]:
        """Return the request arguments for the placeholders used so far; DynamoDB refuses empty ones."""
        found: dict[str, Any] = {}
        if self.names:
            found["ExpressionAttributeNames"] = {placeholder: name for name, placeholder in self.names.items()}
        if self.values:
            found["ExpressionAttributeValues"] = dict(self.values)
        return found

    def name(self, attribute: str) -> str:
        """Return the placeholder for an attribute's name."""
        return self.names.setdefault(attribute, f"#n{len(self.names)}")

    def value(self, value: Value) -> str:
        """Return a fresh placeholder for a value."""
        placeholder = f":v{len(self.values)}"
        self.values[placeholder] = to_wire(value, path=placeholder)
        return placeholder

    def condition(self, condition: Condition) -> str:
        """Return the condition as a DynamoDB expression."""
        match condition:
            case AllOf(conditions=parts):
                return self._joined(" AND ", parts)
            case AnyOf(conditions=parts):
                return self._joined(" OR ", parts)
            case Absent(attribute=name):
                return f"attribute_not_exists({self.name(name)})"
            case Exists(attribute=name):
                return f"attribute_exists({self.name(name)})"
            case Contains(attribute=name, member=member):
                return f"contains({self.name(name)}, {self.value(member)})"
            case Lacks(attribute=name, member=member):
                return f"(NOT contains({self.name(name)}, {self.value(member)}))"
            case Eq() | Ne() | Lt() | Le() | Gt() | Ge():
                sign = _SIGNS[type(condition)]
                return f"{self.name(condition.attribute)} {sign} {self.value(condition.value)}"
            case _:
                assert_never(condition)

    def update(self, op: Update) -> str:
        """Return the update expression, "" if the update changes nothing."""
        sets = [f"{self.name(name)} = {self.value(value)}" for name, value in op.set.items()]
        removes = [self.name(name) for name in op.remove]
        adds = [f"{self.name(name)} {self.value(by)}" for name, by in op.increment.items()]
        adds += [f"{self.name(name)} {self.value(members)}" for name, members in op.include.items() if members]
        deletes = [f"{self.name(name)} {self.value(members)}" for name, members in op.exclude.items() if members]
        clauses = (("SET", sets), ("REMOVE", removes), ("ADD", adds), ("DELETE", deletes))
        return " ".join(f"{word} {', '.join(parts)}" for word, parts in clauses if parts)

    def _joined(self, word: str, parts: tuple[Condition, ...]) -> str:
        if len(parts) == 1:  # DynamoDB refuses redundant parentheses
            return self.condition(parts[0])
        return "(" + word.join(self.condition(part) for part in parts) + ")"


_SIGNS: dict[type[Condition], str] = {Eq: "=", Ne: "<>", Lt: "<", Le: "<=", Gt: ">", Ge: ">="}

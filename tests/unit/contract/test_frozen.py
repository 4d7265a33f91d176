"""Our `dataclass` is the standard library's, as far as anybody can tell."""

from __future__ import annotations

import copy
import dataclasses
import pickle
from dataclasses import field, replace
from typing import Any

import pytest

from spotproof.contract.frozen import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Ours:
    """Fields of every kind."""

    name: str
    many: tuple[str, ...] = ()
    found: dict[str, int] = field(default_factory=dict)
    count: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "count", len(self.many))


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Theirs:
    """The same."""

    name: str
    many: tuple[str, ...] = ()
    found: dict[str, int] = field(default_factory=dict)
    count: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "count", len(self.many))


@dataclass(frozen=True, slots=True)
class Plain:
    """By place."""

    one: int
    two: str = "b"


@pytest.mark.parametrize("kind", [Ours, Theirs])
def test_it_is_made_compared_shown_and_copied_as_the_standard_librarys_are(kind: Any) -> None:
    one = kind(name="a", many=("x", "y"))
    assert (one.name, one.many, one.found, one.count) == ("a", ("x", "y"), {}, 2)
    assert repr(one) == f"{kind.__name__}(name='a', many=('x', 'y'), found={{}})"
    assert one == kind(name="a", many=("x", "y"))
    assert one != kind(name="b", many=("x", "y"))
    assert replace(one, name="b").name == "b"
    assert replace(one, many=()).count == 0
    assert dataclasses.asdict(one)["found"] == {}
    assert copy.deepcopy(one) == pickle.loads(pickle.dumps(one)) == one
    assert kind(name="a").found is not kind(name="a").found
    with pytest.raises(TypeError, match="unhashable"):
        hash(one)


@pytest.mark.parametrize("kind", [Ours, Theirs])
def test_it_refuses_what_the_standard_librarys_refuse(kind: Any) -> None:
    one = kind(name="a")
    with pytest.raises(dataclasses.FrozenInstanceError):
        one.name = "b"
    with pytest.raises(dataclasses.FrozenInstanceError):
        del one.name
    with pytest.raises(TypeError, match="positional"):
        kind("a")
    with pytest.raises(TypeError, match="required"):
        kind()
    assert not hasattr(one, "__dict__")


def test_fields_by_place_keep_their_order_and_equal_values_are_one_in_a_set() -> None:
    assert Plain(1) == Plain(1, "b")
    assert len({Plain(1), Plain(1, "b"), Plain(2)}) == 2
    other: object = Theirs(name="1")
    assert Plain(1) != other

from __future__ import annotations

import enum
import json
import math
from collections import OrderedDict, UserDict, defaultdict
from datetime import UTC, date, datetime, time, timedelta, timezone
from pathlib import PurePosixPath, PureWindowsPath
from zoneinfo import ZoneInfo

import pytest

from spotproof.checkpoint.tagged import Json, decode, dumps, encode
from spotproof.errors import BadManifest, UnstorableState


class Colour(enum.IntEnum):
    RED = 1


def no_hook(value: object, path: str) -> Json | None:
    return None


def no_unhook(tag: str, content: Json, path: str) -> object:
    raise BadManifest(f"{path}: unknown tag {tag}")


def round_trip(value: object) -> object:
    text = dumps(encode(value, path="x", hook=no_hook))
    return decode(json.loads(text), path="x", unhook=no_unhook)


@pytest.mark.parametrize(
    "value",
    [
        None,
        True,
        0,
        -1,
        2**5000,
        -(2**2000),
        -0.0,
        1e-323,
        0.1,
        math.inf,
        -math.inf,
        math.nan,
        "",
        "a\ud800b",
        "$tuple",
        b"\x00\xff",
        bytearray(b"ab"),
        1 + 2j,
        complex(math.nan, -0.0),
        (),
        (1, (2, [3])),
        [],
        [{"a": 1}, {"b": 2}],
        {},
        {"b": 1, "a": {"$x": 2}},
        {"$tuple": [1]},
        {1: "one", "1": "text", -5: None},
        {2**2000: 1},
        {3, "a", None, (1, 2)},
        frozenset({1.5}),
        OrderedDict([("z", 1), ("a", 2)]),
        OrderedDict([(1, 2)]),
        defaultdict(int, a=1),
        defaultdict(None, {1: 2}),
        datetime(2026, 1, 2, 3, 4, 5, 678),  # noqa: DTZ001 -- naive ones must survive too
        datetime(2026, 1, 2, tzinfo=UTC),
        datetime(2026, 1, 2, tzinfo=timezone(timedelta(hours=5, minutes=30)), fold=1),
        date(2026, 1, 2),
        time(1, 2, 3, 4, fold=1),
        timedelta(days=-1, microseconds=1),
        PurePosixPath("/a/b"),
        PureWindowsPath(r"C:\a"),
    ],
    ids=repr,
)
def test_a_value_comes_back_equal_and_of_its_type(value: object) -> None:
    back = round_trip(value)
    assert type(back) is type(value)
    if isinstance(value, set):
        assert back == value
    else:
        assert repr(back) == repr(value)


def test_types_inside_containers_survive() -> None:
    back = round_trip({"a": [True, 1, 1.0, (b"x",)], "b": {1: defaultdict(list, k=[1])}})
    assert repr(back) == repr({"a": [True, 1, 1.0, (b"x",)], "b": {1: defaultdict(list, k=[1])}})


CYCLE: list[object] = []
CYCLE.append(CYCLE)


@pytest.mark.parametrize(
    ("value", "path"),
    [
        (object(), "x"),
        ([1, {"deep": {"er": [0, lambda: 0]}}], "x.1.deep.er.1"),
        ({"enum": Colour.RED}, "x.enum"),
        ({"c": UserDict(a=2)}, "x.c"),
        ({"d": defaultdict(lambda: 0)}, "x.d"),
        ({"k": {(1, 2): 3}}, "x.k[(1, 2)]"),
        ({"k": {True: 3}}, "x.k[True]"),
        ({"when": datetime(2026, 1, 1, tzinfo=ZoneInfo("UTC"))}, "x.when"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_what_has_no_safe_form_is_refused_by_its_path(value: object, path: str) -> None:
    with pytest.raises(UnstorableState) as refused:
        encode(value, path="x", hook=no_hook)
    assert refused.value.path == path
    assert path in str(refused.value)


def test_a_value_that_contains_itself_is_refused() -> None:
    with pytest.raises(UnstorableState, match="contains itself"):
        encode(CYCLE, path="x", hook=no_hook)


@pytest.mark.parametrize(
    "node",
    [{"$unknown": 1}, {"$int": 5}, {"$path": ["os.system", "x"]}, {"$defaultdict": ["eval", {}]}, {"$dict": [[1]]}],
    ids=repr,
)
def test_a_stored_node_that_is_not_ours_is_an_error(node: Json) -> None:
    with pytest.raises(BadManifest):
        decode(node, path="x", unhook=no_unhook)


def test_equal_values_have_equal_bytes() -> None:
    one, other = {"s": {3, 1, 2}}, {"s": {2, 3, 1}}
    assert dumps(encode(one, path="x", hook=no_hook)) == dumps(encode(other, path="x", hook=no_hook))

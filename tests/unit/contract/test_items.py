"""Items: every kind goes to the table and comes back equal; what does not fit is named."""

from __future__ import annotations

import dataclasses
import typing
from enum import StrEnum
from typing import Any

import pytest

from spotproof.contract import items
from spotproof.contract.items import CheckpointItem, Head, History, Launch, Node, Slot, from_item, pointer_rank, to_item
from spotproof.contract.states import Cause, FlushOutcome, NodePhase, RunStatus
from spotproof.errors import ContractError

KINDS = [
    kind
    for kind in vars(items).values()
    if isinstance(kind, type) and dataclasses.is_dataclass(kind) and kind.__module__ == items.__name__
]


def content(hint: Any) -> Any:
    """A value of that type that is not its default."""
    choices = [choice for choice in typing.get_args(hint) if choice is not type(None)]
    origin = typing.get_origin(hint)
    if origin in (tuple, frozenset):
        return origin(["a", "b"])
    if choices:
        return content(choices[0])
    if issubclass(hint, StrEnum):
        return list(hint)[-1]
    return {int: 41, float: 2.5, str: "text", bool: True}[hint]


def full(kind: type[Any]) -> Any:
    hints = typing.get_type_hints(kind)
    return kind(**{field.name: content(hints[field.name]) for field in dataclasses.fields(kind)})


def least(kind: type[Any]) -> Any:
    hints = typing.get_type_hints(kind)
    return kind(**{name: content(hints[name]) for name in required(kind)})


def required(kind: type[Any]) -> list[str]:
    return [field.name for field in dataclasses.fields(kind) if field.default is dataclasses.MISSING]


def test_every_kind_of_item_is_looked_at() -> None:
    assert len(KINDS) >= 14


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("make", [full, least])
def test_an_item_comes_back_equal(kind: type[Any], make: Any) -> None:
    value = make(kind)
    assert from_item(kind, to_item(value)) == value


@pytest.mark.parametrize("kind", KINDS)
def test_an_item_holds_plain_values_only(kind: type[Any]) -> None:
    for name, stored in to_item(full(kind)).items():
        assert type(stored) in (str, int, float, bool, list, set), name


@pytest.mark.parametrize("kind", KINDS)
def test_an_attribute_is_absent_or_has_a_value(kind: type[Any]) -> None:
    stored = to_item(least(kind))
    assert None not in stored.values()
    assert set() not in stored.values()


@pytest.mark.parametrize("kind", KINDS)
def test_what_the_next_version_wrote_can_be_read(kind: type[Any]) -> None:
    value = full(kind)
    assert from_item(kind, {**to_item(value), "pk": "x", "sk": "y", "a_new_attribute": [1]}) == value


@pytest.mark.parametrize("kind", KINDS)
def test_each_required_attribute_is_missed_by_name(kind: type[Any]) -> None:
    stored = to_item(least(kind))
    for name in required(kind):
        with pytest.raises(ContractError, match=name):
            from_item(kind, {key: one for key, one in stored.items() if key != name})


@pytest.mark.parametrize(
    ("kind", "attribute", "wrong"),
    [
        (Head, "status", "sleeping"),
        (Head, "slots", "three"),
        (Head, "slots", True),
        (Head, "slots", 1.5),
        (Head, "order", 7),
        (Head, "run", None),
        (Launch, "wants", "0:1"),
        (Launch, "wants", [0]),
        (Launch, "wants", None),
        (Node, "loss", "1.0"),
        (Node, "loss", True),
        (Node, "phase", ["training"]),
        (Node, "flush", "perhaps"),
        (CheckpointItem, "done", "0"),
        (CheckpointItem, "done", {0}),
    ],
)
def test_a_wrong_attribute_is_named(kind: type[Any], attribute: str, wrong: object) -> None:
    with pytest.raises(ContractError, match=rf"{kind.__name__}\.{attribute}"):
        from_item(kind, {**to_item(full(kind)), attribute: wrong})


def test_a_whole_number_is_a_float_too() -> None:
    # DynamoDB has one kind of number: 2.0 comes back as 2.
    node = from_item(Node, {**to_item(full(Node)), "loss": 2})
    assert node.loss == 2.0
    assert isinstance(node.loss, float)


def test_head_stays_small_enough_to_be_polled() -> None:
    head = Head(
        run="r" * 63,
        status=RunStatus.STOPPING,
        cause=Cause.CONFIGURATION,
        reason="x" * 200,
        slots=1000,
        order="f" * 24,
        order_deadline_at=1_800_000_000,
        order_leavers="f" * 250,
        recoveries=25,
        committed_step=10**11,
        next_launch_at=1_800_000_000,
    )
    size = sum(len(name) + len(str(value)) for name, value in to_item(head).items())
    assert size < 1024


def test_a_heartbeat_stays_small() -> None:
    node = Node(
        run="r" * 20,
        slot=999,
        incarnation=99,
        instance="i-0a1b2c3d4e5f60718",
        phase=NodePhase.SUPERSEDED,
        beat_at=1_800_000_000,
        beats=10_000,
        generation=99,
        step=1_000_000,
        loss=1.25,
        flush=FlushOutcome.KEPT_LAST,
        flush_step=1_000_000,
    )
    assert sum(len(name) + len(str(value)) for name, value in to_item(node).items()) <= 260


def test_the_pointers_rank_rises_with_generation_then_step() -> None:
    orders = [(0, 0), (0, 1), (0, 10**12 - 1), (1, 0), (1, 5), (2, 0)]
    ranks = [pointer_rank(generation, step) for generation, step in orders]
    assert ranks == sorted(set(ranks))
    assert ranks[-1] < 10**38  # what a DynamoDB number keeps exactly


def test_a_slot_without_anybody_reads_back() -> None:
    slot = Slot(run="r", slot=0, incarnation=0)
    assert to_item(slot) == {"run": "r", "slot": 0, "incarnation": 0}
    assert from_item(Slot, to_item(slot)) == slot


def test_an_event_of_the_timeline_may_name_only_what_happened() -> None:
    entry = History(run="r", at_ms=1, what="status")
    assert from_item(History, to_item(entry)) == entry

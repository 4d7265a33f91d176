"""What a beat tells: the times of the node's start, and metrics that no odd value can break."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

from spotproof.agent.heartbeat import Condition, Heart, Place, Vitals
from spotproof.contract import keys
from spotproof.contract.items import Node, to_item
from spotproof.contract.states import NodePhase
from spotproof.contract.times import Moment, Times
from spotproof.errors import StoreError, Unavailable
from spotproof.store.local import IN_MEMORY, LocalTable
from spotproof.store.nodes import Nodes
from spotproof.store.values import item_to_wire

PLACE = Place(run="mini-gpt-2026-11", slot=999, incarnation=42, instance="i-0123456789abcdef0")
AT = 1_777_888_800.0
STARTED = Times(at_ms=(1_777_888_700_123, 1_777_888_760_456, 1_777_888_790_000, 1_777_888_799_999))


class Scale:
    """A table that takes a beat as DynamoDB takes it."""

    def __init__(self) -> None:
        self.beats: list[Node] = []
        self.bytes: list[int] = []
        self.fails: StoreError | None = None

    def beat(self, node: Node) -> None:
        if self.fails is not None:
            raise self.fails
        item = {name: value for name, value in to_item(node).items() if name not in ("run", "slot", "incarnation")}
        wire = item_to_wire(keys.node(node.run, node.slot, node.incarnation), item)
        self.bytes.append(sum(len(name) + len(next(iter(value.values()))) for name, value in wire.items()))
        self.beats.append(node)


def heart_of(nodes: Any, lines: list[str] | None = None) -> Heart:
    vitals = None if lines is None else Vitals(stack="prod", write=lines.append, now=lambda: AT)
    return Heart(nodes=nodes, place=PLACE, now=lambda: AT, on_superseded=lambda _: None, vitals=vitals)


def strict(line: str) -> dict[str, Any]:
    def no_json(word: str) -> None:
        raise AssertionError(f"{word} is not JSON")

    document: dict[str, Any] = json.loads(line, parse_constant=no_json)
    return document


def test_a_beat_tells_when_the_node_was_ready_joined_restored_and_made_its_first_step() -> None:
    scale = Scale()
    heart = heart_of(scale)
    heart.say(Condition(phase=NodePhase.TRAINING, step=1, times=STARTED))
    heart.beat()
    assert scale.beats[0].times == STARTED.text()
    assert STARTED.of(Moment.FIRST_STEP) == 1_777_888_799_999


def test_a_training_nodes_beat_with_its_times_has_at_most_200_bytes() -> None:
    scale = Scale()
    heart = heart_of(scale)
    heart.say(Condition(phase=NodePhase.TRAINING, generation=42, step=1_000_000, loss=2.718281828, times=STARTED))
    heart.beat()
    assert scale.bytes[0] <= 200


@pytest.mark.parametrize("loss", [math.nan, math.inf, -math.inf])
def test_a_loss_that_is_no_number_does_not_silence_the_node(loss: float) -> None:
    """The table takes no NaN: a beat that told one would fail, and a training node would count as silent."""
    with LocalTable(IN_MEMORY) as table:
        heart = heart_of(Nodes(table))
        heart.say(Condition(phase=NodePhase.TRAINING, step=7, loss=loss))
        heart.beat()
        beaten = Nodes(table).read(PLACE.run, PLACE.slot, PLACE.incarnation)
    assert heart.missed == 0
    assert beaten is not None
    assert (beaten.step, beaten.loss) == (7, None)


def test_each_beat_is_one_line_of_metrics_with_the_run_beside_them_and_not_in_a_dimension() -> None:
    lines: list[str] = []
    heart = heart_of(Scale(), lines)
    heart.say(Condition(phase=NodePhase.TRAINING, step=7, loss=1.5, step_s=0.8))
    heart.beat()
    [line] = [strict(line) for line in lines]
    assert (line["StepSeconds"], line["NonFiniteLoss"], line["BeatsMissed"]) == ([0.8], [0], [0])
    assert (line["run"], line["slot"], line["step"], line["loss"]) == (PLACE.run, 999, 7, 1.5)
    assert {name for one in line["_aws"]["CloudWatchMetrics"] for of in one["Dimensions"] for name in of} == {"stack"}


def test_a_beat_that_the_table_does_not_take_is_counted() -> None:
    lines: list[str] = []
    scale = Scale()
    heart = heart_of(scale, lines)
    scale.fails = Unavailable("the table is silent")
    heart.beat()
    scale.fails = None
    heart.beat()
    assert [strict(line)["BeatsMissed"] for line in lines] == [[1], [0]]

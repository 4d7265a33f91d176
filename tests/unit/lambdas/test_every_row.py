"""Each golden event of each row of the event table is acted on by the pipeline: none is only acknowledged."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from spotproof.contract import tags
from spotproof.contract.events import EVENTS, EventKind, EventRow
from spotproof.contract.items import NO_INSTANCE
from spotproof.contract.metrics import Metric
from tests.fakes.control import SETTINGS, STACK, World

GOLDEN = Path(__file__).parents[2] / "events"
INSTANCE, BLOCK = "i-0a1b2c3d4e5f60718", "cr-0123456789abcdef0"
CASES = [pytest.param(row, name, id=name) for row in EVENTS for name in row.golden]


def event_of(row: EventRow, name: str) -> dict[str, Any]:
    golden: dict[str, Any] = json.loads((GOLDEN / f"{name}.json").read_text())
    if row.kind is EventKind.COMMAND_RESULT:
        golden["detail"]["document-name"] = SETTINGS.document
    return golden


def world_for(row: EventRow, name: str) -> World:
    """A run whose holder the golden events name; for a tag that is put on, an instance that waits for a place."""
    world = World()
    if row.kind is EventKind.TAG_CHANGE and name != "tag-removed":
        world.submit()
        world.ec2.tag(INSTANCE, tags={tags.STACK: STACK, tags.RUN: "mini"})
        return world
    world.ec2.names = [INSTANCE]
    world.started()
    world.ec2.instances[INSTANCE].reservation = BLOCK
    if name == "tag-removed":
        del world.ec2.instances[INSTANCE].tags[tags.RUN]
        world.ec2.instances[INSTANCE].launched_at -= 3600
    return world


@pytest.mark.parametrize(("row", "name"), CASES)
def test_a_golden_event_is_acted_on(row: EventRow, name: str) -> None:
    world = world_for(row, name)
    told = len(world.told())
    slot = world.slot()
    assert world.deliver(event_of(row, name)) == {}
    assert world.meter.total(Metric.IGNORED) == 0
    assert len(world.told()) > told, "nothing is in the run's timeline"
    changes = row.kind not in (EventKind.COMMAND_RESULT, EventKind.REBALANCE) and name != "state-running"
    assert (world.slot() != slot) is changes


@pytest.mark.parametrize(("row", "name"), CASES)
def test_a_golden_event_of_a_stranger_changes_nothing(row: EventRow, name: str) -> None:
    world = World()
    world.started()
    world.ec2.tag(INSTANCE, tags={"Name": "not ours"}, reservation=BLOCK)
    slot, told, sent = world.slot(), world.told(), list(world.ssm.sent)
    assert world.deliver(event_of(row, name)) == {}
    assert (world.slot(), world.told(), world.ssm.sent) == (slot, told, sent)
    assert world.meter.total(Metric.IGNORED) == 1
    assert world.slot().successor_instance in (None, NO_INSTANCE)


@pytest.mark.parametrize(("row", "name"), CASES)
def test_a_golden_event_may_come_twice(row: EventRow, name: str) -> None:
    world = world_for(row, name)
    event = event_of(row, name)
    world.deliver(event)
    slot, launched = world.slot(), world.ec2.count("create_fleet")
    assert world.deliver(event, event) == {}
    assert (world.slot(), world.ec2.count("create_fleet")) == (slot, launched)

"""Whatever arrives is handled, ignored with a reason, or refused as malformed; nothing else happens to the handler."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from spotproof.contract.metrics import Metric
from spotproof.errors import MalformedEvent
from tests.fakes.control import ACCOUNT, REGION, World

EVENTS = sorted(Path(__file__).parents[2].joinpath("events").glob("*.json"))
ODD: tuple[Any, ...] = (
    None,
    "",
    0,
    -1,
    True,
    [],
    {},
    "x" * 300,
    ["i-0a1b2c3d4e5f60718"],
    {"a": 1},
    "i-nothex",
    "\u0000",
)


def golden(path: Path) -> dict[str, Any]:
    event: dict[str, Any] = json.loads(path.read_text())
    return {**event, "account": ACCOUNT, "region": REGION}


def spoilt(event: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The event with each field taken away or replaced by what does not belong there."""
    for where in ((), ("detail",)):
        target = event["detail"] if where else event
        for name in target:
            for value in ("(gone)", *ODD):
                changed = copy.deepcopy(event)
                inside = changed["detail"] if where else changed
                if value == "(gone)":
                    del inside[name]
                else:
                    inside[name] = value
                yield changed


@pytest.mark.parametrize("path", EVENTS, ids=lambda path: path.stem)
def test_every_golden_event_is_accepted(path: Path) -> None:
    world = World()
    assert world.deliver(golden(path)) == {}
    assert world.ec2.count("create_fleet") == 0


@pytest.mark.parametrize("path", EVENTS, ids=lambda path: path.stem)
def test_a_spoilt_event_is_ignored_or_malformed_and_changes_nothing(path: Path) -> None:
    world = World()
    world.started()
    before, calls = world.slots(), world.ec2.count("create_fleet")
    for event in spoilt(golden(path)):
        failures = world.deliver(event)
        assert all(isinstance(failure, MalformedEvent) for failure in failures.values()), (event, failures)
    assert (world.slots(), world.ec2.count("create_fleet")) == (before, calls)
    assert world.meter.total(Metric.IGNORED) > 0


@pytest.mark.parametrize("body", ["", "null", "[]", "3", '"text"', "{", '{"repair": 3}', '{"repair": "../HEAD"}'])
def test_a_body_that_is_no_event_is_refused(body: str) -> None:
    world = World()
    failures = world.control.handle({"m": body}, until=world.clock() + 60)
    assert all(isinstance(failure, MalformedEvent) for failure in failures.values())
    assert world.meter.total(Metric.MALFORMED) + world.meter.total(Metric.IGNORED) == 1


def test_a_repair_of_an_unknown_run_forgets_it() -> None:
    world = World()
    world.stores.live.hasten("ghost", due_at=0)
    assert world.tick() == {}
    assert world.stores.live.read("ghost") is None
    assert world.ec2.count("create_fleet") == 0

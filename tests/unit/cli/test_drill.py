"""`spotproof drill`: whom it concerns, what it puts on the bus, and what it refuses."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from click.testing import CliRunner

from spotproof.cli import drill
from spotproof.cli.drill import command, holders
from spotproof.cli.stackoutputs import Stack
from spotproof.contract.events import DRILL_SOURCE, DRILL_TYPE
from spotproof.contract.items import NO_INSTANCE, Head
from spotproof.contract.messages import Drill
from spotproof.contract.parse import parse
from spotproof.contract.runspec import Placement
from spotproof.contract.states import Cause, RunStatus
from spotproof.errors import BadSettings, Missing, Unavailable
from spotproof.store.drills import Drills
from spotproof.store.head import Heads
from spotproof.store.local import IN_MEMORY, LocalTable
from spotproof.store.slots import Slots

NODES = ("i-0a1b2c3d4e5f60718", "i-0ffffffffffffff01")


class Bus:
    """PutEvents: keeps what it was given, and refuses what it is told to."""

    def __init__(self, refuses: str = "") -> None:
        self.entries: list[dict[str, Any]] = []
        self.refuses = refuses

    def put_events(self, *, Entries: list[dict[str, Any]]) -> dict[str, Any]:  # noqa: N803 -- AWS's name
        assert len(Entries) <= 10
        self.entries += Entries
        return {"Entries": [{"ErrorCode": self.refuses} if self.refuses else {"EventId": "1"} for _ in Entries]}


@pytest.fixture
def table() -> Iterator[LocalTable]:
    with LocalTable(IN_MEMORY) as table:
        Heads(table).create(Head(run="mini", status=RunStatus.ACTIVE, slots=2))
        slots = Slots(table)
        slots.create("mini", 2)
        for empty, node in zip(slots.list("mini"), NODES, strict=True):
            slots.claim(empty, NO_INSTANCE, cause=Cause.SUBMIT, now=1)
            slots.bind("mini", empty.slot, 1, instance=node, launch=1, now=1)
            slots.promote("mini", empty.slot, 1, instance=node)
        yield table


def run_command(table: LocalTable, bus: Bus, monkeypatch: pytest.MonkeyPatch, *words: str) -> Any:
    """The command with this table and bus in place of a stack's."""

    class Here(Stack):
        def open_table(self) -> LocalTable:
            return table

    class TheBus:
        def __init__(self, **_: object) -> None: ...

        def get(self, service: str) -> Bus:
            assert service == "events"
            return bus

    placement = Placement(template="lt-1", template_version="1", subnets=())
    stack = Here(table="t", region="us-east-1", placement=placement)
    monkeypatch.setattr(drill, "stack_of", lambda **_: stack)
    monkeypatch.setattr(drill, "Clients", TheBus)
    return CliRunner().invoke(command, ["mini", *words], catch_exceptions=False)


def test_the_event_reads_back_as_a_drill_of_the_slots_holder(
    table: LocalTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    bus = Bus()
    done = run_command(table, bus, monkeypatch, "--slot", "1", "--notice", "60")
    assert done.output == f"slot 1: {NODES[1]} is told to leave within 60 s\n"
    [entry] = bus.entries
    assert (entry["Source"], entry["DetailType"]) == (DRILL_SOURCE, DRILL_TYPE)
    envelope = {"id": "1", "source": DRILL_SOURCE, "detail-type": DRILL_TYPE, "detail": json.loads(entry["Detail"])}
    message = parse(envelope, received_at=5)
    assert isinstance(message, Drill)
    assert (message.instance, message.notice_s) == (NODES[1], 60)


def test_a_dry_run_puts_nothing(table: LocalTable, monkeypatch: pytest.MonkeyPatch) -> None:
    bus = Bus()
    done = run_command(table, bus, monkeypatch, "--dry-run", "--json")
    document = json.loads(done.output)
    assert (document["put"], document["slots"], bus.entries) == (False, [0], [])
    assert document["events"][0]["instance-id"] == NODES[0]


def test_all_slots_at_once(table: LocalTable, monkeypatch: pytest.MonkeyPatch) -> None:
    bus = Bus()
    run_command(table, bus, monkeypatch, "--all", "--json")
    assert [json.loads(entry["Detail"])["instance-id"] for entry in bus.entries] == list(NODES)


def test_contradicting_options_are_refused(table: LocalTable, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(BadSettings, match="contradict"):
        run_command(table, Bus(), monkeypatch, "--all", "--slot", "1")


def test_what_cannot_be_drilled_is_said(table: LocalTable) -> None:
    with pytest.raises(Missing, match="no run other"):
        holders("other", table, slots=(0,))
    with pytest.raises(Missing, match="no slot 7"):
        holders("mini", table, slots=(7,))
    slots = Slots(table)
    slots.claim(slots.list("mini")[0], NODES[0], cause=Cause.SILENCE, now=2)
    with pytest.raises(BadSettings, match="slot 0"):
        holders("mini", table, slots=(0,))
    head = Heads(table).read("mini")
    assert head is not None
    Heads(table).move(head, RunStatus.PAUSED, cause=Cause.USER, now=3)
    with pytest.raises(BadSettings, match="is paused"):
        holders("mini", table, slots=(1,))


def test_what_the_bus_refuses_is_an_error_and_ten_go_into_one_call() -> None:
    details = [{"instance-id": f"i-{number}"} for number in range(23)]
    bus = Bus()
    Drills(bus).put(details)
    assert len(bus.entries) == 23
    with pytest.raises(Unavailable, match="23 of 23 events: InternalFailure"):
        Drills(Bus("InternalFailure")).put(details)

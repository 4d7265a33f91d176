"""The event table: each row has its rule, its queue, its parser and its golden events, and no event has two rows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from spotproof.contract import events, parse
from spotproof.contract.events import EVENTS, EventKind, EventRow, Queue, row_for, row_of

GOLDEN = Path(__file__).parents[2] / "events"
FILES = {path.stem: json.loads(path.read_text()) for path in sorted(GOLDEN.glob("*.json"))}


def matches(pattern: dict[str, Any], event: dict[str, Any]) -> bool:
    """EventBridge's equality matching, as far as our rules use it."""
    for name, wanted in pattern.items():
        value = event.get(name)
        if isinstance(wanted, dict):
            if not isinstance(value, dict) or not matches(wanted, value):
                return False
        elif isinstance(value, list):
            if not set(value) & set(wanted):
                return False
        elif value not in wanted:
            return False
    return True


def test_every_kind_has_one_row_and_one_parser() -> None:
    assert sorted(row.kind for row in EVENTS) == sorted(EventKind)
    assert set(parse._PARSERS) == set(EventKind)
    assert all(row_of(kind).kind is kind for kind in EventKind)


def test_no_event_belongs_to_two_rows() -> None:
    names = [(row.source, detail_type) for row in EVENTS for detail_type in row.detail_types]
    assert len(set(names)) == len(names)
    assert all(row_for(*name) is not None for name in names)
    assert row_for("aws.ec2", "Something New") is None
    assert row_for("evil", "EC2 Spot Instance Interruption Warning") is None


def test_a_notice_never_waits_behind_routine_events() -> None:
    urgent = {row.kind for row in EVENTS if row.queue is Queue.URGENT}
    assert urgent == {
        EventKind.SPOT_INTERRUPTION,
        EventKind.RESERVATION_INTERRUPTION,
        EventKind.BLOCK_EXPIRY,
        EventKind.DRILL,
    }
    assert not [row for row in EVENTS if row.queue is Queue.REPAIR], "only the sweep writes there"


@pytest.mark.parametrize("row", EVENTS, ids=lambda row: row.kind.value)
def test_every_golden_event_of_a_row_is_there_and_matches_its_rule_alone(row: EventRow) -> None:
    assert row.golden
    for name in row.golden:
        assert matches(row.pattern(), FILES[name]), name
        assert [other.kind for other in EVENTS if matches(other.pattern(), FILES[name])] == [row.kind]


@pytest.mark.parametrize("row", EVENTS, ids=lambda row: row.kind.value)
def test_every_spelling_of_a_detail_type_has_a_golden_event(row: EventRow) -> None:
    assert {FILES[name]["detail-type"] for name in row.golden} == set(row.detail_types)


def test_every_state_that_matters_has_a_golden_event() -> None:
    golden = {FILES[name]["detail"]["state"] for name in row_of(EventKind.STATE_CHANGE).golden}
    assert golden == set(events.STATES_THAT_MATTER)


def test_no_golden_event_is_forgotten() -> None:
    used = {name for row in EVENTS for name in row.golden}
    # `pending` is there to show that its rule lets it lie.
    assert set(FILES) - used == {"state-pending"}
    assert not [row.kind for row in EVENTS if matches(row.pattern(), FILES["state-pending"])]


def test_golden_events_have_ids_of_their_own() -> None:
    ids = [event["id"] for event in FILES.values()]
    assert len(set(ids)) == len(ids)


def test_a_rule_never_asks_for_tags() -> None:
    # No EC2 event carries them (the table knows whose an instance is).
    assert not [row for row in EVENTS if "tags" in json.dumps(row.pattern())]


def test_a_pattern_is_plain_json() -> None:
    for row in EVENTS:
        assert json.loads(json.dumps(row.pattern())) == row.pattern()

"""The sweep's index, on every table."""

from __future__ import annotations

import uuid

import pytest

from spotproof.contract import keys
from spotproof.contract.items import Live
from spotproof.contract.keys import Key
from spotproof.errors import Lost
from spotproof.store.live import TURNS, LiveIndex
from spotproof.store.table import BulkTable, Exists, Item, Put, Update, Write

NOW = 1_777_888_800


def here(entries: tuple[Live, ...], run: str) -> list[Live]:
    """Of one run: the tests share a table."""
    return [entry for entry in entries if entry.run == run]


def test_a_run_that_rests_is_read_in_one_sweep_of_five(table: BulkTable) -> None:
    live, run = LiveIndex(table), f"run-{uuid.uuid4().hex[:8]}"
    live.hasten(run, due_at=NOW)
    [entry] = here(live.watched(), run)
    live.rest(entry)
    assert here(live.watched(), run) == []
    turns = [len(here(live.resting(now=NOW + 60 * minute), run)) for minute in range(2 * TURNS)]
    assert sum(turns) == 2
    assert turns[:TURNS] == turns[TURNS:]
    assert here(live.due(now=2**40), run) == [Live(run=run, due_at=NOW, rests=True)]
    assert live.read(run) == Live(run=run, due_at=NOW, rests=True)


def test_a_run_that_is_hastened_in_the_moment_stays_watched(table: BulkTable) -> None:
    live, run = LiveIndex(table), f"run-{uuid.uuid4().hex[:8]}"
    live.hasten(run, due_at=NOW)
    seen = live.read(run)
    assert seen is not None
    live.hasten(run, due_at=NOW - 60)
    with pytest.raises(Lost):
        live.rest(seen)
    assert [entry.due_at for entry in here(live.watched(), run)] == [NOW - 60]


def test_a_run_that_is_resumed_in_the_moment_stays_watched_though_its_time_had_come_already(table: BulkTable) -> None:
    live, run = LiveIndex(table), f"run-{uuid.uuid4().hex[:8]}"
    live.hasten(run, due_at=NOW)
    [seen] = here(live.watched(), run)
    live.watch(run, due_at=NOW + 30)
    with pytest.raises(Lost):
        live.rest(seen)
    assert [(entry.due_at, entry.rests) for entry in here(live.watched(), run)] == [(NOW, False)]


def test_a_run_that_came_to_rest_while_it_was_resumed_is_watched_again(
    table: BulkTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    live, run = LiveIndex(table), f"run-{uuid.uuid4().hex[:8]}"
    live.hasten(run, due_at=NOW)
    original = type(table).write

    def write(self: BulkTable, op: Write) -> Item:
        if isinstance(op, Update) and op.when == Exists("pk"):
            live.rest(here(live.watched(), run)[0])  # between the two writes
        return original(self, op)

    monkeypatch.setattr(type(table), "write", write)
    live.watch(run, due_at=NOW + 30)
    assert [entry.due_at for entry in here(live.watched(), run)] == [NOW + 30]
    assert not any(here(live.resting(now=NOW + 60 * minute), run) for minute in range(TURNS))


def test_a_run_that_wants_nodes_again_is_watched_and_rests_no_more(table: BulkTable) -> None:
    live, run = LiveIndex(table), f"run-{uuid.uuid4().hex[:8]}"
    live.hasten(run, due_at=NOW)
    live.rest(here(live.watched(), run)[0])
    live.watch(run, due_at=NOW + 60)
    assert here(live.watched(), run) == [Live(run=run, due_at=NOW + 60)]
    assert not any(here(live.resting(now=NOW + 60 * minute), run) for minute in range(TURNS))
    live.watch(run, due_at=NOW + 60)
    live.remove(run)
    live.remove(run)
    assert live.read(run) is None


def test_a_look_is_noted_with_the_next_one(table: BulkTable) -> None:
    live, run = LiveIndex(table), f"run-{uuid.uuid4().hex[:8]}"
    live.hasten(run, due_at=NOW)
    live.reschedule(Live(run=run, due_at=NOW), due_at=NOW + 45, looked_at=NOW + 1)
    assert live.read(run) == Live(run=run, due_at=NOW + 45, looked_at=NOW + 1)
    with pytest.raises(Lost):
        live.reschedule(Live(run=run, due_at=NOW), due_at=NOW + 90)


def test_an_entry_of_the_version_before_is_read_as_watched_and_never_looked_at(table: BulkTable) -> None:
    live, run = LiveIndex(table), f"run-{uuid.uuid4().hex[:8]}"
    table.write(Put(key=keys.live(run), item={"run": run, "due_at": NOW}))
    assert here(live.watched(), run) == [Live(run=run, due_at=NOW, looked_at=0, rests=False)]
    assert isinstance(keys.resting(run), Key)

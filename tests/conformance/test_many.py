"""Many items in few requests, on every table."""

from __future__ import annotations

from spotproof.contract import keys
from spotproof.contract.history import HistoryKind
from spotproof.contract.items import Head, History, Member, Node, Slot
from spotproof.contract.keys import Key
from spotproof.contract.states import Cause, NodePhase, RunStatus
from spotproof.store.head import Heads
from spotproof.store.history import Histories
from spotproof.store.many import Asked, Many
from spotproof.store.members import Members
from spotproof.store.nodes import Nodes
from spotproof.store.slots import Slots
from spotproof.store.table import BulkTable

NOW = 1_777_888_800


def test_many_are_read_in_the_order_of_their_keys(table: BulkTable, run: str) -> None:
    there = [Key(pk=f"RUN#{run}", sk=f"{number:03d}") for number in range(130)]
    table.put_many({key: {"number": number} for number, key in enumerate(there)})
    absent = Key(pk=f"RUN#{run}", sk="absent")
    found = table.get_many([there[7], absent, *reversed(there), there[7]])
    numbers = [None if item is None else item["number"] for item in found]
    assert numbers == [7, None, *reversed(range(130)), 7]
    assert table.get_many([]) == []


def test_a_put_of_many_replaces_what_stands_there(table: BulkTable, run: str) -> None:
    key = Key(pk=f"RUN#{run}", sk="A")
    table.put_many({key: {"old": 1}})
    table.put_many({key: {"new": 2}})
    item = table.get(key)
    assert item is not None
    assert {name: item[name] for name in item if name not in ("pk", "sk")} == {"new": 2}
    table.put_many({})


def test_what_a_batch_of_losses_needs_is_read_at_once(table: BulkTable, run: str) -> None:
    other = f"{run}-b"
    Heads(table).create(Head(run=run, status=RunStatus.ACTIVE, slots=3))
    Slots(table).create(run, 3)
    Nodes(table).beat(Node(run=run, slot=1, incarnation=4, instance="i-1", phase=NodePhase.TRAINING, step=9))
    Members(table).put(Member(instance=f"i-{run}", run=run, slot=1, incarnation=4))
    many = Many(table)
    assert many.members([f"i-{run}", "i-strange", f"i-{run}"]) == {
        f"i-{run}": Member(instance=f"i-{run}", run=run, slot=1, incarnation=4)
    }
    found = many.runs([Asked(run=run, slots=(0, 1, 7), nodes=((1, 4), (1, 5))), Asked(run=other, slots=(0,))])
    assert found[run].head == Heads(table).read(run)
    assert found[run].slots == tuple(slot for slot in Slots(table).list(run) if slot.slot < 2)
    assert [(node.run, node.slot, node.incarnation, node.step) for node in found[run].nodes] == [(run, 1, 4, 9)]
    assert (found[run].pointer, found[run].live) == (None, None)
    assert (found[other].head, found[other].slots, found[other].nodes) == (None, (), ())


def test_a_note_that_is_told_twice_is_one_entry_as_one_by_one(table: BulkTable, run: str) -> None:
    claimed = History(
        run=run, at_ms=NOW * 1000, what=HistoryKind.CLAIMED.value, slot=0, incarnation=2, cause=Cause.INTERRUPTION
    )
    ordered = History(run=run, at_ms=NOW * 1000, what=HistoryKind.FLUSH_ORDERED.value, detail="order x")
    Many(table).tell([(claimed, ""), (ordered, "flush-ordered-ssm"), (ordered, "")])
    Many(table).tell([(claimed, "")])
    Histories(table).add(claimed)
    kept = Histories(table).list(run)
    assert [entry.what for entry in kept].count(HistoryKind.CLAIMED) == 1
    assert len(kept) == 3
    assert all(entry.ttl > NOW for entry in kept), "DynamoDB forgets them by itself"
    assert table.get(keys.history(run, NOW * 1000, "flush-ordered-ssm")) is not None


def test_slots_keep_their_order(table: BulkTable, run: str) -> None:
    Slots(table).create(run, 12)
    read = Many(table).runs([Asked(run=run, slots=(11, 2))])[run]
    assert [slot.slot for slot in read.slots] == [11, 2]
    assert isinstance(read.slots[0], Slot)

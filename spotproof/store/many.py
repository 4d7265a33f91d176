"""Many items in few requests: what a batch of messages needs to know, and the notes that it leaves.

A burst brings ten losses of ten runs in one batch. Read one by one they are fifty round trips; here they are two.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from spotproof.contract import keys
from spotproof.contract.items import Head, History, Live, Member, Node, PointerItem, Slot, from_item, to_item
from spotproof.contract.limits import HISTORY_TTL_S
from spotproof.contract.runspec import RunSpec
from spotproof.store.history import name_of
from spotproof.store.nodes import node_of
from spotproof.store.spec import spec_of
from spotproof.store.table import BulkTable, Item, Key

__all__ = ["Asked", "Many", "Read"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What is to be read of a run: its head, pointer and index entry always, these slots, and the beats of `nodes`."""

    run: str
    slots: tuple[int, ...] = ()
    nodes: tuple[tuple[int, int], ...] = ()  # (slot, incarnation)


@dataclass(frozen=True, slots=True, kw_only=True)
class Read:
    """What was found of it; what is not there is left out."""

    head: Head | None
    pointer: PointerItem | None
    live: Live | None
    slots: tuple[Slot, ...]
    nodes: tuple[Node, ...]


class Many:
    """Reads are consistent item by item, not all at one moment: conditions carry what must hold together."""

    def __init__(self, table: BulkTable) -> None:
        self._table = table

    def members(self, instances: Sequence[str]) -> dict[str, Member]:
        """Return what each instance is to us; one that the table does not know is left out."""
        items = self._table.get_many([keys.member(instance) for instance in dict.fromkeys(instances)])
        members = (from_item(Member, item) for item in items if item is not None)
        return {member.instance: member for member in members}

    def runs(self, asked: Iterable[Asked]) -> dict[str, Read]:
        """Return what was asked of each run."""
        wanted = [(one, _keys(one)) for one in asked]
        items = iter(self._table.get_many([key for _, of_run in wanted for key in of_run]))
        return {one.run: _read(one, [next(items) for _ in of_run]) for one, of_run in wanted}

    def basis(self, run: str) -> tuple[Head | None, RunSpec | None, PointerItem | None]:
        """Return a run's head, spec and pointer."""
        head, spec, pointer = self._table.get_many([keys.head(run), keys.spec(run), keys.pointer(run)])
        return (
            None if head is None else from_item(Head, head),
            None if spec is None else spec_of(spec),
            None if pointer is None else from_item(PointerItem, pointer),
        )

    def tell(self, entries: Sequence[tuple[History, str]]) -> None:
        """Write timeline entries, each with its id ("": what happened, to whom). The same (time, id) is one entry."""
        self._table.put_many(dict(_entry(entry, entry_id) for entry, entry_id in entries))


def _keys(asked: Asked) -> list[Key]:
    return [
        keys.head(asked.run),
        keys.pointer(asked.run),
        keys.live(asked.run),
        *(keys.slot(asked.run, number) for number in asked.slots),
        *(keys.node(asked.run, slot, incarnation) for slot, incarnation in asked.nodes),
    ]


def _read(asked: Asked, items: Sequence[Item | None]) -> Read:
    head, pointer, live, *rest = items
    slots, nodes = rest[: len(asked.slots)], rest[len(asked.slots) :]
    return Read(
        head=None if head is None else from_item(Head, head),
        pointer=None if pointer is None else from_item(PointerItem, pointer),
        live=None if live is None else from_item(Live, live),
        slots=tuple(from_item(Slot, item) for item in slots if item is not None),
        nodes=tuple(node_of(asked.run, item) for item in nodes if item is not None),
    )


def _entry(entry: History, entry_id: str) -> tuple[Key, Item]:
    kept = entry if entry.ttl else dataclasses.replace(entry, ttl=entry.at_ms // 1000 + HISTORY_TTL_S)
    return keys.history(entry.run, entry.at_ms, entry_id or name_of(entry)), to_item(kept)

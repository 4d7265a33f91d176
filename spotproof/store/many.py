"""Many items in few requests: what a batch of messages needs to know, and the notes that it leaves.

A burst brings ten losses of ten runs in one batch. Read one by one they are fifty round trips; here they are two.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence

from spotproof.contract import keys
from spotproof.contract.frozen import dataclass
from spotproof.contract.items import Head, History, Live, Member, Node, PointerItem, Pool, Slot, from_item, to_item
from spotproof.contract.limits import HISTORY_TTL_S
from spotproof.contract.runspec import RunSpec
from spotproof.contract.states import Market
from spotproof.store.history import name_of
from spotproof.store.nodes import node_of
from spotproof.store.pools import made_in
from spotproof.store.spec import spec_of
from spotproof.store.table import BulkTable, Item, Key

__all__ = ["Asked", "Basis", "ForLaunch", "Many", "Read"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ForLaunch:
    """What a launch needs to know besides: the spec, how many the stack has made in this hour, and pools on Spot."""

    region: str
    hour: int
    pools: tuple[tuple[str, str], ...] = ()  # type and zone


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What is to be read of a run: its head, pointer and index entry always, these slots, and the beats of `nodes`."""

    run: str
    slots: tuple[int, ...] = ()
    nodes: tuple[tuple[int, int], ...] = ()  # (slot, incarnation)
    launch: ForLaunch | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Basis:
    """The spec, and how many launches the stack has made in this hour; None where none was counted."""

    spec: RunSpec | None
    made: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Read:
    """What was found of it; what is not there is left out."""

    head: Head | None
    pointer: PointerItem | None
    live: Live | None
    slots: tuple[Slot, ...]
    nodes: tuple[Node, ...]
    basis: Basis | None = None
    pools: tuple[Pool, ...] = ()


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

    def basis(self, run: str, *, region: str, hour: int) -> Read:
        """Return what a launch of the run in this hour rests on: head, pointer and `basis`."""
        asked = Asked(run=run, launch=ForLaunch(region=region, hour=hour))
        wanted = [key for key in _keys(asked) if key != keys.live(run)]
        head, pointer, *rest = self._table.get_many(wanted)
        return _read(asked, [head, pointer, None, *rest])

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
        *(() if asked.launch is None else _keys_of_launch(asked.run, asked.launch)),
    ]


def _keys_of_launch(run: str, asked: ForLaunch) -> list[Key]:
    pools = (keys.pool(asked.region, kind, zone, Market.SPOT.value) for kind, zone in asked.pools)
    return [keys.spec(run), keys.stack_launches(asked.region, asked.hour), *pools]


def _read(asked: Asked, items: Sequence[Item | None]) -> Read:
    head, pointer, live, *rest = items
    slots, rest = rest[: len(asked.slots)], rest[len(asked.slots) :]
    nodes, more = rest[: len(asked.nodes)], rest[len(asked.nodes) :]
    return Read(
        head=None if head is None else from_item(Head, head),
        pointer=None if pointer is None else from_item(PointerItem, pointer),
        live=None if live is None else from_item(Live, live),
        slots=tuple(from_item(Slot, item) for item in slots if item is not None),
        nodes=tuple(node_of(asked.run, item) for item in nodes if item is not None),
        basis=None if asked.launch is None else _basis(more[0], more[1], asked.launch.hour),
        pools=tuple(from_item(Pool, item) for item in more[2:] if item is not None),
    )


def _basis(spec: Item | None, count: Item | None, hour: int) -> Basis:
    return Basis(spec=None if spec is None else spec_of(spec), made=made_in(count, hour))


def _entry(entry: History, entry_id: str) -> tuple[Key, Item]:
    kept = entry if entry.ttl else dataclasses.replace(entry, ttl=entry.at_ms // 1000 + HISTORY_TTL_S)
    return keys.history(entry.run, entry.at_ms, entry_id or name_of(entry)), to_item(kept)

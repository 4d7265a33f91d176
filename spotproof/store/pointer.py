"""POINTER: a run's newest committed checkpoint. It only rises, and only the newest generation may raise it."""

from __future__ import annotations

from spotproof.contract import keys
from spotproof.contract.items import PointerItem, from_item, to_item
from spotproof.errors import Lost, Superseded
from spotproof.store.table import Absent, AnyOf, Check, Eq, Lt, Put, Table

__all__ = ["Pointers"]


class Pointers:
    """The pointers of all runs."""

    def __init__(self, table: Table) -> None:
        self._table = table

    def read(self, run: str) -> PointerItem | None:
        """Return the pointer, or None before the first commit."""
        item = self._table.get(keys.pointer(run))
        return None if item is None else from_item(PointerItem, item)

    def rise(self, pointer: PointerItem, *, own_generation: int) -> PointerItem:
        """Raise the pointer to a checkpoint whose manifest is in S3; the equal pointer already there is success.

        One transaction: NEWEST names `own_generation`, and the pointer that stands is lower in (generation, step).

        Raises Superseded if a newer membership has been sealed: nothing of this node counts any more, stop. Raises
        Lost if a newer checkpoint stands, or another manifest of the same step: this one is not the newest.
        """
        try:
            self._table.transact(
                [
                    Check(key=keys.newest(pointer.run), when=Eq("generation", own_generation)),
                    Put(
                        key=keys.pointer(pointer.run),
                        item=to_item(pointer),
                        when=AnyOf(Absent("pk"), Lt("rank", pointer.rank)),
                    ),
                ]
            )
        except Lost as lost:
            if lost.op == 0:
                newest = None if lost.current is None else lost.current.get("generation")
                raise Superseded(
                    f"run {pointer.run}: the newest generation is {newest}, not {own_generation}; "
                    f"step {pointer.step} is not committed",
                    next_step="stop this node; its place has been given away",
                ) from lost
            stands = None if lost.current is None else from_item(PointerItem, lost.current)
            if stands is None or (stands.rank, stands.manifest_digest) != (pointer.rank, pointer.manifest_digest):
                raise
            return stands
        return pointer

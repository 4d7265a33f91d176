"""Who is who: the INSTANCE lookup, and the sealed memberships of a run (GEN#g, NEWEST)."""

from __future__ import annotations

import dataclasses

from spotproof.contract import keys
from spotproof.contract.items import Generation, Member, Newest, PointerItem, from_item, to_item
from spotproof.errors import Lost
from spotproof.store.table import (
    Absent,
    AllOf,
    AnyOf,
    Check,
    Condition,
    Eq,
    Exists,
    Ge,
    Lt,
    Put,
    Table,
    Update,
)

__all__ = ["Members", "Memberships"]


class Members:
    """The cheap lookup from an instance id to its place."""

    def __init__(self, table: Table) -> None:
        self._table = table

    def read(self, instance: str) -> Member | None:
        """Return what the instance is to us, or None: not ours, no EC2 call follows."""
        item = self._table.get(keys.member(instance))
        return None if item is None else from_item(Member, item)

    def put(self, member: Member) -> None:
        """Enter the instance. Raises Lost if it is entered for another place: an instance never moves between slots.

        But for a hand-tagged one that was let go: it may be given a place again.
        """
        same = AllOf(Eq("run", member.run), Eq("slot", member.slot), Eq("incarnation", member.incarnation))
        let_go = AllOf(Absent("launch"), Exists("ended_at"), Exists("pk"))
        when = AnyOf(Absent("pk"), AllOf(same, Absent("ended_at")), let_go)
        try:
            self._table.write(Put(key=keys.member(member.instance), item=to_item(member), when=when))
        except Lost as lost:
            stands = None if lost.current is None else from_item(Member, lost.current)
            if stands is None or (stands.run, stands.slot, stands.incarnation) != (
                member.run,
                member.slot,
                member.incarnation,
            ):
                raise  # an ended entry of the same place stays as it is

    def end(self, instance: str, *, now: int) -> bool:
        """Note that the instance has ended; True for the one caller that noted it first."""
        change = Update(key=keys.member(instance), set={"ended_at": now}, when=AllOf(Exists("pk"), Absent("ended_at")))
        try:
            self._table.write(change)
        except Lost:
            return False
        return True


class Memberships:
    """The generations of a run. Only `seal` raises NEWEST; a generation that exists never changes."""

    def __init__(self, table: Table) -> None:
        self._table = table

    def newest(self, run: str) -> Newest | None:
        """Return the newest sealed generation and its bad-generation mark; None before the first seal."""
        item = self._table.get(keys.newest(run))
        return None if item is None else from_item(Newest, item)

    def generation(self, run: str, number: int) -> Generation | None:
        """Return one sealed membership, or None."""
        item = self._table.get(keys.generation(run, number))
        return None if item is None else from_item(Generation, item)

    def seal(self, sealed: Generation, *, pointer: PointerItem | None, is_first: bool = False) -> Generation:
        """Make `sealed` the newest membership if its predecessor still is and the pointer is still `pointer`.

        One transaction: NEWEST g-1 -> g (from nothing for g = 1), GEN#g put, POINTER checked. From then on every
        pointer update of an older generation loses. Having sealed the same membership already is success. `is_first`:
        nothing may be sealed yet, whatever the number: the table is new, the bucket holds older generations.

        Raises Lost: `op` 0 or 1, another membership was sealed, look whether it names you; `op` 2, the pointer moved
        since the starting checkpoint was chosen, choose again.
        """
        run, number = sealed.run, sealed.generation
        first = is_first or number == 1
        try:
            self._table.transact(
                [
                    Update(
                        key=keys.newest(run),
                        set={"run": run, "generation": number},
                        when=Absent("generation") if first else Eq("generation", number - 1),
                    ),
                    Put(key=keys.generation(run, number), item=to_item(sealed), when=Absent("pk")),
                    Check(key=keys.pointer(run), when=_unchanged(pointer)),
                ]
            )
        except Lost:
            stands = self.generation(run, number)
            if stands is None or dataclasses.replace(stands, sealed_at=sealed.sealed_at) != sealed:
                raise
            return stands
        return sealed

    def mark_bad(self, run: str, generation: int) -> Newest:
        """Say that a generation is broken and must be sealed anew; saying it twice changes nothing.

        Raises Lost if nothing was sealed yet, or the generation is not sealed yet.
        """
        change = Update(
            key=keys.newest(run),
            set={"bad": generation},
            when=AllOf(Ge("generation", generation), AnyOf(Absent("bad"), Lt("bad", generation))),
        )
        try:
            return from_item(Newest, self._table.write(change))
        except Lost as lost:
            stands = None if lost.current is None else from_item(Newest, lost.current)
            if stands is None or stands.bad < generation:
                raise
            return stands


def _unchanged(pointer: PointerItem | None) -> Condition:
    if pointer is None:
        return Absent("pk")
    return AllOf(Eq("rank", pointer.rank), Eq("manifest_digest", pointer.manifest_digest))

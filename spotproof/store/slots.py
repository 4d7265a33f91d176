"""Slots: who holds a place in a run and who succeeds. Every move is one conditional update of one slot.

The caller's order (DESIGN section 3): promote where the newest membership names the successor, then claim, then (after
the launch) bind. The slot's incarnation is the fencing number: it only rises, and only by a claim.
"""

from __future__ import annotations

from spotproof.contract import keys
from spotproof.contract.items import NO_INSTANCE, Slot, from_item, to_item
from spotproof.contract.states import Cause
from spotproof.errors import Lost
from spotproof.store.conditions import holds
from spotproof.store.table import Absent, AllOf, AnyOf, Condition, Eq, Exists, Gt, Item, Ne, Put, Table, Update

__all__ = ["Slots"]

_SUCCESSION = (
    "successor_instance",
    "successor_incarnation",
    "successor_launch",
    "successor_bound_at",
    "claimed_at",
    "cause",
    "deadline_at",
    "lost_pool",
    "waits_for_notice",
    "lost_deadline_at",
)
_MOVE = ("move_instance", "move_at", "move_before", "move_cause")


class Slots:
    """The slots of all runs."""

    def __init__(self, table: Table) -> None:
        self._table = table

    def create(self, run: str, count: int) -> None:
        """Make slots 0..count-1, empty, at submit. Slots that exist are left as they are: it can run twice."""
        for number in range(count):
            empty = Slot(run=run, slot=number, incarnation=0, holder_instance=NO_INSTANCE, holder_incarnation=0)
            try:
                self._table.write(Put(key=keys.slot(run, number), item=to_item(empty), when=Absent("pk")))
            except Lost:
                continue  # made by an earlier try of the same submit

    def read(self, run: str, slot: int) -> Slot | None:
        """Return one slot, or None if the run has no such slot."""
        item = self._table.get(keys.slot(run, slot))
        return None if item is None else from_item(Slot, item)

    def list(self, run: str) -> tuple[Slot, ...]:
        """Return all slots of a run in order. For launcher and repair; a claimer reads its one slot."""
        items = self._table.query(keys.run_partition(run), prefix=keys.SLOT_PREFIX)
        return tuple(from_item(Slot, item) for item in items)

    def claim(
        self,
        seen: Slot,
        instance: str,
        *,
        cause: Cause,
        now: int,
        deadline_at: int | None = None,
        lost_pool: str | None = None,
        waits_for_notice: bool = False,
    ) -> Slot:
        """Open the place of `instance` for a successor: raises the incarnation, writes a successor without instance.

        `instance` is the one that was lost (NO_INSTANCE at submit): the holder of a slot without a successor, or the
        successor itself. A lost successor leaves the holder's deadline as it was, because the holder may still flush;
        its own is kept beside it, because it may have become the holder in this moment. `waits_for_notice`: the holder
        is well, and its successor waits for `release` or for `deadline_at`.

        Raises Lost if this loss has been claimed already, or the slot is another's: a duplicate, nothing to do.
        """
        change = self.claiming(
            seen,
            instance,
            cause=cause,
            now=now,
            deadline_at=deadline_at,
            lost_pool=lost_pool,
            waits_for_notice=waits_for_notice,
        )
        return from_item(Slot, self._table.write(change))

    def claiming(
        self,
        seen: Slot,
        instance: str,
        *,
        cause: Cause,
        now: int,
        deadline_at: int | None = None,
        lost_pool: str | None = None,
        waits_for_notice: bool = False,
    ) -> Update:
        """The write that is a claim, for a transaction."""
        incarnation = seen.incarnation + 1
        place, whose = _place_of(seen, instance)
        claimed: dict[str, object] = {
            "incarnation": incarnation,
            "successor_instance": NO_INSTANCE,
            "successor_incarnation": incarnation,
            "claimed_at": now,
            "cause": cause.value,
        }
        if lost_pool is not None:
            claimed["lost_pool"] = lost_pool
        if waits_for_notice:
            claimed["waits_for_notice"] = True
        claimed["deadline_at" if whose == "holder" else "lost_deadline_at"] = (
            now if deadline_at is None else deadline_at
        )
        return Update(
            key=keys.slot(seen.run, seen.slot),
            set=claimed,
            remove=("successor_launch", "successor_bound_at") if whose == "successor" else (),
            when=AllOf(place, _unmoved(seen)),
        )

    def bind(self, run: str, slot: int, incarnation: int, *, instance: str, launch: int | None, now: int) -> Slot:
        """Give an open claim its instance; having bound the same instance already is success.

        Raises Lost if the claim has another instance or has been claimed anew: this instance is surplus, end it.
        """
        change = Update(
            key=keys.slot(run, slot),
            set={"successor_instance": instance, "successor_bound_at": now}
            | ({} if launch is None else {"successor_launch": launch}),
            when=AllOf(Eq("successor_incarnation", incarnation), Eq("successor_instance", NO_INSTANCE)),
        )
        return self._write(
            change, done=AllOf(Eq("successor_incarnation", incarnation), Eq("successor_instance", instance))
        )

    def promote(self, run: str, slot: int, incarnation: int, *, instance: str) -> Slot:
        """Make the successor the holder, because a sealed membership names it; a second time is success.

        Raises Lost if this successor has been claimed meanwhile: it was lost, and the claim stands.
        """
        change = Update(
            key=keys.slot(run, slot),
            set={"holder_instance": instance, "holder_incarnation": incarnation},
            remove=(*_SUCCESSION, *_MOVE),
            when=AllOf(Eq("successor_incarnation", incarnation), Eq("successor_instance", instance)),
        )
        return self._write(change, done=AllOf(Eq("holder_incarnation", incarnation), Eq("holder_instance", instance)))

    def lift_barrier(self, seen: Slot, holder: str, *, now: int) -> Slot:
        """Lower the deadline of a claimed holder that has ended to now: there is no flush left to wait for.

        A deadline only falls. Raises Lost if nobody waits for this holder any more, or its deadline has passed.
        """
        waited_for = AllOf(Eq("holder_instance", holder), Exists("successor_instance"), Gt("deadline_at", now))
        return self._move(seen, {"deadline_at": now}, remove=("waits_for_notice",), when=waited_for)

    def release(self, seen: Slot, *, deadline_at: int, cause: Cause | None = None) -> Slot:
        """Let a successor that waits for its holder's notice take over once the holder has flushed, or at the deadline.

        `cause` takes the place of the claim's own where the holder goes for another reason than it was claimed for.
        Raises Lost if this successor waits no more: it was released, withdrawn, claimed anew or has joined.
        """
        changed: Item = {"deadline_at": deadline_at} | ({} if cause is None else {"cause": cause.value})
        return self._move(seen, changed, remove=("waits_for_notice",), when=_waiting(seen))

    def withdraw(self, seen: Slot) -> Slot:
        """Take back a claim whose successor waits for a notice that did not come: the holder goes on alone.

        Raises Lost like `release`: then the successor is needed, leave it.
        """
        unchanged = Eq("successor_instance", seen.successor_instance)
        return self._move(seen, {}, remove=_SUCCESSION, when=AllOf(_waiting(seen), unchanged))

    def plan_move(self, seen: Slot, instance: str, *, at: int, before: int, cause: Cause = Cause.MAINTENANCE) -> Slot:
        """Note that the holder has to be moved between `at` and `before`; an earlier date that stands stays.

        Raises Lost if `instance` holds the slot no more, or an earlier date stands.
        """
        holds_it = Eq("holder_instance", instance)
        later = AnyOf(Absent("move_instance"), Ne("move_instance", instance), Gt("move_at", at))
        planned: Item = {"move_instance": instance, "move_at": at, "move_before": before, "move_cause": cause.value}
        return self._move(seen, planned, remove=(), when=AllOf(holds_it, later))

    def vacate(self, seen: Slot, instance: str) -> Slot:
        """Take `instance` out of the slot without asking for a successor: released, or about to be terminated by us.

        A successor's claim is withdrawn; a holder's place stays empty until it is claimed with NO_INSTANCE. Raises
        Lost if the instance is in the slot no more: somebody else decided about it, leave it alone.
        """
        if seen.successor_instance == instance:
            when = AllOf(Eq("successor_instance", instance), _unmoved(seen))
            return self._move(seen, {}, remove=_SUCCESSION, when=when)
        gone = (*_MOVE, "waits_for_notice")  # a successor that waits beside it has nobody to wait for
        return self._move(seen, {"holder_instance": NO_INSTANCE}, remove=gone, when=Eq("holder_instance", instance))

    def _move(self, seen: Slot, changed: Item, *, remove: tuple[str, ...], when: Condition) -> Slot:
        change = Update(key=keys.slot(seen.run, seen.slot), set=changed, remove=remove, when=when)
        return from_item(Slot, self._table.write(change))

    def _write(self, change: Update, *, done: Condition) -> Slot:
        try:
            return from_item(Slot, self._table.write(change))
        except Lost as lost:
            if lost.current is None or not holds(done, lost.current):
                raise
            return from_item(Slot, lost.current)


def _unmoved(seen: Slot) -> Condition:
    return Eq("incarnation", seen.incarnation)


def _waiting(seen: Slot) -> Condition:
    return AllOf(Eq("successor_incarnation", seen.successor_incarnation), Eq("waits_for_notice", True))


def _place_of(seen: Slot, instance: str) -> tuple[Condition, str]:
    """Return the condition under which `instance` still has its place, and which place that is.

    NO_INSTANCE never matches a successor: an open claim is claimed already.
    """
    if instance != NO_INSTANCE and seen.successor_instance == instance:
        return Eq("successor_instance", instance), "successor"
    return AllOf(Eq("holder_instance", instance), Absent("successor_instance")), "holder"

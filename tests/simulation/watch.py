"""Looks over every write of a history, by whomever, at the moment when it is made.

What must never happen: a number that goes back, a place with two instances, two members for one slot, a checkpoint of
a generation that is not the newest, a slot claimed twice for one loss.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from spotproof.contract.items import NO_INSTANCE
from spotproof.contract.keys import Key
from spotproof.contract.limits import STORM_WINDOW_S
from spotproof.errors import Lost
from spotproof.store.table import BulkTable, Check, Item, Op, Put, Write

FAILBACK: Final = "failback"
LAUNCHES_AT_MOST: Final = 100  # of a history of forty minutes; bad weather takes two or three dozen
GANG_MOVES: Final = "capacity"
PREWARMED: Final = "rebalance"
TAKEN: Final = frozenset({"interruption", "block-expiry"})
_RISING: Final = {"SLOT": "incarnation", "NEWEST": "generation", "POINTER": "rank"}


class WatchedTable:
    """Passes everything on. `violations` gets what must not happen, `faults` what is worth counting."""

    def __init__(
        self, table: BulkTable, *, clock: Callable[[], float], violations: list[str], faults: Counter[str]
    ) -> None:
        self._table = table
        self._clock = clock
        self._violations = violations
        self._faults = faults
        self._bound: dict[tuple[str, int], str] = {}
        self._numbers: dict[Key, int] = {}
        self.claimed_for: dict[tuple[int, str], str] = {}  # (slot, who is replaced): the cause of the claim that stands
        self.planned = 0  # claims for a holder that was well: each launches an instance more
        self.let_go: set[str] = set()  # instances that such a claim may end: the holder, or the successor nobody needed
        self.vacated: set[str] = set()
        self.offered_anew = 0  # hand-tagged instances that got a place again: each may be lost again
        self.prewarmed: Counter[int] = Counter()  # by the window of a storm
        self._seats: dict[str, frozenset[str]] = {}
        self._causes: dict[str, str] = {}  # by `slot:incarnation`
        self.attempts = 0  # launches that were intended
        self.limited = 0  # of them those that are not for what EC2 took
        self._taken: set[str] = set()  # claims (`slot:incarnation`) for what EC2 took
        self.launches_lost = 0  # launches that another handler was faster with
        self.recoveries = 0  # launches with instances for a slot that had a holder, since the newest commit
        self.most_recoveries = 0

    def get(self, key: Key) -> Item | None:
        return self._table.get(key)

    def get_many(self, keys: Sequence[Key]) -> list[Item | None]:
        return self._table.get_many(keys)

    def put_many(self, items: Mapping[Key, Item]) -> None:
        self._table.put_many(items)

    def query(
        self, pk: str, *, prefix: str = "", since: str = "", limit: int | None = None, newest_first: bool = False
    ) -> list[Item]:
        return self._table.query(pk, prefix=prefix, since=since, limit=limit, newest_first=newest_first)

    def write(self, op: Write) -> Item:
        if op.key.pk.startswith("HIST#"):
            return self._table.write(op)
        before = self._table.get(op.key)
        try:
            after = self._table.write(op)
        except Lost:
            if op.key.sk.startswith("LAUNCH#") and isinstance(op, Put):
                self.launches_lost += 1
                self._goes_on_for_ever()
            raise
        self._looked(op.key, before, after)
        return after

    def transact(self, ops: Sequence[Op]) -> None:
        before = [self._table.get(op.key) for op in ops]
        self._table.transact(ops)
        for op, was in zip(ops, before, strict=True):
            if not isinstance(op, Check):
                self._looked(op.key, was, self._table.get(op.key) or {})

    # ----------------------------------------------------------------------------------------------------- looking
    def _looked(self, key: Key, before: Item | None, after: Item) -> None:
        kind = key.sk.partition("#")[0]
        if kind in _RISING:
            self._rises(key, _RISING[kind], _number(after, _RISING[kind]))
        match kind:
            case "SLOT":
                self._places(key, after)
                self._seat(key, after)
                self._claim(key, before or {}, after)
            case "INSTANCE":
                self.offered_anew += before is not None and "ended_at" in before and "ended_at" not in after
            case "LAUNCHER":
                self._lease(before, after)
            case "LAUNCH":
                self._launch(before, after)
            case "POINTER":
                self._pointer(key, after)
            case "GEN":
                self._membership(after)
            case _:
                return

    def _rises(self, key: Key, name: str, value: int) -> None:
        """By what was ever there, not by what is replaced: an item that was taken away must not begin anew."""
        if value < self._numbers.get(key, value):
            self._violations.append(f"{key.pk}/{key.sk}: {name} went back")
        self._numbers[key] = value

    def _places(self, key: Key, after: Item) -> None:
        for place in ("holder", "successor"):
            instance, incarnation = after.get(f"{place}_instance"), after.get(f"{place}_incarnation")
            if not isinstance(incarnation, int) or not isinstance(instance, str) or instance == NO_INSTANCE:
                continue
            first = self._bound.setdefault((f"{key.pk}/{key.sk}", incarnation), instance)
            if first != instance:
                self._violations.append(f"{key.sk} incarnation {incarnation} was given to {first} and {instance}")

    def _seat(self, key: Key, after: Item) -> None:
        """Nobody is in two places."""
        named = frozenset(str(after.get(f"{place}_instance", NO_INSTANCE)) for place in ("holder", "successor"))
        self._seats[key.sk] = named - {NO_INSTANCE, "None"}
        for other, seated in self._seats.items():
            if other != key.sk and seated & self._seats[key.sk]:
                self._violations.append(f"{sorted(seated & self._seats[key.sk])} are in {other} and {key.sk}")

    def _claim(self, key: Key, before: Item, after: Item) -> None:
        number = int(key.sk.partition("#")[2])
        holder, successor = before.get("holder_instance"), before.get("successor_instance")
        if _number(after, "incarnation") <= _number(before, "incarnation"):
            self._vacated(key, before, after)
            if "successor_instance" in after and after.get("cause") != before.get("cause"):
                self.claimed_for[number, str(holder)] = str(after.get("cause"))  # it goes for another reason now
                self._takes(
                    key, after, had_joined=holder not in (None, NO_INSTANCE) and "lost_deadline_at" not in after
                )
            if after.get("successor_instance") != successor:
                self.claimed_for.pop(
                    (number, str(after.get("successor_instance"))), None
                )  # people have put it in again
            if successor is not None and "successor_instance" not in after and holder == after.get("holder_instance"):
                self.claimed_for.pop((number, str(holder)), None)  # taken back: the holder goes on
                self.let_go.add(str(successor))
            return
        lost, cause = str(holder if successor is None else successor), str(after.get("cause", ""))
        if successor == NO_INSTANCE:
            self._violations.append(f"{key.sk} was claimed although a claim stood open")
        elif lost != NO_INSTANCE and (number, lost) in self.claimed_for:
            self._violations.append(f"{key.sk} was claimed twice for {lost}")
        self.claimed_for[number, lost] = self._causes[f"{number}:{after['incarnation']}"] = cause
        self._takes(key, after, had_joined=successor is None and lost != NO_INSTANCE)
        if after.get("waits_for_notice") or cause == GANG_MOVES:
            self.planned += 1
            self.let_go.add(lost)
            self._faults[f"planned: {cause}"] += 1
            self.prewarmed[int(self._clock() // STORM_WINDOW_S)] += cause == PREWARMED

    def _takes(self, key: Key, after: Item, *, had_joined: bool) -> None:
        cause = after.get("cause")
        if cause in TAKEN or (cause == "disappeared" and had_joined):
            self._taken.add(f"{int(key.sk.partition('#')[2])}:{after['incarnation']}")

    def _vacated(self, key: Key, before: Item, after: Item) -> None:
        """A run that wants no nodes takes them out of its slots and ends them: once it is resumed, others come."""
        gone = {
            str(before[place])
            for place in ("holder_instance", "successor_instance")
            if place in before and after.get(place, NO_INSTANCE) == NO_INSTANCE
        }
        promoted = {str(after.get("holder_instance"))}
        head = self._table.get(Key(pk=key.pk, sk="HEAD")) or {}
        if head.get("status") != "active":
            self.vacated |= gone - promoted - {NO_INSTANCE}

    def _lease(self, before: Item | None, after: Item) -> None:
        if before and after.get("owner") not in (None, before.get("owner")):
            self._faults["launcher lease expired"] += 1

    def _launch(self, before: Item | None, after: Item) -> None:
        wants, instances = after.get("wants"), after.get("instances")
        if before is None and isinstance(wants, list):
            self.attempts += 1
            self.limited += not set(wants) <= self._taken
            self._goes_on_for_ever()
            back = [want for want in wants if self._causes.get(want) == FAILBACK]
            if back and after.get("market") != "spot":
                self._violations.append(f"a way back to Spot asked for {after.get('market')}: {back}")
        answered = before is not None and before.get("state") == "intended" and after.get("state") != "intended"
        if answered and instances and isinstance(wants, list) and any(self._is_lost(after, one) for one in wants):
            self.recoveries += 1
            self.most_recoveries = max(self.most_recoveries, self.recoveries)

    def _is_lost(self, launch: Item, want: object) -> bool:
        """Whether the place had been filled and was lost: a planned move leaves a node that works."""
        number, _, incarnation = str(want).partition(":")
        slot = self._table.get(Key(pk=f"RUN#{launch.get('run')}", sk=f"SLOT#{int(number):04}")) or {}
        planned = slot.get("waits_for_notice") and _number(slot, "successor_incarnation") == int(incarnation)
        return incarnation != "1" and not planned

    def _goes_on_for_ever(self) -> None:
        if self.attempts + self.launches_lost == LAUNCHES_AT_MOST:
            self._violations.append(f"{LAUNCHES_AT_MOST} launches: there is no end of them")

    def _pointer(self, key: Key, after: Item) -> None:
        newest = self._table.get(Key(pk=key.pk, sk="NEWEST")) or {}
        if after.get("generation") != newest.get("generation"):
            self._violations.append(
                f"generation {after.get('generation')} committed while {newest.get('generation')} is the newest"
            )
        self.recoveries = 0

    def _membership(self, after: Item) -> None:
        members: Any = after.get("members", ())
        slots = [member.split(":")[0] for member in members]
        if len(set(slots)) != len(slots):
            self._violations.append(f"generation {after.get('generation')} has two members for one slot: {members}")


def _number(item: Item, name: str) -> int:
    value = item.get(name, 0)
    return value if isinstance(value, int) else 0

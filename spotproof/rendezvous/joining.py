"""The way of a launcher into the next generation, over the table. No torch here: a thread can take it as well.

    1. park    put JOIN, ready for the next number                                    every launcher
    2. gather  one of them takes SEALER on and reads all JOINs until the members      the sealer
               are here; the others look at NEWEST
    3. seal    one transaction: NEWEST g -> g+1, GEN#g+1 with members by rank, the    the sealer
               starting checkpoint and rank 0's endpoint; POINTER unchanged
    4. enter   NEWEST has risen: read GEN#g+1 once                                    every launcher

Every step can be taken twice and by two; only the seal decides. A table that does not answer is waited for.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final, assert_never

from spotproof.contract.items import Generation, Join, Newest, PointerItem, Sealer
from spotproof.contract.limits import JOIN_POLL_S, JOINING_SILENCE_S, MEMBER_BEAT_S
from spotproof.errors import Lost, Superseded, Unavailable
from spotproof.rendezvous.decide import (
    Enter,
    Gather,
    MarkBad,
    Member,
    Park,
    Refuse,
    Seat,
    Size,
    Stand,
    gone,
    is_enough,
    may_grow,
    members_of,
    next_action,
    ready,
    seating,
)
from spotproof.rendezvous.silence import Silence
from spotproof.store.checkpoints import Checkpoints
from spotproof.store.head import Heads
from spotproof.store.joins import Joins
from spotproof.store.members import Memberships
from spotproof.store.objects import Objects
from spotproof.store.pointer import Pointers
from spotproof.store.starts import StagedCopy, Start, Stores, start_for
from spotproof.store.table import Table

__all__ = ["Entered", "Joining", "leave", "poll_s"]

QUICK_POLL_S: Final = 0.25  # while it is likely that the others come at any moment
QUICK_FOR_S: Final = 30.0
SEALER_LOOK_S: Final = 3.0
NODES_PER_POLL_SECOND: Final = 500  # reads/s of NEWEST that a run may cause: a sixth of what a partition takes
READ_UNITS_PER_S: Final = 2000  # at which all members together read GEN#g
_MEMBER_BYTES: Final = 32
_UNIT_BYTES: Final = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class Entered:
    """This launcher's place in a sealed generation."""

    sealed: Generation
    rank: int
    world: int


def poll_s(nodes: int, *, least_s: float = JOIN_POLL_S) -> float:
    """How often each of `nodes` may look at NEWEST, which is one item."""
    return max(least_s, nodes / NODES_PER_POLL_SECOND)


def spread_s(nodes: int) -> float:
    """Over how long all members read the sealed generation, which is one item of many read units."""
    units = math.ceil(nodes * _MEMBER_BYTES / _UNIT_BYTES)
    return nodes * units / READ_UNITS_PER_S


@dataclass(slots=True, kw_only=True)
class Joining:
    """One launcher's rendezvous. `pause` waits that many seconds; what it raises ends the way (a signal, a time-out).

    Used from one thread; clock, pause and chance can be given.
    """

    table: Table
    run: str
    seat: Seat
    size: Size
    clock: Callable[[], float] = time.monotonic
    pause: Callable[[float], None] = time.sleep
    chance: Callable[[], float] = random.random
    objects: Objects | None = None  # with it the seal sees what is durable and not pointed at
    staged: Callable[[], tuple[str, ...]] = tuple  # what is whole on this node's disk
    _ready_for: int = 0
    _endpoint: str = ""
    _sealed: Generation | None = None
    _silence: Silence = field(default_factory=Silence)
    _began_at: float = 0.0
    _beat_at: float = 0.0
    _looked_at: float | None = None
    _sealing: int = 0
    _here: tuple[frozenset[str], float] = (frozenset(), 0.0)
    _silent_s: dict[str, float] = field(default_factory=dict)
    _stood: tuple[int, float, int] = (0, 0.0, 0)  # beside which generation, since when, the newest commit

    def enter(self, endpoint: str) -> Entered:
        """Return when the next generation is sealed with this launcher. `endpoint` is the store that it offers.

        Whoever calls it again comes out of what it had entered: that generation is then marked bad.

        Raises Superseded if its place has been given to another node, for good.
        """
        self._ready_for, self._endpoint, self._sealing = 0, endpoint, 0
        self._began_at, self._looked_at = self.clock(), None
        self._silence.forget()
        while True:
            try:
                entered, wait_s = self._step()
            except Unavailable:
                self._silence.forget()
                entered, wait_s = None, JOIN_POLL_S
            if entered is not None:
                return entered
            if wait_s > 0:
                self.pause(wait_s)

    def _step(self) -> tuple[Entered | None, float]:
        """Look once and act once; returns the place, or how long to wait before the next look."""
        newest = Memberships(self.table).newest(self.run)
        self._read_sealed(newest)
        action = next_action(self.seat, newest, self._sealed, ready_for=self._ready_for)
        match action:
            case Enter(rank=rank, world=world) if self._sealed is not None:
                return Entered(sealed=self._sealed, rank=rank, world=world), 0.0
            case Enter():
                return None, JOIN_POLL_S  # GEN is written with NEWEST: cannot be
            case Park(number=number):
                self._park(number)
                return None, 0.0
            case Gather(number=number):
                return None, self._gather(number)
            case MarkBad(generation=generation):
                self._mark_bad(generation)
                return None, 0.0
            case Stand(generation=generation):
                return None, self._stand(generation)
            case Refuse(reason=reason):
                raise Superseded(f"run {self.run}: {reason}", next_step="nothing: the control plane ends this node")
            case _:
                assert_never(action)

    def _read_sealed(self, newest: Newest | None) -> None:
        """Read the membership that NEWEST names, once; many readers of one item do not all come at once."""
        known = 0 if self._sealed is None else self._sealed.generation
        if newest is None or newest.generation == known:
            return
        if (wait_s := spread_s(self.size.largest) * self.chance()) > 0.1:
            self.pause(wait_s)
        self._sealed = Memberships(self.table).generation(self.run, newest.generation)

    def _park(self, number: int) -> None:
        Joins(self.table).put(
            Join(
                run=self.run,
                node=self.seat.node,
                slot=self.seat.slot,
                incarnation=self.seat.incarnation,
                ready_for=number,
                endpoint=self._endpoint,
                staged=self.staged(),
            )
        )
        self._ready_for, self._beat_at = number, self.clock()
        self._here = (frozenset(), self.clock())

    def _beat(self) -> None:
        if self.clock() >= self._beat_at + MEMBER_BEAT_S:
            Joins(self.table).beat(self.run, self.seat.node)
            self._beat_at = self.clock()

    def _mark_bad(self, generation: int) -> None:
        with suppress(Lost):  # a newer one is sealed: the next look sees it
            Memberships(self.table).mark_bad(self.run, generation)

    def _gather(self, number: int) -> float:
        self._beat()
        if self._sealing == number:
            return self._gather_as_sealer(number)
        now = self.clock()
        if self._looked_at is None:  # all come at once: the first to look takes it on, the others see that
            self.pause(self.chance() * self.size.largest / NODES_PER_POLL_SECOND)
        elif now < self._looked_at + SEALER_LOOK_S:
            return self._poll_s()
        self._looked_at = self.clock()
        joins = Joins(self.table)
        stands = joins.sealer(self.run)
        is_silent = stands is not None and self._sealer_silence(stands) >= JOINING_SILENCE_S
        if stands is None or stands.number < number or is_silent:
            own = Sealer(run=self.run, number=number, node=self.seat.node)
            if joins.take_over(own, silent=stands if is_silent else None):
                self._sealing = number
                return 0.0
        return self._poll_s()

    def _sealer_silence(self, stands: Sealer) -> float:
        return self._silence.see("sealer", (stands.number, stands.node, stands.beats), self.clock())

    def _gather_as_sealer(self, number: int) -> float:
        here = ready(self._joins(), number, silent_s=self._silent_s, limit_s=JOINING_SILENCE_S)
        names = frozenset(join.node for join in here)
        if names != self._here[0]:
            self._here = (names, self.clock())
        reach = self._reach() if self.size.smallest <= len(here) < self.size.largest else None
        if not is_enough(len(here), self.size, unchanged_s=self.clock() - self._here[1], reach=reach):
            if self.clock() >= (self._looked_at or 0.0) + MEMBER_BEAT_S:
                self._looked_at = self.clock()
                is_still = Joins(self.table).beat_sealer(Sealer(run=self.run, number=number, node=self.seat.node))
                self._sealing = number if is_still else 0
            return self._poll_s()
        self._seal(number, seating(here, members_of(self._sealed), number, largest=self.size.largest), here)
        return 0.0

    def _reach(self) -> int | None:
        """How many members there can be, by the control plane's word; None: nobody has submitted the run."""
        head = Heads(self.table).read(self.run)
        return None if head is None else head.reach or self.size.largest

    def _seal(self, number: int, members: tuple[Member, ...], here: tuple[Join, ...]) -> None:
        pointer = Pointers(self.table).read(self.run)
        by_node = {join.node: join for join in here}
        seats = [by_node[member.node] for member in members]
        start = pointed(pointer) if self.objects is None else self._start(self.objects, pointer, seats)
        sealed = sealed_from(start, run=self.run, number=number, members=members, endpoint=seats[0].endpoint)
        with suppress(Lost):  # another sealer was first, or a commit came between: the next look sees which
            Memberships(self.table).seal(sealed, pointer=pointer)

    def _start(self, objects: Objects, pointer: PointerItem | None, seats: Sequence[Join]) -> Start | None:
        stores = Stores(
            objects=objects,
            checkpoints=Checkpoints(self.table),
            pointers=Pointers(self.table),
            memberships=Memberships(self.table),
        )
        parsed = [[StagedCopy.parse(text) for text in join.staged] for join in seats]
        return start_for(stores, self.run, pointer, [[one for one in mine if one is not None] for mine in parsed])

    def _stand(self, generation: int) -> float:
        """A standby: parked for the next number. It looks after the members, since it gains by their loss."""
        if self._ready_for != generation + 1:
            self._park(generation + 1)
        self._beat()
        now = self.clock()
        if self._looked_at is None or now >= self._looked_at + MEMBER_BEAT_S:
            self._looked_at = now
            members = members_of(self._sealed)
            joins = self._joins()
            is_free = gone(members, joins, silent_s=self._silent_s, limit_s=JOINING_SILENCE_S)
            if is_free or self._may_grow(generation, len(members)):
                self._mark_bad(generation)
                return 0.0
        return self._poll_s()

    def _may_grow(self, generation: int, world: int) -> bool:
        if world >= self.size.largest:
            return False
        pointer = Pointers(self.table).read(self.run)
        rank = 0 if pointer is None else pointer.rank
        number, since, stood = self._stood
        if number != generation:
            self._stood = (generation, self.clock(), rank)
            return False
        has_committed, self._stood = rank > stood, (number, since, rank)
        waited_s = self.clock() - since
        return may_grow(world, self.size, waited_s=waited_s, has_committed=has_committed, patience_s=self.size.regrow_s)

    def _joins(self) -> tuple[Join, ...]:
        joins = Joins(self.table).list(self.run)
        now = self.clock()
        self._silent_s = {join.node: self._silence.see(join.node, (join.ready_for, join.beats), now) for join in joins}
        return joins

    def _poll_s(self) -> float:
        is_quick = self.clock() < self._began_at + QUICK_FOR_S
        return poll_s(self.size.largest, least_s=QUICK_POLL_S if is_quick else JOIN_POLL_S)


def pointed(pointer: PointerItem | None) -> Start | None:
    """The start where only the table is known: what the pointer names."""
    if pointer is None:
        return None
    return Start(
        order=(pointer.generation, pointer.step),
        manifest_key=pointer.manifest_key,
        manifest_digest=pointer.manifest_digest,
    )


def sealed_from(
    start: Start | None, *, run: str, number: int, members: tuple[Member, ...], endpoint: str
) -> Generation:
    """The membership that begins with `start`. `sealed_at` is for people."""
    return Generation(
        run=run,
        generation=number,
        members=tuple(member.text() for member in members),
        sealed_at=int(time.time()),
        start_generation=None if start is None else start.order[0],
        start_step=None if start is None else start.order[1],
        start_manifest=None if start is None else start.manifest_key or None,
        start_digest=None if start is None else start.manifest_digest or None,
        endpoint=endpoint,
    )


def leave(table: Table, *, run: str, node: str) -> None:
    """Take this node, and nobody else, out of the run for good: its agent says so when it has flushed, before it stops
    the launcher. The others re-form at once, without an error and without a restart counted."""
    Joins(table).leave_for_good(run, node)
    memberships = Memberships(table)
    newest = memberships.newest(run)
    if newest is None:
        return
    sealed = memberships.generation(run, newest.generation)
    if any(member.node == node for member in members_of(sealed)):
        with suppress(Lost):  # a newer one is sealed, without this node
            memberships.mark_bad(run, newest.generation)

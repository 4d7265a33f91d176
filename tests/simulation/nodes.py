"""The nodes of a history: small honest agents that beat, flush, park, seal and commit over the same table.

What a node hears and when a successor may join is decided by the agent's own code (`Notices`, `waiting_for`).
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from lambdas.decisions.moves import ENDED_BY_US
from lambdas.effects.stores import Stores
from spotproof.agent import membership
from spotproof.agent.head import order_of
from spotproof.agent.heartbeat import Place
from spotproof.agent.notices import Heard, Notices, Source, of_order
from spotproof.contract import keys
from spotproof.contract.items import NO_INSTANCE, Generation, Head, Node, PointerItem, Slot, pointer_rank
from spotproof.contract.limits import HEARTBEAT_S, JOIN_AFTER_DEADLINE_S
from spotproof.contract.states import Cause, FlushOutcome, NodePhase, NoticeKind, RunStatus
from spotproof.errors import Lost, Superseded
from spotproof.store.table import BulkTable
from tests.fakes.control import STACK
from tests.simulation.account import SimulatedEc2
from tests.simulation.watch import WatchedTable

SKEW_S: Final = 5  # of a node's clock
PAUSE_BUDGET_S: Final = 90
# Whoever is replaced for one of these is taken for gone; nobody waits for its flush.
UNHEARD: Final = frozenset({Cause.SUBMIT, Cause.SILENCE, Cause.DISAPPEARED, Cause.NEVER_JOINED, Cause.NODE_FAULT})
MOVED: Final = ENDED_BY_US | {Cause.BLOCK_EXPIRY}
ENDING: Final = frozenset({RunStatus.PAUSED, RunStatus.STOPPING, RunStatus.STOPPED})


@dataclass(slots=True)
class Life:
    """What a node is like and what it knows."""

    instance: str
    boots_at: float
    skew_s: int
    prepares_s: float
    never_joins: bool = False
    dismissed: bool = False  # a person has paused or stopped the run
    dies_booting: bool = False
    frozen: bool = False
    woke_at: float = 0.0
    woke: bool = False  # just now: it goes on where it was, before it looks at anything
    failing: bool = False
    notice_until: float | None = None  # EC2 has told the node (its metadata) that it will go then
    ends_by: float | None = None  # the deadline that somebody has announced, the node's own metadata or not
    hears_metadata: bool = True
    place: Place | None = None
    ready_at: float = 0.0
    notices: Notices = field(default_factory=Notices)
    known_order: str = ""
    over: bool = False  # superseded, or ended by itself
    generation: int = 0  # what it believes
    joined_in: int = 0
    step: int = 0
    flush_at: float = 0.0
    flush: FlushOutcome | None = None
    phase: NodePhase = NodePhase.BOOTING
    beats_at: float = 0.0

    def forgets(self, now: float, boots_s: float) -> None:
        """A stopped node comes back: its disk is there, its memory is not."""
        self.boots_at, self.frozen, self.place, self.ready_at = now + boots_s, False, None, 0.0
        self.notices, self.known_order, self.notice_until = Notices(), "", None
        self.over, self.generation, self.flush, self.phase, self.flush_at = False, 0, None, NodePhase.BOOTING, 0.0


@dataclass(slots=True)
class Nodes:
    """All nodes; `act` is one turn of each that lives."""

    run: str
    ec2: SimulatedEc2
    table: BulkTable
    watch: WatchedTable
    stores: Stores
    chance: random.Random
    clock: Callable[[], float]
    violations: list[str]
    faults: Counter[str]
    told_to_leave: Callable[[str, RunStatus], None]
    lives: dict[str, Life] = field(default_factory=dict)
    out: bool = False  # nobody can reach the table
    never_joins: float = 0.0
    boot_deaths: float = 0.0
    commits: float = 0.3  # how likely a turn of training commits
    members: int = 0  # of a membership, where there are more places than that; 0: as many as places
    least: int = 0  # of them, where the control plane says so; 0: always all
    _generations: dict[int, Generation] = field(default_factory=dict)

    def act(self, booted: Callable[[str], None], died: Callable[[str], None]) -> None:
        """One turn of every living node, in any order."""
        alive = [name for name, one in self.ec2.instances.items() if one.is_alive]
        self.chance.shuffle(alive)
        for instance in alive:
            machine = self.ec2.instances[instance]
            if machine.tags.get("spotproof:stack") != STACK:
                continue
            life = self.life(instance)
            if machine.state == "pending":
                if self.clock() < life.boots_at:
                    continue
                if life.dies_booting:
                    self.faults["node killed while it boots"] += 1
                    died(instance)
                    continue
                self.ec2.turn(instance, "running")
                booted(instance)
            elif not (life.frozen or life.never_joins or life.over or self.out):
                self._turn(life)

    def life(self, instance: str) -> Life:
        if instance not in self.lives:
            self.lives[instance] = Life(
                instance=instance,
                boots_at=self.clock() + self.chance.uniform(5, 60),
                skew_s=self.chance.randint(-SKEW_S, SKEW_S),
                prepares_s=self.chance.uniform(0, 30),
                never_joins=self.chance.random() < self.never_joins,
                dies_booting=self.chance.random() < self.boot_deaths,
            )
            if self.lives[instance].never_joins:
                self.faults["node never joins"] += 1
        return self.lives[instance]

    def writers(self) -> list[Life]:
        """Who can commit now: alive, awake, and a member of what it believes to be the newest generation."""
        return [
            life
            for name, life in self.lives.items()
            if life.generation and not (life.over or life.frozen) and self.ec2.instances[name].state == "running"
        ]

    # ------------------------------------------------------------------------------------------------------ a turn
    def _turn(self, life: Life) -> None:
        place = life.place or self._placed(life)
        if place is None:
            return
        if life.woke and life.generation:
            self._commit(life)
        life.woke = False
        newest = self.table.get(keys.newest(self.run))
        number = int(str(newest["generation"])) if newest is not None else 0
        if number != life.generation:
            self._follow(life, place, number)
            if life.over:
                return
        if life.failing and life.generation:
            self._beat(life, NodePhase.FAILED, exit_code=1)
            return
        self._hear(life, place)
        if life.notices.leaving is not None:
            self._leave(life)
        elif life.generation:
            self._train(life)
        elif self.clock() < life.ready_at:
            self._beat(life, NodePhase.PREPARING)
        else:
            self._beat(life, NodePhase.PARKED)
            self._seal(life, place, number)

    def _follow(self, life: Life, place: Place, number: int) -> None:
        """A newer membership is sealed: it names this node, or does without it, or names another one in its place."""
        if membership.member_text(place) in self._members_of(number):
            self._join(life, number)
        elif life.generation and self._may_stand_by(place, number):
            self.faults["left out of a membership, stands by"] += 1
            life.generation = 0
        elif life.generation:
            self._superseded(life)

    def _placed(self, life: Life) -> Place | None:
        member = self.stores.members.read(life.instance)
        slot = None if member is None or member.launch is not None else self.stores.slots.read(self.run, member.slot)
        if member is not None and membership.has_place(member, slot):
            life.place = Place(run=member.run, slot=member.slot, incarnation=member.incarnation, instance=life.instance)
            life.ready_at = self.clock() + life.prepares_s
        return life.place

    def _sealed(self, number: int) -> Generation | None:
        if number and number not in self._generations:
            sealed = self.stores.memberships.generation(self.run, number)
            if sealed is not None:
                self._generations[number] = sealed
        return self._generations.get(number)

    def _members_of(self, number: int) -> tuple[str, ...]:
        sealed = self._sealed(number)
        return () if sealed is None else sealed.members

    def _join(self, life: Life, number: int) -> None:
        if life.generation == 0:
            head = self.stores.heads.read(self.run)
            if head is not None and head.order is not None:
                life.notices.forget_before_joining(head.order)
            life.joined_in = number
        life.generation = number
        pointer = self.stores.pointers.read(self.run)
        life.step = 0 if pointer is None else pointer.step

    def _superseded(self, life: Life) -> None:
        self._beat(life, NodePhase.SUPERSEDED)
        life.over = True

    def _hear(self, life: Life, place: Place) -> None:
        """Its own metadata, and the run's HEAD: what each means is the agent's to say."""
        now = self.clock() + life.skew_s
        if life.notice_until is not None and life.notices.leaving is None:
            heard = Heard(
                key="metadata",
                source=Source.METADATA,
                kind=NoticeKind.INTERRUPTION,
                deadline_at=life.notice_until,
                leave=True,
            )
            life.notices.hear(heard, now=now)
        item = self.table.get(keys.head(self.run)) or {}
        order, status = str(item.get("order", "")), str(item.get("status", ""))
        if (order == life.known_order and status not in ENDING) or life.notices.leaving is not None:
            return
        life.known_order = order
        head = self.stores.heads.read(self.run)
        if head is not None:
            self._hear_head(life, place, head, now)

    def _hear_head(self, life: Life, place: Place, head: Head, now: float) -> None:
        order = order_of(head)
        if order is not None:
            heard = of_order(order, source=Source.HEAD, slot=place.slot, joined_in=life.joined_in)
            if heard.leave and not life.generation:
                life.notices.forget_before_joining(heard.key)  # it means the node whose place this one takes
            else:
                news = life.notices.hear(heard, now=now)
                if news is not None and news.is_extra and life.generation:
                    self._commit(life)
                elif news is not None and news.is_new_leaving:
                    self.told_to_leave(life.instance, head.status)
        if head.status in ENDING and life.generation:
            person = Heard(
                key=f"status-{head.status}",
                source=Source.HEAD,
                kind=NoticeKind.MAINTENANCE,
                deadline_at=now + PAUSE_BUDGET_S,
                leave=True,
            )
            life.dismissed = True
            life.notices.hear(person, now=now)

    def _leave(self, life: Life) -> None:
        if not life.generation:
            return  # it would not live long enough to be of use
        if life.flush is None:
            life.flush, life.flush_at = FlushOutcome.PENDING, self.clock() + self.chance.uniform(0, 30)
            self._beat(life, NodePhase.FLUSHING)
        elif life.flush is FlushOutcome.PENDING and self.clock() >= life.flush_at:
            late = self.clock() + life.skew_s >= life.notices.deadline_at
            life.flush = FlushOutcome.COMMITTED if not late and self._commit(life) else FlushOutcome.FAILED
        if life.flush.is_final:
            self._beat(life, NodePhase.DRAINING)

    def _train(self, life: Life) -> None:
        life.step += 1
        if self.chance.random() < self.commits:
            self._commit(life)
        self._beat(life, NodePhase.TRAINING)

    def _commit(self, life: Life) -> bool:
        assert life.place is not None
        pointer = PointerItem(
            run=self.run,
            generation=life.generation,
            step=life.step,
            rank=pointer_rank(life.generation, life.step),
            manifest_key="m",
            manifest_digest="0" * 64,
        )
        try:
            self.stores.pointers.rise(pointer, own_generation=life.generation)
        except (Lost, Superseded):
            return False
        newest = self.stores.memberships.newest(self.run)
        members = self._members_of(0 if newest is None else newest.generation)
        if membership.member_text(life.place) not in members:
            self.violations.append(f"{life.instance} committed and is no member of the newest generation")
        return True

    # ------------------------------------------------------------------------------------------------------ joining
    def _seal(self, life: Life, place: Place, number: int) -> None:
        """Seal the next generation once every slot has somebody for it: whoever is parked first does it for all."""
        slots = self.stores.slots.list(self.run)
        mine = next((slot for slot in slots if slot.slot == place.slot), None)
        now = self.clock() + life.skew_s
        try:
            if mine is None or self._waits(mine, place, number, now):
                return
        except Superseded:
            self._superseded(life)
            return
        members = self._gathered(slots, number, now)
        if not members:
            return
        pointer = self.stores.pointers.read(self.run)
        generation = Generation(
            run=self.run,
            generation=number + 1,
            members=members,
            sealed_at=int(now),
            start_step=None if pointer is None else pointer.step,
        )
        try:
            self.stores.memberships.seal(generation, pointer=pointer)
        except Lost:
            return
        self._check_barrier(slots, number, generation)

    def _gathered(self, slots: tuple[Slot, ...], number: int, now: float) -> tuple[str, ...]:
        """Who the next members are; () as long as somebody is missing.

        With places to spare the survivors come first, and only when one of them is lost: its own successor takes its
        place, or a node that stands by.
        """
        here = [self._chosen(slot, number, now) for slot in slots]
        found = [member for member in here if member is not None]
        if not self.members:
            return tuple(found) if len(found) == len(slots) else ()
        before = self._members_of(number)
        stay = [member for member in found if member in before]
        taken = {member.partition(":")[0] for member in found}
        lost = [one for one in before if one not in stay]
        grows = self.least and before and len(before) < self.members and len(found) > len(before)
        if (before and not lost and not grows) or not all(
            self._is_lost(one) or one.partition(":")[0] in taken for one in lost
        ):
            return ()
        joined = [*stay, *(member for member in found if member not in stay)][: self.members]
        if number and set(joined) - set(stay) and len(joined) == self.members:
            self.faults["a node that stood by took a place"] += any(
                one.partition(":")[0] not in {old.partition(":")[0] for old in before} for one in joined
            )
        is_smaller = 0 < len(joined) < self.members and len(joined) >= self._within_reach()
        self.faults["an elastic run shrinks"] += is_smaller
        self.faults["an elastic run grows"] += bool(grows) and len(joined) == self.members
        return tuple(joined) if is_smaller or len(joined) == self.members else ()

    def _within_reach(self) -> int:
        """With how many nodes the sealer goes on: with all but for the control plane's word."""
        head = self.stores.heads.read(self.run)
        said = head.reach if head is not None and self.least else 0
        return max(self.least, said or self.members)

    def _is_lost(self, member: str) -> bool:
        """Whether its neighbours see that it is gone, or it has taken itself out."""
        life = self.lives[member.split(":", 2)[2]]
        return life not in self.writers() or (life.flush is not None and life.flush.is_final)

    def _may_stand_by(self, place: Place, number: int) -> bool:
        """Whether nobody has been given this node's place: it was left out while it lived."""
        later = (one.split(":", 2) for one in self._members_of(number))
        return bool(self.members) and all(int(slot) != place.slot for slot, _, _ in later)

    def _waits(self, slot: Slot, place: Place, number: int, now: float) -> str:
        sealed = self._sealed(number)
        incumbent = membership.incumbent_of(slot, place, sealed)
        holder = None if incumbent is None else self.stores.nodes.read(self.run, slot.slot, incumbent.incarnation)
        return membership.waiting_for(slot=slot, place=place, holder=holder, now=now, sealed=sealed)

    def _chosen(self, slot: Slot, number: int, now: float) -> str | None:
        """The slot's member: its successor if it is parked and its turn has come, else the holder if it trains on."""
        sealed = self._members_of(number)
        successor = self._parked(slot)
        if successor is not None:
            try:
                if not self._waits(slot, successor, number, now):
                    return membership.member_text(successor)
            except Superseded:
                return None
        holder = f"{slot.slot}:{slot.holder_incarnation}:{slot.holder_instance}"
        life = self.lives.get(str(slot.holder_instance))
        if life is None or life.notices.leaving is not None or self.out:
            return None
        if self.members and life.generation == 0 and life.phase is NodePhase.PARKED and not life.frozen:
            return holder if self.ec2.instances[life.instance].state == "running" else None  # left out, and well
        return holder if holder in sealed and life in self.writers() else None

    def _parked(self, slot: Slot) -> Place | None:
        if slot.successor_instance in (None, NO_INSTANCE):
            return None
        life = self.lives.get(str(slot.successor_instance))
        if life is None or life.phase is not NodePhase.PARKED or life.frozen or life.notices.leaving is not None:
            return None
        is_there = self.ec2.instances[life.instance].state == "running"
        return life.place if is_there else None

    def _check_barrier(self, slots: tuple[Slot, ...], before: int, sealed: Generation) -> None:
        """Nobody whose end was announced is replaced while it still may save, and nobody at all who is well."""
        for member in self._members_of(before):
            number, _, instance = member.split(":", 2)
            life = self.lives[instance]
            if member in sealed.members or life not in self.writers() or life.failing or self.out:
                continue
            causes = {self.watch.claimed_for.get((int(number), instance), ""), str(slots[int(number)].cause)}
            if causes & UNHEARD or (life.flush is not None and life.flush.is_final):
                continue
            if life.woke_at > (slots[int(number)].claimed_at or 0):
                continue  # it slept when it was told to leave
            ends = [at for at in (life.ends_by, self._told_until(slots[int(number)])) if at is not None]
            until = min(ends) + JOIN_AFTER_DEADLINE_S - SKEW_S - 1 if ends else None
            if until is None or self.clock() < until:
                self.violations.append(f"slot {number}: sealed over {instance}, which could still save")

    @staticmethod
    def _told_until(slot: Slot) -> float | None:
        """Until when a holder that is moved has time: what it cannot save by then, with the table out, is lost."""
        return slot.deadline_at if slot.cause in MOVED and not slot.waits_for_notice else None

    def _beat(self, life: Life, phase: NodePhase, *, exit_code: int | None = None) -> None:
        place = life.place
        if place is None or (phase is life.phase and self.clock() < life.beats_at):
            return
        life.phase, life.beats_at = phase, self.clock() + HEARTBEAT_S
        node = Node(
            run=self.run,
            slot=place.slot,
            incarnation=place.incarnation,
            instance=life.instance,
            phase=phase,
            beat_at=int(self.clock()) + life.skew_s,
            generation=life.generation,
            step=life.step,
            flush=life.flush,
            exit_code=exit_code,
        )
        try:
            self.stores.nodes.beat(node)
        except Superseded:
            life.over = True

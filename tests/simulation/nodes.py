"""The nodes of a history: small honest agents that beat, flush, park, seal and commit over the same table."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field

from lambdas.effects.stores import Stores
from spotproof.contract.items import NO_INSTANCE, Generation, Head, Member, Node, PointerItem, Slot, pointer_rank
from spotproof.contract.limits import JOIN_AFTER_DEADLINE_S
from spotproof.contract.orders import slots_of
from spotproof.contract.states import FlushOutcome, NodePhase, NoticeKind
from spotproof.errors import Lost, Superseded
from tests.fakes.ec2 import FakeEc2


@dataclass(slots=True)
class Life:
    """What a node is like."""

    boots_at: float
    skew_s: int
    never_joins: bool = False
    frozen: bool = False
    noticed: bool = False
    failing: bool = False
    generation: int = 0  # what it believes
    step: int = 0
    flushed: bool = False


@dataclass(slots=True)
class Nodes:
    """All nodes; `act` is one turn of each that lives."""

    ec2: FakeEc2
    stores: Stores
    chance: random.Random
    clock: Callable[[], float]
    violations: list[str]
    lives: dict[str, Life] = field(default_factory=dict)
    out: bool = False  # nobody can reach the table
    never_joins: float = 0.0

    def act(self, booted: Callable[[str], None]) -> None:
        """One turn of every living node, in any order."""
        for instance in self.chance.sample(sorted(self.ec2.instances), len(self.ec2.instances)):
            machine = self.ec2.instances[instance]
            if not machine.is_alive or "spotproof:launch" not in machine.tags:
                continue
            life = self.life(instance)
            if machine.state == "pending":
                if self.clock() >= life.boots_at:
                    machine.state = "running"
                    booted(instance)
                continue
            if not (life.frozen or life.never_joins or self.out):
                self._turn(instance, life)

    def life(self, instance: str) -> Life:
        if instance not in self.lives:
            self.lives[instance] = Life(
                boots_at=self.clock() + self.chance.uniform(5, 60),
                skew_s=self.chance.randint(-5, 5),
                never_joins=self.chance.random() < self.never_joins,
            )
        return self.lives[instance]

    def _turn(self, instance: str, life: Life) -> None:
        member = self.stores.members.read(instance)
        if member is None:
            return
        slot = self.stores.slots.read(member.run, member.slot)
        head = self.stores.heads.read(member.run)
        newest = self.stores.memberships.newest(member.run)
        if slot is None or head is None:
            return
        sealed = None if newest is None else self.stores.memberships.generation(member.run, newest.generation)
        if life.generation:
            self._work(instance, life, member, head)
        if sealed is not None and _name(member) in sealed.members:
            if life.generation != sealed.generation:
                life.generation = sealed.generation
                pointer = self.stores.pointers.read(member.run)
                life.step = 0 if pointer is None else pointer.step
        elif (slot.successor_instance, slot.successor_incarnation) == (instance, member.incarnation):
            self._beat(instance, life, member, NodePhase.PARKED)
            self._seal(member, sealed)

    def _work(self, instance: str, life: Life, member: Member, head: Head) -> None:
        """What a node does that believes it is a member: it may be wrong."""
        if life.failing:
            self._beat(instance, life, member, NodePhase.FAILED, exit_code=1)
            return
        leaves = head.order_leavers is not None and member.slot in slots_of(head.order_leavers)
        ends = leaves and head.order_kind is NoticeKind.MAINTENANCE and not head.status.wants_nodes
        if life.noticed or ends:
            durable = life.flushed or self._commit(instance, life, member)
            life.flushed = life.flushed or durable
            outcome = FlushOutcome.COMMITTED if durable else FlushOutcome.FAILED
            self._beat(instance, life, member, NodePhase.DRAINING, flush=outcome)
            return
        life.step += 1
        if self.chance.random() < 0.3:
            self._commit(instance, life, member)
        self._beat(instance, life, member, NodePhase.TRAINING)

    def _commit(self, instance: str, life: Life, member: Member) -> bool:
        pointer = PointerItem(
            run=member.run,
            generation=life.generation,
            step=life.step,
            rank=pointer_rank(life.generation, life.step),
            manifest_key="m",
            manifest_digest="0" * 64,
        )
        newest = self.stores.memberships.newest(member.run)
        sealed = None if newest is None else self.stores.memberships.generation(member.run, newest.generation)
        try:
            self.stores.pointers.rise(pointer, own_generation=life.generation)
        except (Lost, Superseded):
            return False
        if sealed is None or _name(member) not in sealed.members:
            self.violations.append(f"{instance} committed and is no member of the newest generation")
        return True

    def _seal(self, member: Member, sealed: Generation | None) -> None:
        slots = self.stores.slots.list(member.run)
        chosen = [self._chosen(slot, sealed) for slot in slots]
        if any(one is None for one in chosen):
            return
        pointer = self.stores.pointers.read(member.run)
        generation = Generation(
            run=member.run,
            generation=1 if sealed is None else sealed.generation + 1,
            members=tuple(one for one in chosen if one is not None),
            sealed_at=int(self.clock()),
            start_step=None if pointer is None else pointer.step,
        )
        try:
            self.stores.memberships.seal(generation, pointer=pointer)
        except Lost:
            return

    def _chosen(self, slot: Slot, sealed: Generation | None) -> str | None:
        """The slot's member: its successor if it is parked and its turn has come, else the holder that is sealed."""
        successor = f"{slot.slot}:{slot.successor_incarnation}:{slot.successor_instance}"
        if slot.successor_instance not in (None, NO_INSTANCE) and self._may_join(slot):
            return successor
        holder = f"{slot.slot}:{slot.holder_incarnation}:{slot.holder_instance}"
        return holder if sealed is not None and holder in sealed.members else None

    def _may_join(self, slot: Slot) -> bool:
        parked = self.stores.nodes.read(slot.run, slot.slot, int(slot.successor_incarnation or 0))
        if parked is None or parked.phase not in (NodePhase.PARKED, NodePhase.TRAINING):
            return False
        before = self.stores.nodes.read(slot.run, slot.slot, int(slot.holder_incarnation or 0))
        flushed = before is not None and before.flush is not None and before.flush.is_final
        return flushed or slot.deadline_at is None or slot.deadline_at + JOIN_AFTER_DEADLINE_S <= self.clock()

    def _beat(
        self,
        instance: str,
        life: Life,
        member: Member,
        phase: NodePhase,
        *,
        flush: FlushOutcome | None = None,
        exit_code: int | None = None,
    ) -> None:
        node = Node(
            run=member.run,
            slot=member.slot,
            incarnation=member.incarnation,
            instance=instance,
            phase=phase,
            beat_at=int(self.clock()) + life.skew_s,
            generation=life.generation,
            step=life.step,
            flush=flush,
            exit_code=exit_code,
        )
        try:
            self.stores.nodes.beat(node)
        except Superseded:
            return


def _name(member: Member) -> str:
    return f"{member.slot}:{member.incarnation}:{member.instance}"

"""What a launcher does next, given what the table says: pure, no clock, no table.

A generation is **open** while nobody has sealed it: the newest one does not exist or is marked bad, and the next
number is gathered. Who is parked for that number is `ready`; one of the ready is the sealer.

    open, not ready for it                     Park(number)
    open, ready                                Gather(number): the sealer seals, the others look at the sealer
    sealed with us, ready for it               Enter(generation)
    sealed with us, but we come out of it      MarkBad(generation): our workers are gone, so it is broken
    sealed without us, our slot's predecessor  MarkBad(generation): we are its replacement
    sealed without us, our slot's successor    Refuse: our place has been given away
    sealed without us, no place for us         Stand(generation): a standby, ready for the next number
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from spotproof.contract.items import Generation, Join, Newest
from spotproof.contract.limits import REGROW_AFTER_S

NO_SLOT = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class Seat:
    """Which launcher this is. `slot` NO_SLOT: nobody has given it a place, so the sealer does."""

    node: str
    slot: int = NO_SLOT
    incarnation: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """One entry of a sealed membership; its position is the logical rank."""

    slot: int
    incarnation: int
    node: str

    def text(self) -> str:
        """The entry as memberships list it."""
        return f"{self.slot}:{self.incarnation}:{self.node}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Park:
    """Make the node ready for this generation."""

    number: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Gather:
    """Seal this generation if we are its sealer and its members are here; else see that somebody does."""

    number: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Enter:
    """The membership is sealed with us."""

    generation: int
    rank: int
    world: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MarkBad:
    """Say that this generation is broken."""

    generation: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Stand:
    """All places are taken; wait until one is free."""

    generation: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Refuse:
    """There will never be a place for this launcher."""

    reason: str


Action = Park | Gather | Enter | MarkBad | Stand | Refuse


def members_of(sealed: Generation | None) -> tuple[Member, ...]:
    """The entries of a membership, by rank. A node's name may hold ':'."""
    texts = () if sealed is None else sealed.members
    split = (text.split(":", 2) for text in texts)
    return tuple(Member(slot=int(slot), incarnation=int(number), node=node) for slot, number, node in split)


def is_over(newest: Newest | None, generation: int) -> bool:
    """Whether the workers of `generation` must stop: it is marked bad, or a newer one is sealed."""
    return newest is not None and (newest.bad >= generation or newest.generation > generation)


def next_number(newest: Newest | None) -> int:
    """The generation that is sealed next."""
    return 1 if newest is None else newest.generation + 1


def next_action(seat: Seat, newest: Newest | None, sealed: Generation | None, *, ready_for: int) -> Action:
    """What follows from NEWEST and its membership. `ready_for` is the generation this launcher last parked for; a
    launcher that comes out of a generation begins again with 0."""
    if newest is None or newest.bad >= newest.generation:
        number = next_number(newest)
        return Gather(number=number) if ready_for == number else Park(number=number)
    members = members_of(sealed)
    for rank, member in enumerate(members):
        if member.node == seat.node:
            if ready_for == newest.generation:
                return Enter(generation=newest.generation, rank=rank, world=len(members))
            return MarkBad(generation=newest.generation)
    return _without_us(seat, newest.generation, members)


def _without_us(seat: Seat, generation: int, members: Sequence[Member]) -> Action:
    for member in members:
        if seat.slot != NO_SLOT and member.slot == seat.slot:
            if member.incarnation > seat.incarnation:
                return Refuse(reason=f"slot {seat.slot} has been given to {member.node}")
            return MarkBad(generation=generation)
    return Stand(generation=generation)


def ready(joins: Sequence[Join], number: int, *, silent_s: Mapping[str, float], limit_s: float) -> tuple[Join, ...]:
    """Who is parked for `number` and alive. Of one slot only the newest incarnation; of silent ones nobody."""
    found: dict[str, Join] = {}
    for join in joins:
        if join.left or join.ready_for != number or silent_s.get(join.node, 0.0) >= limit_s:
            continue
        place = join.node if join.slot == NO_SLOT else f"{join.slot:06d}"
        if place not in found or found[place].incarnation < join.incarnation:
            found[place] = join
    return tuple(found.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """How many members a generation may have. While fewer than `largest` are here, `last_call_s` is waited for one
    more since the last arrival. A standby that could make a smaller generation larger waits `regrow_s` first."""

    smallest: int
    largest: int
    last_call_s: float = 3.0
    regrow_s: float = REGROW_AFTER_S


def is_enough(count: int, size: Size, *, unchanged_s: float, reach: int | None = None) -> bool:
    """Whether the generation may be sealed with `count` members. `reach`: how many there are or will be, by the word of
    a control plane, which knows what EC2 answered; those are waited for. None: nobody says that, so time has to."""
    least = size.smallest if reach is None else max(size.smallest, reach)
    return count >= size.largest or (count >= least and unchanged_s >= size.last_call_s)


def seating(here: Sequence[Join], previous: Sequence[Member], number: int, *, largest: int) -> tuple[Member, ...]:
    """The members of generation `number`, by rank. Survivors come first where there are too many, and keep slot and
    rank; newcomers fill the holes. Where the world shrinks, the highest ranks move into the holes."""
    was = {member.node: (rank, member) for rank, member in enumerate(previous)}
    order = sorted(here, key=lambda join: (was[join.node][0] if join.node in was else len(was), join.slot, join.node))
    chosen = order[:largest]
    survivors = [join for join in chosen if join.node in was and was[join.node][0] < len(chosen)]
    seats: list[Join | None] = [None] * len(chosen)
    for join in survivors:
        seats[was[join.node][0]] = join
    seated = {join.node for join in survivors}
    holes = [rank for rank, taken in enumerate(seats) if taken is None]
    rank_of_slot = {member.slot: rank for rank, member in enumerate(previous)}
    for join in (join for join in chosen if join.node not in seated):
        rank = _preferred(rank_of_slot.get(join.slot, join.slot), holes)
        holes.remove(rank)
        seats[rank] = join
    kept = {was[join.node][1].slot for join in chosen if join.node in was}
    free = iter([slot for slot in range(2 * largest) if slot not in kept])
    return tuple(_member(join, was.get(join.node), number, free) for join in seats if join is not None)


def _preferred(rank: int, holes: Sequence[int]) -> int:
    """A replacement gets its predecessor's rank, and a slot at first its own number, where that is free."""
    return rank if rank in holes else holes[0]


def _member(join: Join, was: tuple[int, Member] | None, number: int, free: Iterator[int]) -> Member:
    if join.slot != NO_SLOT:
        return Member(slot=join.slot, incarnation=join.incarnation, node=join.node)
    if was is not None:
        return was[1]
    return Member(slot=next(free), incarnation=number, node=join.node)


def neighbour(members: Sequence[Member], rank: int) -> Member | None:
    """Whom this rank watches: the next one of the ring. So nobody is watched by one special node."""
    return members[(rank + 1) % len(members)] if len(members) > 1 else None


def gone(members: Sequence[Member], joins: Sequence[Join], *, silent_s: Mapping[str, float], limit_s: float) -> bool:
    """Whether a member of the sealed generation has left or is silent, so that a standby may take its place."""
    by_node = {join.node: join for join in joins}
    return any(
        member.node in by_node and (by_node[member.node].left or silent_s.get(member.node, 0.0) >= limit_s)
        for member in members
    )


def may_grow(world: int, size: Size, *, waited_s: float, has_committed: bool, patience_s: float) -> bool:
    """Whether a standby may end a generation that is smaller than it could be: only right after a commit, so that next
    to nothing is lost, and not before it has waited a while, so that a node which comes and goes does not shake all."""
    return world < size.largest and has_committed and waited_s >= patience_s

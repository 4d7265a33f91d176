"""How a node gets its place: found, prepared, parked until the holder is through, sealed.

    1. The INSTANCE item names run, slot and incarnation (polled until the control plane has bound this instance).
    2. Read ahead: the newest committed checkpoint is fetched and verified while the holder still flushes.
    3. Wait until the holder's flush outcome is final, or its deadline has passed by 10 s.
    4. If a newer checkpoint appeared meanwhile, choose again. Seal: from then on the holder's generation cannot commit.

One of many nodes takes 1 to 3 and then starts its launcher: the launchers' rendezvous seals, this agent follows.

A node that finds itself in the newest membership (its agent was restarted) has its place already.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, TypeVar

from spotproof.agent.heartbeat import Place
from spotproof.checkpoint.fetch import Fetched, Fetcher
from spotproof.contract import s3keys
from spotproof.contract.items import NO_INSTANCE, Generation, Member, Node, Slot
from spotproof.contract.limits import FIRST_HEARTBEAT_S, JOIN_AFTER_DEADLINE_S
from spotproof.contract.runspec import RunSpec
from spotproof.errors import BadSettings, Denied, Lost, Missing, Superseded, Unavailable
from spotproof.store.head import Heads
from spotproof.store.members import Members, Memberships
from spotproof.store.nodes import Nodes
from spotproof.store.slots import Slots
from spotproof.store.spec import Specs
from spotproof.store.table import Table

POLL_S: Final = 1.0
CREDENTIALS_WITHIN_S: Final = 60.0

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Placed:
    """The node knows its place, and the run's spec."""

    place: Place
    spec: RunSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Parked:
    """Prepared; waits for its turn. `waiting_for` '': it is its turn already."""

    waiting_for: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Joined:
    """The membership is sealed. `fetched` is the starting checkpoint, None: from step 0. `old_order` is the flush
    order that stood in HEAD before: it means the node whose place this one has taken."""

    generation: int
    fetched: Fetched | None
    old_order: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Ready:
    """One of many nodes may take part now: its launcher goes into the rendezvous. `ahead` is what was read ahead."""

    ahead: Fetched | None = None
    old_order: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NotJoined:
    """No place for this node, for good; `error` says why."""

    error: Exception


class Called(Exception):
    """The agent ends."""


def has_place(member: Member, slot: Slot | None) -> bool:
    """Whether an instance may act on its entry. One that was let go may be given another place.

    What we launch is entered once it is bound. A hand-tagged instance is entered first, and its place may have gone to
    another one meanwhile: a beat there would turn that one away. So `slot` has to name it.
    """
    if member.ended_at is not None:
        return False
    is_bound = slot is not None and member.instance in (slot.holder_instance, slot.successor_instance)
    return member.launch is not None or is_bound


@dataclass(frozen=True, slots=True, kw_only=True)
class Incumbent:
    """Who works in the slot until this node's seal, and when it may be gone."""

    instance: str
    incarnation: int
    deadline_at: int


def incumbent_of(slot: Slot, place: Place, sealed: Generation | None) -> Incumbent | None:
    """The node that a successor waits for; None: nobody.

    The slot's holder, but for a node that joined just before it was claimed as lost: then nobody has promoted it, and
    only the newest membership tells that it works here and may still flush.
    """
    claimed_at = slot.claimed_at or 0
    joined = _joined(slot, place, sealed)
    if joined is not None:
        deadline_at = claimed_at if slot.lost_deadline_at is None else slot.lost_deadline_at
        return Incumbent(instance=joined[1], incarnation=joined[0], deadline_at=deadline_at)
    if slot.holder_instance in (None, NO_INSTANCE):
        return None
    return Incumbent(
        instance=str(slot.holder_instance),
        incarnation=slot.holder_incarnation or 0,
        deadline_at=claimed_at if slot.deadline_at is None else slot.deadline_at,
    )


def _joined(slot: Slot, place: Place, sealed: Generation | None) -> tuple[int, str] | None:
    """The incarnation and instance of the membership's node in this slot, if it came after the slot's holder."""
    for member in () if sealed is None else sealed.members:
        number, incarnation, instance = member.split(":", 2)
        if int(number) == slot.slot and (slot.holder_incarnation or 0) < int(incarnation) < place.incarnation:
            return int(incarnation), instance
    return None


def waiting_for(*, slot: Slot, place: Place, holder: Node | None, now: float, sealed: Generation | None = None) -> str:
    """What a successor still waits for; '' when it may join. `holder` is the newest beat of the slot's incumbent.

    Raises Superseded if the slot has been claimed anew: another node takes this place.
    """
    if slot.holder_instance == place.instance:
        return ""
    if slot.incarnation != place.incarnation or slot.successor_instance not in (place.instance, NO_INSTANCE):
        raise Superseded(
            f"slot {slot.slot} of run {slot.run} waits for incarnation {slot.incarnation}, this node is "
            f"{place.incarnation}",
            next_step="nothing: the control plane ends this node",
        )
    incumbent = incumbent_of(slot, place, sealed)
    if incumbent is None:
        return ""
    if holder is not None and holder.flush is not None and holder.flush.is_final:
        return ""
    left_s = incumbent.deadline_at + JOIN_AFTER_DEADLINE_S - now
    if left_s <= 0:
        return ""
    if slot.waits_for_notice:
        return f"{incumbent.instance} is well: this node takes over when it has to leave"
    if holder is not None and holder.phase.is_final:
        return ""
    return f"{incumbent.instance} flushes until {incumbent.deadline_at}, {left_s:.0f} s more at the most"


@dataclass(slots=True, kw_only=True)
class Joiner:
    """Takes the way to the seal, on a thread of its own; what happens is posted. `cancel` ends it within a poll."""

    table: Table
    post: Callable[[object], None]
    now: Callable[[], float]
    make_fetcher: Callable[[str], Fetcher]
    _cancelled: threading.Event = field(default_factory=threading.Event)
    _sealed: Generation | None = None  # the newest membership that was read

    def cancel(self) -> None:
        """Give up before the seal: this node will not live long enough to be of use."""
        self._cancelled.set()

    def join(self, instance: str, run: str) -> None:
        """The way of a node on EC2. Posts Placed, Parked, and at last Joined or NotJoined."""
        try:
            member = self._member(instance)
            place = Place(run=member.run, slot=member.slot, incarnation=member.incarnation, instance=instance)
            spec = self._spec(member, run)
            self.post(Placed(place=place, spec=spec))
            if spec.slots > 1:
                self._take_part(place)
            else:
                self._take(place, spec)
        except Called:
            pass
        except Exception as error:  # noqa: BLE001 -- the boundary of a thread: the loop says what follows
            self.post(NotJoined(error=error))

    def join_alone(self, place: Callable[[int], Place], spec: RunSpec) -> None:
        """The way off AWS: nobody is waited for, each start seals the next generation. `place` gets its number."""
        try:
            newest = Memberships(self.table).newest(spec.run)
            own = place(1 if newest is None else newest.generation + 1)
            self.post(Placed(place=own, spec=spec))
            fetcher = self.make_fetcher(spec.run)
            self._seal(own, fetcher, self.patiently(fetcher.newest), is_bound=False)
        except Called:
            pass
        except Exception as error:  # noqa: BLE001 -- the boundary of a thread: the loop says what follows
            self.post(NotJoined(error=error))

    def _member(self, instance: str) -> Member:
        until = self.now() + FIRST_HEARTBEAT_S
        members = Members(self.table)
        while self.now() < until:
            member = self.patiently(lambda: members.read(instance))
            if member is not None and self._has_place(member):
                return member
            self._pause()
        raise Missing(
            f"instance {instance} is bound to no run after {FIRST_HEARTBEAT_S} s",
            next_step="look at the run's launches with `spotproof status`; the sweep ends instances without a place",
        )

    def _has_place(self, member: Member) -> bool:
        if member.launch is not None:
            return has_place(member, None)
        return has_place(member, self.patiently(lambda: Slots(self.table).read(member.run, member.slot)))

    def _spec(self, member: Member, run: str) -> RunSpec:
        if member.run != run:
            raise BadSettings(f"this instance is tagged for run {run} but bound to run {member.run}")
        spec = self.patiently(lambda: Specs(self.table).read(run))
        if spec is None:
            raise Missing(f"run {run} has no spec", next_step="submit it with `spotproof submit run.yaml`")
        return spec

    def _take_part(self, place: Place) -> None:
        """The way of one of many nodes. What it reads ahead is a guess: rank and start are sealed later."""
        fetcher = self.make_fetcher(place.run)
        ahead = self.patiently(lambda: fetcher.ahead(place.slot))
        self._park(place)
        is_own = self.patiently(lambda: self._is_claimed_from(place))
        self.post(Ready(ahead=ahead, old_order=None if is_own else self._standing_order(place)))

    def _take(self, place: Place, spec: RunSpec) -> None:
        memberships = Memberships(self.table)
        fetcher = self.make_fetcher(spec.run)
        newest = self.patiently(lambda: memberships.newest(spec.run))
        if newest is not None and newest.bad < newest.generation:
            sealed = memberships.generation(spec.run, newest.generation)
            if sealed is not None and member_text(place) in sealed.members:
                fetched = self.patiently(fetcher.newest)
                old = None if self.patiently(lambda: self._is_claimed_from(place)) else self._standing_order(place)
                self.post(Joined(generation=newest.generation, fetched=fetched, old_order=old))
                return
        fetched = self.patiently(fetcher.newest)
        self._park(place)
        self._seal(place, fetcher, fetched, is_bound=True)

    def _park(self, place: Place) -> None:
        is_told = False
        while reason := self.patiently(lambda: self._still_waits_for(place)):
            if not is_told:
                is_told = True
                self.post(Parked(waiting_for=reason))
            self._pause()
        if not is_told:
            self.post(Parked(waiting_for=""))

    def _still_waits_for(self, place: Place) -> str:
        slot = Slots(self.table).read(place.run, place.slot)
        if slot is None:
            raise Missing(f"run {place.run} has no slot {place.slot}")
        sealed = self._newest_membership(place.run)
        incumbent = incumbent_of(slot, place, sealed)
        holder = None if incumbent is None else Nodes(self.table).read(place.run, place.slot, incumbent.incarnation)
        return waiting_for(slot=slot, place=place, holder=holder, now=self.now(), sealed=sealed)

    def _newest_membership(self, run: str) -> Generation | None:
        """The newest sealed membership: each is read once, because a generation never changes."""
        memberships = Memberships(self.table)
        newest = memberships.newest(run)
        if newest is None:
            return None
        if self._sealed is None or self._sealed.generation != newest.generation:
            self._sealed = memberships.generation(run, newest.generation)
        return self._sealed

    def _chosen_again(self, fetcher: Fetcher, fetched: Fetched | None) -> Fetched | None:
        """The choice, made again if a newer checkpoint has appeared since, or the pointer has moved."""
        if self.patiently(lambda: fetcher.is_still_newest(fetched)):
            return fetched
        spare = [fetched]  # given back with the first look; what it has in common with the new one is not read again
        return self.patiently(lambda: fetcher.newest(instead_of=spare.pop() if spare else None))

    def _seal(self, place: Place, fetcher: Fetcher, fetched: Fetched | None, *, is_bound: bool) -> None:
        """Seal the next generation. Before each try, after NEWEST was read, the slot is looked at again: a successor
        that was frozen and replaced itself meanwhile finds that out here, or loses the transaction."""
        memberships = Memberships(self.table)
        while not self._cancelled.is_set():
            fetched = self._chosen_again(fetcher, fetched)
            newest = self.patiently(lambda: memberships.newest(place.run))
            if is_bound and self.patiently(lambda: self._still_waits_for(place)):
                self._park(place)  # a node that was thought lost has sealed meanwhile, and may flush
                continue
            old = self._standing_order(place)
            # A new table with the bucket of an old one: its generations rank below what is there otherwise.
            start = 0 if fetched is None else fetched.order[0]
            number = start + 1 if newest is None else newest.generation + 1
            sealed = sealed_with(place, number, fetched, now=int(self.now()))
            try:
                memberships.seal(sealed, pointer=None if fetched is None else fetched.pointer, is_first=newest is None)
            except Lost:
                continue  # the holder committed once more, or another membership was sealed: look again
            except Unavailable:
                self._pause()
                continue
            self.post(Joined(generation=number, fetched=fetched, old_order=old))
            return

    def _standing_order(self, place: Place) -> str | None:
        head = self.patiently(lambda: Heads(self.table).read(place.run))
        return None if head is None else head.order

    def _is_claimed_from(self, place: Place) -> bool:
        """Whether this node, a member already, is being replaced: then the order that stands is its own."""
        slot = Slots(self.table).read(place.run, place.slot)
        return slot is not None and slot.holder_instance == place.instance and slot.successor_instance is not None

    def patiently(self, read: Callable[[], T]) -> T:
        """Read until the table answers: a node that boots in a bad minute is still of use after it.

        A fresh instance's role has no credentials for up to half a minute, so a refusal is believed only after that.
        Raises Called when the agent ends.
        """
        believed_at = self.now() + CREDENTIALS_WITHIN_S
        while True:
            if self._cancelled.is_set():
                raise Called
            try:
                return read()
            except Unavailable:
                self._pause()
            except Denied:
                if self.now() >= believed_at:
                    raise
                self._pause()

    def _pause(self) -> None:
        if self._cancelled.wait(POLL_S):
            raise Called


def member_text(place: Place) -> str:
    """A member as memberships list it."""
    return f"{place.slot}:{place.incarnation}:{place.instance}"


def sealed_with(place: Place, number: int, fetched: Fetched | None, *, now: int) -> Generation:
    """The membership of one node that begins with `fetched`."""
    manifest_key = None
    if fetched is not None and fetched.manifest is not None:
        manifest_key = s3keys.manifest(place.run, *fetched.order)
    return Generation(
        run=place.run,
        generation=number,
        members=(member_text(place),),
        sealed_at=now,
        start_generation=None if fetched is None else fetched.order[0],
        start_step=None if fetched is None else fetched.order[1],
        start_manifest=manifest_key,
        start_digest=None if fetched is None else fetched.manifest_digest or None,
    )

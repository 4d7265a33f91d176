"""How a node gets its place: when it may join, and that a frozen one never takes it back."""

from __future__ import annotations

import dataclasses
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from spotproof.agent.head import is_superseded
from spotproof.agent.heartbeat import Place
from spotproof.agent.membership import Joined, Joiner, NotJoined, Parked, Placed, has_place, waiting_for
from spotproof.checkpoint.commit import Committer, make_part
from spotproof.checkpoint.fetch import Fetched, Fetcher
from spotproof.contract import keys
from spotproof.contract.items import (
    NEVER,
    NO_INSTANCE,
    Generation,
    Head,
    Member,
    Newest,
    Node,
    PointerItem,
    Slot,
    pointer_rank,
    to_item,
)
from spotproof.contract.layout import image_name
from spotproof.contract.orders import FlushOrder
from spotproof.contract.runspec import Pools, RunSpec
from spotproof.contract.states import Cause, FlushOutcome, NodePhase, NoticeKind, RunStatus, SaveKind
from spotproof.errors import Missing, Superseded
from spotproof.store.checkpoints import Checkpoints
from spotproof.store.folder import FolderObjects
from spotproof.store.head import Heads
from spotproof.store.local import LocalTable
from spotproof.store.members import Members, Memberships
from spotproof.store.nodes import Nodes
from spotproof.store.pointer import Pointers
from spotproof.store.slots import Slots
from spotproof.store.spec import Specs
from spotproof.store.starts import Stores
from spotproof.store.table import Delete, Put
from tests.fakes.checkpoints import content_of, image_of, save_of

OLD, NEW = "i-0000000000000000a", "i-0000000000000000b"
PLACE = Place(run="r", slot=0, incarnation=2, instance=NEW)
SLOT = Slot(
    run="r",
    slot=0,
    incarnation=2,
    holder_instance=OLD,
    holder_incarnation=1,
    successor_instance=NEW,
    successor_incarnation=2,
    deadline_at=1000,
)
HOLDER = Node(run="r", slot=0, incarnation=1, instance=OLD, phase=NodePhase.FLUSHING)


def changed(value: object, **changes: object) -> object:
    return dataclasses.replace(value, **changes)  # type: ignore[type-var]


@pytest.mark.parametrize(
    ("what", "slot", "holder", "now", "waits"),
    [
        ("the holder flushes", {}, {}, 900, True),
        ("its outcome is pending", {}, {"flush": FlushOutcome.PENDING}, 1000, True),
        ("its outcome is final", {}, {"flush": FlushOutcome.COMMITTED}, 900, False),
        ("it could not flush, and says so", {}, {"flush": FlushOutcome.KEPT_LAST}, 900, False),
        ("it is done", {}, {"phase": NodePhase.DONE}, 900, False),
        ("its deadline has passed, not by ten seconds", {}, {}, 1009, True),
        ("its deadline has passed by ten seconds", {}, {}, 1010, False),
        ("it never beat", {}, None, 1009, True),
        ("there was nobody", {"holder_instance": NO_INSTANCE}, None, 0, False),
        ("this node is the holder already", {"holder_instance": NEW}, {}, 0, False),
        ("the slot is not bound yet", {"successor_instance": NO_INSTANCE}, {}, 900, True),
        ("the holder is well", {"waits_for_notice": True, "deadline_at": NEVER}, {}, 10**9, True),
        ("the holder is well until a date", {"waits_for_notice": True}, {}, 1009, True),
        ("that date has passed", {"waits_for_notice": True}, {}, 1010, False),
        ("it heard its notice alone", {"waits_for_notice": True}, {"flush": FlushOutcome.COMMITTED}, 900, False),
        ("it is done, so is the run", {"waits_for_notice": True}, {"phase": NodePhase.DONE}, 900, True),
    ],
)
def test_when_a_successor_joins(
    what: str, slot: dict[str, object], holder: dict[str, object] | None, now: int, waits: bool
) -> None:
    beat = None if holder is None else changed(HOLDER, **holder)
    reason = waiting_for(slot=changed(SLOT, **slot), place=PLACE, holder=beat, now=now)  # type: ignore[arg-type]
    assert bool(reason) is waits, what


LAUNCHED = Member(instance=NEW, run="r", slot=0, incarnation=2, launch=3)
BY_HAND = dataclasses.replace(LAUNCHED, launch=None)


@pytest.mark.parametrize(
    ("member", "slot", "has"),
    [
        (LAUNCHED, None, True),
        (dataclasses.replace(LAUNCHED, ended_at=5), None, False),
        (BY_HAND, None, False),
        (BY_HAND, SLOT, True),
        (BY_HAND, dataclasses.replace(SLOT, successor_instance=NO_INSTANCE), False),
        (BY_HAND, dataclasses.replace(SLOT, successor_instance="i-0000000000000000c"), False),
        (BY_HAND, dataclasses.replace(SLOT, holder_instance=NEW, successor_instance=None), True),
        (dataclasses.replace(BY_HAND, ended_at=5), SLOT, False),
    ],
)
def test_a_hand_tagged_instance_acts_only_in_a_place_that_is_bound_to_it(
    member: Member, slot: Slot | None, has: bool
) -> None:
    assert has_place(member, slot) is has


@pytest.mark.parametrize(
    "slot", [{"incarnation": 3, "successor_instance": NO_INSTANCE}, {"successor_instance": "i-0000000000000000c"}]
)
def test_a_successor_whose_place_was_claimed_anew_is_superseded(slot: dict[str, object]) -> None:
    with pytest.raises(Superseded):
        waiting_for(slot=changed(SLOT, **slot), place=PLACE, holder=None, now=5000)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("newest", "over"),
    [
        (None, False),
        (Newest(run="r", generation=4), False),
        (Newest(run="r", generation=5), True),
        (Newest(run="r", generation=4, bad=4), True),
        (Newest(run="r", generation=4, bad=3), False),
    ],
)
def test_a_membership_is_over_when_a_newer_one_is_sealed_or_it_is_marked(newest: Newest | None, over: bool) -> None:
    assert is_superseded(newest, generation=4) is over
    assert not is_superseded(newest, generation=0)


class World:
    """A run in a local table, with a clock that moves when the joiner looks at it."""

    def __init__(self, folder: Path) -> None:
        self.table = LocalTable(folder / "table.sqlite")
        self.objects = FolderObjects(folder / "objects")
        self.posted: list[object] = []
        self.at = 900.0
        self.on_look: list[tuple[float, object]] = []
        spec = RunSpec(run="r", image="x@sha256:" + "0" * 64, command=("true",), pools=Pools(types=("g5.xlarge",)))
        Specs(self.table).create(spec)
        self.slots = Slots(self.table)
        self.slots.create("r", 1)

    def joiner(self) -> Joiner:
        return Joiner(table=self.table, post=self.posted.append, now=self.now, make_fetcher=self.fetcher)

    def now(self) -> float:
        return self.at

    def fetcher(self, run: str) -> Fetcher:
        stores = Stores(
            objects=self.objects,
            checkpoints=Checkpoints(self.table),
            pointers=Pointers(self.table),
            memberships=Memberships(self.table),
        )
        return Fetcher(stores=stores, run=run, clock=self.now)

    def place(self, instance: str, *, lost: str = NO_INSTANCE, deadline_at: int | None = None) -> Place:
        """Claim, bind and enter an instance, as the control plane does."""
        seen = self.slots.read("r", 0)
        assert seen is not None
        cause = Cause.SUBMIT if lost == NO_INSTANCE else Cause.INTERRUPTION
        claimed = self.slots.claim(seen, lost, cause=cause, now=int(self.at), deadline_at=deadline_at)
        self.slots.bind("r", 0, claimed.incarnation, instance=instance, launch=1, now=int(self.at))
        Members(self.table).put(Member(instance=instance, run="r", slot=0, incarnation=claimed.incarnation, launch=1))
        return Place(run="r", slot=0, incarnation=claimed.incarnation, instance=instance)

    def promote(self, place: Place) -> None:
        self.slots.promote("r", 0, place.incarnation, instance=place.instance)

    def kinds(self) -> list[type[object]]:
        return [type(event) for event in self.posted]


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    world = World(tmp_path)
    yield world
    world.table.close()


def joined(world: World) -> Joined:
    last = world.posted[-1]
    assert isinstance(last, Joined), last
    return last


def test_the_first_node_seals_the_first_generation_at_once(world: World) -> None:
    world.place(OLD)
    world.joiner().join(OLD, "r")
    assert world.kinds() == [Placed, Parked, Joined]
    assert joined(world) == Joined(generation=1, fetched=None)
    sealed = Memberships(world.table).generation("r", 1)
    assert sealed is not None
    assert sealed.members == (f"0:1:{OLD}",)
    assert sealed.start_step is None


def test_the_order_that_stands_at_the_seal_means_the_predecessor(world: World) -> None:
    heads = Heads(world.table)
    head = Head(run="r", status=RunStatus.ACTIVE)
    heads.create(head)
    order = FlushOrder(order="o-1", kind=NoticeKind.INTERRUPTION, deadline_at=5000, leavers=frozenset({0}))
    seen = heads.order_flush(head, order)
    assert seen is not None
    first = world.place(OLD)
    world.joiner().join(OLD, "r")
    assert joined(world).old_order == "o-1"
    world.promote(first)
    world.joiner().join(OLD, "r")  # its agent is started again: the order is still old
    assert joined(world).old_order == "o-1"
    heads.order_flush(seen, dataclasses.replace(order, order="o-2"))
    world.place(NEW, lost=OLD, deadline_at=5000)
    world.joiner().join(OLD, "r")  # started again while it is being replaced: this order is its own
    assert joined(world).old_order is None


def test_a_place_that_was_taken_back_is_not_taken(world: World) -> None:
    """A hand-tagged instance was let go, and its tag has been put on again: it waits for its new place."""
    world.place(OLD)
    Members(world.table).end(OLD, now=int(world.at))

    def look() -> float:
        world.at += 100
        if world.at > 1100:
            world.table.write(Delete(key=keys.member(OLD)))
            Members(world.table).put(Member(instance=OLD, run="r", slot=0, incarnation=1))
        return world.at

    joiner = world.joiner()
    joiner.now = look
    joiner.join(OLD, "r")
    assert world.at > 1100
    assert joined(world).generation == 1


def test_an_agent_that_is_started_again_keeps_its_generation(world: World) -> None:
    world.place(OLD)
    world.joiner().join(OLD, "r")
    world.joiner().join(OLD, "r")
    assert joined(world).generation == 1


def test_a_successor_parks_until_the_outcome_is_final(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    first = world.place(OLD)
    world.joiner().join(OLD, "r")
    world.promote(first)
    second = world.place(NEW, lost=OLD, deadline_at=10_000)
    nodes = Nodes(world.table)
    beat = Node(run="r", slot=0, incarnation=1, instance=OLD, phase=NodePhase.FLUSHING, flush=FlushOutcome.PENDING)
    nodes.beat(beat)
    world.posted.clear()
    joiner = world.joiner()
    thread = threading.Thread(target=joiner.join, args=(NEW, "r"))
    parked = threading.Event()

    def post(event: object) -> None:
        world.posted.append(event)
        if isinstance(event, Parked):
            parked.set()

    joiner.post = post
    thread.start()
    assert parked.wait(10)
    newest = Memberships(world.table).newest("r")
    assert newest is not None
    assert newest.generation == 1  # nothing is sealed while the holder flushes
    nodes.beat(changed(beat, flush=FlushOutcome.COMMITTED))  # type: ignore[arg-type]
    thread.join(10)
    assert world.kinds() == [Placed, Parked, Joined]
    assert joined(world).generation == 2
    assert second.incarnation == 2


def test_a_successor_that_was_frozen_and_replaced_never_seals(world: World) -> None:
    first = world.place(OLD)
    world.joiner().join(OLD, "r")
    world.promote(first)
    frozen = world.place(NEW, lost=OLD, deadline_at=int(world.at) - 100)
    third = "i-0000000000000000c"
    world.place(third, lost=frozen.instance)
    world.joiner().join(third, "r")
    assert joined(world).generation == 2
    world.joiner().join(NEW, "r")  # it wakes up
    last = world.posted[-1]
    assert isinstance(last, NotJoined)
    assert isinstance(last.error, Superseded)
    newest = Memberships(world.table).newest("r")
    assert newest is not None
    assert newest.generation == 2


@pytest.mark.parametrize("seals", ["before the claim", "after the claim"])
def test_a_node_that_sealed_in_the_moment_of_its_claim_may_flush(world: World, seals: str) -> None:
    """Nobody has promoted it, so the slot still names the node before it: the membership tells who works here."""
    first = world.place(OLD)
    world.joiner().join(OLD, "r")
    world.promote(first)
    second = world.place(NEW, lost=OLD, deadline_at=int(world.at) - 100)
    memberships, third = Memberships(world.table), "i-0000000000000000c"
    sealed = Generation(run="r", generation=2, members=(f"0:{second.incarnation}:{NEW}",), sealed_at=int(world.at))
    deadline_at = int(world.at) + 120
    joiner = world.joiner()
    flushing = Node(run="r", slot=0, incarnation=2, instance=NEW, phase=NodePhase.FLUSHING, flush=FlushOutcome.PENDING)
    Nodes(world.table).beat(flushing)
    if seals == "before the claim":
        memberships.seal(sealed, pointer=None)
        world.place(third, lost=NEW, deadline_at=deadline_at)
    else:
        world.place(third, lost=NEW, deadline_at=deadline_at)
        joiner.make_fetcher = lambda run: SealsFirst(  # type: ignore[assignment,return-value]
            lambda: memberships.seal(sealed, pointer=None), world.fetcher(run)
        )
    newest: list[int] = []

    def post(event: object) -> None:
        world.posted.append(event)
        if isinstance(event, Parked) and event.waiting_for:
            standing = memberships.newest("r")
            newest.append(0 if standing is None else standing.generation)
            Nodes(world.table).beat(changed(flushing, flush=FlushOutcome.COMMITTED))  # type: ignore[arg-type]

    joiner.post = post
    joiner.join(third, "r")
    assert newest == [2]  # it waited, and had sealed nothing
    assert joined(world).generation == 3


class SealsFirst:
    """A fetcher that lets somebody else seal when its choice is looked at for the last time."""

    def __init__(self, seal: Callable[[], object], fetcher: Fetcher) -> None:
        self.seal, self.fetcher = seal, fetcher

    def newest(self, *, instead_of: Fetched | None = None) -> Fetched | None:
        return self.fetcher.newest(instead_of=instead_of)

    def is_still_newest(self, fetched: Fetched | None) -> bool:
        self.seal()
        return self.fetcher.is_still_newest(fetched)


def test_a_pointer_that_moves_before_the_seal_is_chosen_again(world: World) -> None:
    world.place(OLD)
    joiner = world.joiner()
    memberships = Memberships(world.table)
    looks: list[int] = []

    class Racing(Fetcher):
        """The holder commits once between the choice and the seal; its checkpoint is taken away again afterwards."""

        def newest(self, *, instead_of: Fetched | None = None) -> None:
            looks.append(len(looks))
            if len(looks) == 1:
                pointer = PointerItem(
                    run="r", generation=0, step=7, rank=pointer_rank(0, 7), manifest_key="k", manifest_digest="d" * 64
                )
                world.table.write(Put(key=keys.pointer("r"), item=to_item(pointer)))
            else:
                world.table.write(Delete(key=keys.pointer("r")))

    joiner.make_fetcher = lambda run: Racing(
        stores=Stores(
            objects=world.objects,
            checkpoints=Checkpoints(world.table),
            pointers=Pointers(world.table),
            memberships=memberships,
        ),
        run=run,
        clock=world.now,
    )
    joiner.join(OLD, "r")
    assert len(looks) == 2
    assert joined(world).generation == 1


def test_a_flush_whose_pointer_did_not_rise_is_found_by_a_successor_that_had_read_ahead(world: World) -> None:
    first = world.place(OLD)
    world.joiner().join(OLD, "r")
    world.promote(first)
    place = world.place(NEW, lost=OLD, deadline_at=0)
    memberships, pointers = Memberships(world.table), Pointers(world.table)
    committer = Committer(
        objects=world.objects, checkpoints=Checkpoints(world.table), pointers=pointers, clock=world.now, threads=1
    )
    joiner = world.joiner()
    begun: list[int | None] = []

    class ReadsAhead(Fetcher):
        """After the first choice the holder flushes; the table does not take its pointer."""

        def newest(self, *, instead_of: Fetched | None = None) -> Fetched | None:
            fetched = super().newest(instead_of=instead_of)
            begun.append(None if fetched is None else fetched.order[1])
            if len(begun) == 1:
                content = content_of(image_of(7))
                committer.commit(make_part(save_of(7), content, image_name=image_name(0)), content, kind=SaveKind.FLUSH)
                world.table.write(Delete(key=keys.pointer("r")))
            return fetched

    joiner.make_fetcher = lambda run: ReadsAhead(
        stores=Stores(
            objects=world.objects, checkpoints=Checkpoints(world.table), pointers=pointers, memberships=memberships
        ),
        run=run,
        clock=world.now,
    )
    joiner.join(NEW, "r")
    fetched = joined(world).fetched
    assert begun == [None, 7]
    assert fetched is not None
    os.close(fetched.image_fd)
    sealed = memberships.generation("r", 2)
    assert sealed is not None
    assert (sealed.members, sealed.start_step) == ((f"0:{place.incarnation}:{NEW}",), 7)


def test_a_new_table_goes_on_above_the_generations_that_its_bucket_holds(world: World) -> None:
    world.place(OLD)
    committer = Committer(
        objects=world.objects,
        checkpoints=Checkpoints(world.table),
        pointers=Pointers(world.table),
        clock=world.now,
        threads=1,
    )
    content = content_of(image_of(20))
    with pytest.raises(Superseded):  # the manifest is there, this table has never heard of generation 7
        committer.commit(
            make_part(save_of(20, generation=7), content, image_name=image_name(0)), content, kind=SaveKind.PERIODIC
        )
    world.joiner().join(OLD, "r")
    fetched = joined(world).fetched
    assert fetched is not None
    os.close(fetched.image_fd)
    assert joined(world).generation == 8  # what it commits is newer than (7, 20)
    sealed = Memberships(world.table).generation("r", 8)
    assert sealed is not None
    assert (sealed.start_generation, sealed.start_step) == (7, 20)
    world.joiner().join(OLD, "r")
    again = joined(world)
    assert again.generation == 8
    assert again.fetched is not None
    os.close(again.fetched.image_fd)


def test_an_instance_that_nobody_binds_gives_up_with_what_to_do(world: World) -> None:
    joiner = world.joiner()
    times = iter([0.0, 0.0, 10_000.0])
    joiner.now = lambda: next(times, 10_000.0)
    joiner.join(NEW, "r")
    [last] = world.posted
    assert isinstance(last, NotJoined)
    assert isinstance(last.error, Missing)
    assert "bound to no run" in str(last.error)


def test_a_node_that_is_called_off_before_the_seal_seals_nothing(world: World) -> None:
    world.place(OLD)
    joiner = world.joiner()
    joiner.cancel()
    joiner.join(OLD, "r")
    assert Memberships(world.table).newest("r") is None

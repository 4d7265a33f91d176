"""The way into a generation, by launchers that are threads over one table, with a clock that their pauses move."""

from __future__ import annotations

import dataclasses
import json
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import ExitStack
from pathlib import Path

import pytest

from spotproof.contract import keys
from spotproof.contract.items import Generation, Head, Join, PointerItem, Sealer
from spotproof.contract.states import RunStatus
from spotproof.errors import Lost, Superseded, Unavailable
from spotproof.rendezvous.decide import Seat, Size
from spotproof.rendezvous.joining import Entered, Joining, leave
from spotproof.rendezvous.watch import Watch
from spotproof.store.head import Heads
from spotproof.store.joins import Joins
from spotproof.store.local import IN_MEMORY, LocalTable
from spotproof.store.members import Memberships
from spotproof.store.pointer import Pointers
from spotproof.store.table import Item, Op, Table, Write
from tests.conformance.makers import pointer

RUN = "r"
LIMIT_S = 20.0
FASTER = 50.0  # how much faster the clock of these tests runs


def clock() -> float:
    return time.monotonic() * FASTER


def pause(seconds: float) -> None:
    time.sleep(seconds / FASTER)


def launcher(table: Table, node: str, *, size: Size | None = None, slot: int = -1, incarnation: int = 0) -> Joining:
    seat = Seat(node=node, slot=slot, incarnation=incarnation)
    three = Size(smallest=3, largest=3)
    return Joining(table=table, run=RUN, seat=seat, size=size or three, clock=clock, pause=pause)


class Lab:
    """Launchers by name; `enter` starts one on its way."""

    def __init__(self, table: Table, pool: ThreadPoolExecutor) -> None:
        self.table = table
        self.pool = pool
        self.launchers: dict[str, Joining] = {}

    def enter(self, *nodes: str, size: Size | None = None) -> dict[str, Future[Entered]]:
        for node in nodes:
            if node not in self.launchers:
                self.launchers[node] = launcher(self.table, node, size=size)
        return {node: self.pool.submit(self.launchers[node].enter, f"{node}:1") for node in nodes}

    def newest(self) -> int:
        stands = Memberships(self.table).newest(RUN)
        return 0 if stands is None else stands.generation

    def sealed(self) -> Generation:
        found = Memberships(self.table).generation(RUN, self.newest())
        assert found is not None
        return found


class Rows:
    """A table that passes everything on; tests make it fail."""

    def __init__(self, table: Table) -> None:
        self.inner = table
        self.has_risen: bool = False

    def get(self, key: keys.Key) -> Item | None:
        return self.inner.get(key)

    def query(
        self, pk: str, *, prefix: str = "", since: str = "", limit: int | None = None, newest_first: bool = False
    ) -> list[Item]:
        return self.inner.query(pk, prefix=prefix, since=since, limit=limit, newest_first=newest_first)

    def write(self, op: Write) -> Item:
        return self.inner.write(op)

    def transact(self, ops: Sequence[Op]) -> None:
        self.inner.transact(ops)


def ranks(entered: dict[str, Future[Entered]]) -> dict[str, int]:
    return {node: future.result(LIMIT_S).rank for node, future in entered.items()}


@pytest.fixture
def table() -> Iterator[LocalTable]:
    with LocalTable(IN_MEMORY) as made:
        yield made


@pytest.fixture
def lab(table: LocalTable) -> Iterator[Lab]:
    with ThreadPoolExecutor(8) as pool:
        yield Lab(table, pool)


def test_three_launchers_form_a_generation_and_agree_on_it(lab: Lab) -> None:
    entered = {node: future.result(LIMIT_S) for node, future in lab.enter("a", "b", "c").items()}
    assert sorted(one.rank for one in entered.values()) == [0, 1, 2]
    assert {one.world for one in entered.values()} == {3}
    assert len({one.sealed for one in entered.values()}) == 1
    first = next(node for node, one in entered.items() if one.rank == 0)
    assert entered["a"].sealed.endpoint == f"{first}:1"


@pytest.mark.parametrize("lost", [0, 1, 2])
def test_a_newcomer_fills_the_hole_of_whoever_is_lost(lab: Lab, lost: int) -> None:
    before = ranks(lab.enter("a", "b", "c"))
    dead = next(node for node, rank in before.items() if rank == lost)
    survivors = [node for node in before if node != dead]
    after = ranks(lab.enter(*survivors, "new"))
    assert after == {node: before[node] for node in survivors} | {"new": lost}
    assert lab.newest() == 2


def test_survivors_stay_parked_until_the_replacement_is_here(lab: Lab) -> None:
    ranks(lab.enter("a", "b", "c"))
    waiting = lab.enter("a", "b")
    pause(60.0)
    assert not any(future.done() for future in waiting.values())
    entered = ranks(waiting | lab.enter("new"))
    assert len(entered) == 3


def test_MN_06_one_that_parked_and_died_is_not_waited_for_longer_than_its_silence(lab: Lab) -> None:
    """MN-06: killed without goodbye while joining; the group forms with the right size."""
    Joins(lab.table).put(Join(run=RUN, node="dead", ready_for=1, endpoint="dead:1"))
    began = clock()
    entered = lab.enter("a", "b")
    pause(1.0)
    if lab.newest() == 1:  # sealed with the dead one, whose members do not meet: out of it, and again
        ranks(entered)
        entered = lab.enter("a", "b")
    assert ranks(entered | lab.enter("c")).keys() == {"a", "b", "c"}
    assert "dead" not in " ".join(lab.sealed().members)
    assert clock() - began < 60.0


def test_a_dead_sealer_is_replaced(lab: Lab) -> None:
    Joins(lab.table).take_over(Sealer(run=RUN, number=1, node="dead"), silent=None)
    assert len(ranks(lab.enter("a", "b", "c"))) == 3


def test_MN_06_a_standby_waits_and_takes_the_place_of_a_silent_member(lab: Lab) -> None:
    """MN-06: the old membership expires by silence, nobody else has to notice."""
    ranks(lab.enter("a", "b", "c"))
    watched = {}
    with ExitStack() as stack:
        for node in ("a", "b"):
            entered = Entered(sealed=lab.sealed(), rank=0, world=1)  # a world of one: it looks at nobody but itself
            watched[node] = stack.enter_context(Watch(table=lab.table, entered=entered, node=node, clock=clock))
        standby = lab.enter("d")
        began = clock()
        while not all(watch.is_over for watch in watched.values()):
            for watch in watched.values():
                watch.look()
            time.sleep(0.02)
            assert clock() - began < 60.0
    assert clock() - began > 14.0
    assert len(ranks(standby | lab.enter("a", "b"))) == 3


def test_leaving_takes_only_this_node_out_and_ends_the_generation_at_once(lab: Lab) -> None:
    ranks(lab.enter("a", "b", "c"))
    leave(lab.table, run=RUN, node="b")
    newest = Memberships(lab.table).newest(RUN)
    assert newest is not None
    assert newest.bad == 1
    assert {join.node for join in Joins(lab.table).list(RUN) if join.left} == {"b"}
    leave(lab.table, run=RUN, node="b")
    assert len(ranks(lab.enter("a", "c", "d"))) == 3


def test_a_node_that_left_for_good_never_parks_again_and_one_that_left_before_it_parked_never_does(lab: Lab) -> None:
    ranks(lab.enter("a", "b", "c"))
    leave(lab.table, run=RUN, node="b")
    leave(lab.table, run=RUN, node="late")
    newest = Memberships(lab.table).newest(RUN)
    assert newest is not None
    assert newest.bad == 1
    for node, future in lab.enter("b", "late").items():
        with pytest.raises(Superseded, match=f"{node} has left for good"):
            future.result(LIMIT_S)


def test_a_relaunch_under_the_same_run_id_works_after_everybody_left_or_died(lab: Lab) -> None:
    ranks(lab.enter("a", "b", "c"))
    for node in ("a", "b"):
        Joins(lab.table).leave(RUN, node)
    entered = {node: future.result(LIMIT_S) for node, future in lab.enter("d", "e", "f").items()}
    assert {one.sealed.generation for one in entered.values()} == {2}


def test_a_smaller_world_is_sealed_after_the_last_call_and_a_full_one_at_once(lab: Lab) -> None:
    size = Size(smallest=2, largest=3, last_call_s=3.0)
    ranks(lab.enter("a", "b", "c", size=size))
    began = clock()
    after = {node: future.result(LIMIT_S) for node, future in lab.enter("a", "c").items()}
    assert {one.world for one in after.values()} == {2}
    assert clock() - began >= 3.0


def test_a_submitted_run_shrinks_at_the_control_planes_word_alone(lab: Lab) -> None:
    heads, size = Heads(lab.table), Size(smallest=2, largest=3, last_call_s=2.0)
    heads.create(Head(run=RUN, status=RunStatus.ACTIVE, slots=3, least=2))
    entered = lab.enter("i-a", "i-b", size=size)
    done, _ = wait(entered.values(), timeout=10 * size.last_call_s / FASTER)
    assert not done  # the third may come, however long it takes
    heads.within_reach(RUN, 2)
    assert {one.result(LIMIT_S).world for one in entered.values()} == {2}


def test_a_world_grows_again_right_after_a_commit_and_not_before_a_minute(lab: Lab) -> None:
    size = Size(smallest=2, largest=3, last_call_s=1.0)
    ranks(lab.enter("a", "b", size=size))
    standby = lab.enter("c", size=size)
    began = clock()
    for step in range(1, 200):
        pause(4.0)
        for node in ("a", "b"):
            Joins(lab.table).beat(RUN, node)
        newest = Memberships(lab.table).newest(RUN)
        assert newest is not None
        if newest.bad:
            break
        Pointers(lab.table).rise(pointer(RUN, 1, step), own_generation=1)
    assert 60.0 <= clock() - began < 200.0
    assert len(ranks(standby | lab.enter("a", "b"))) == 3


def test_a_successor_ends_its_predecessors_generation_and_the_predecessor_is_refused(table: LocalTable) -> None:
    one = Size(smallest=1, largest=1)
    old = launcher(table, "i-old", size=one, slot=0, incarnation=1)
    new = launcher(table, "i-new", size=one, slot=0, incarnation=2)
    assert old.enter("old:1").sealed.generation == 1
    assert new.enter("new:1").sealed.members == ("0:2:i-new",)
    with pytest.raises(Superseded, match="i-new"):
        old.enter("old:2")


def test_the_seal_fixes_the_starting_checkpoint_and_chooses_again_when_the_pointer_moves(table: LocalTable) -> None:
    alone = launcher(table, "a", size=Size(smallest=1, largest=1))
    assert alone.enter("a:1").sealed.start_step is None
    Pointers(table).rise(pointer(RUN, 1, 70), own_generation=1)

    class Rising(Rows):
        """Commits once more between the sealer's look at the pointer and its seal."""

        def transact(self, ops: Sequence[Op]) -> None:
            if not self.has_risen and len(ops) == 3:
                self.has_risen = True
                Pointers(table).rise(pointer(RUN, 1, 80), own_generation=1)
            super().transact(ops)

    alone.table = Rising(table)
    sealed = alone.enter("a:2").sealed
    assert (sealed.generation, sealed.start_generation, sealed.start_step) == (2, 1, 80)
    assert sealed.start_digest == pointer(RUN, 1, 80).manifest_digest


class Outage(Rows):
    """A table that does not answer while `is_out`."""

    def __init__(self, table: Table) -> None:
        super().__init__(table)
        self.is_out = threading.Event()

    def _pass(self) -> None:
        if self.is_out.is_set():
            raise Unavailable("the table does not answer")

    def get(self, key: keys.Key) -> Item | None:
        self._pass()
        return super().get(key)

    def query(
        self, pk: str, *, prefix: str = "", since: str = "", limit: int | None = None, newest_first: bool = False
    ) -> list[Item]:
        self._pass()
        return super().query(pk, prefix=prefix, since=since, limit=limit, newest_first=newest_first)

    def write(self, op: Write) -> Item:
        self._pass()
        return super().write(op)

    def transact(self, ops: Sequence[Op]) -> None:
        self._pass()
        super().transact(ops)


def test_pitfall_10_a_table_that_is_silent_for_minutes_ends_no_generation_and_no_wait(table: LocalTable) -> None:
    outage = Outage(table)
    with ThreadPoolExecutor(4) as pool:
        lab = Lab(outage, pool)
        outage.is_out.set()
        entered = lab.enter("a", "b", "c")
        pause(60.0)
        assert not any(future.done() for future in entered.values())
        outage.is_out.clear()
        places = {node: future.result(LIMIT_S) for node, future in entered.items()}
    now = 0.0
    outages = [
        Outage(table) for _ in places
    ]  # it does not begin for all at once: the last beat that is seen is an old one
    watches = [
        Watch(table=own, entered=place, node=node, clock=lambda: now)
        for own, (node, place) in zip(outages, places.items(), strict=True)
    ]
    for second in range(0, 400, 5):
        now = float(second)
        for number, (own, watch) in enumerate(zip(outages, watches, strict=True)):
            (own.is_out.set if 100 - 5 * number <= second < 300 else own.is_out.clear)()
            watch.look()
        if second == 295:
            assert [watch.missed for watch in watches] == [40, 41, 42]
    assert not any(watch.is_over for watch in watches)


def test_pitfall_7_clocks_that_differ_by_minutes_declare_nobody_dead(table: LocalTable) -> None:
    with ThreadPoolExecutor(4) as pool:
        lab = Lab(table, pool)
        places = {node: future.result(LIMIT_S) for node, future in lab.enter("a", "b", "c").items()}
    offsets = dict(zip(places, (0.0, 60.0, -60.0), strict=True))
    now = 1000.0

    def clock_of(offset: float) -> float:
        return now + offset

    watches = [
        Watch(table=table, entered=place, node=node, clock=lambda node=node: clock_of(offsets[node]))  # type: ignore[misc]
        for node, place in places.items()
    ]
    for second in range(0, 300, 5):
        now = 1000.0 + second
        for watch in watches:
            watch.look()
    assert not any(watch.is_over for watch in watches)


@pytest.mark.parametrize("lost", [0, 1, 2])
def test_MN_02_a_silent_member_is_noticed_by_its_neighbour_within_the_limit(table: LocalTable, lost: int) -> None:
    """Nobody is special: whoever it is, rank 0 included, another one looks at it."""
    with ThreadPoolExecutor(4) as pool:
        lab = Lab(table, pool)
        places = {node: future.result(LIMIT_S) for node, future in lab.enter("a", "b", "c").items()}
    now = 0.0
    watches = {
        place.rank: Watch(table=table, entered=place, node=node, clock=lambda: now) for node, place in places.items()
    }
    noticed = None
    for second in range(200):
        now = float(second)
        for rank, watch in watches.items():
            if rank != lost or second < 50:
                watch.look()
        if noticed is None and watches[(lost + 1) % 3].is_over:
            noticed = second
    assert noticed is not None
    assert 60 <= noticed - 45 <= 75  # its last beat was at 45


def test_pitfall_3_of_two_sealers_one_wins_and_an_old_generation_cannot_write(table: LocalTable) -> None:
    memberships = Memberships(table)
    won = []
    start = threading.Barrier(8)

    def seal(name: str) -> None:
        start.wait()
        sealed = Generation(run=RUN, generation=1, members=(f"0:1:{name}",), sealed_at=0)
        try:
            won.append(memberships.seal(sealed, pointer=None))
        except Lost:
            return

    threads = [threading.Thread(target=seal, args=(str(number),)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(won) == 1
    memberships.seal(dataclasses.replace(won[0], generation=2), pointer=None)
    with pytest.raises(Exception, match="newest generation is 2"):
        Pointers(table).rise(made_pointer(), own_generation=1)


def made_pointer() -> PointerItem:
    return pointer(RUN, 1, 5)


def test_pitfall_12_what_the_table_holds_is_plain_json(lab: Lab) -> None:
    ranks(lab.enter("a", "b", "c"))
    partitions = [keys.node_partition(RUN), *(keys.join_partition(RUN, shard) for shard in range(keys.NODE_SHARDS))]
    items = [item for pk in partitions for item in lab.table.query(pk)]
    assert len(items) == 6  # three JOIN, SEALER, NEWEST, GEN
    assert json.loads(json.dumps(items)) == items
    root = Path(__file__).resolve().parents[3]
    for folder in ("rendezvous", "store"):
        for path in (root / "spotproof" / folder).glob("*.py"):
            assert not [line for line in path.read_text().splitlines() if "import" in line and "pickle" in line], path

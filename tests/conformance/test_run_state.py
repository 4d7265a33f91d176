"""The domain stores on each table: every move, and what losing it means."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import pytest

from spotproof.contract import hours, keys
from spotproof.contract.history import HistoryKind
from spotproof.contract.items import (
    NEVER,
    NO_INSTANCE,
    Head,
    History,
    Launch,
    Live,
    Member,
    Node,
    Pool,
    Quarantine,
    Slot,
)
from spotproof.contract.limits import HISTORY_TTL_S
from spotproof.contract.orders import FlushOrder
from spotproof.contract.runspec import Placement, Pools, RunSpec
from spotproof.contract.states import (
    Cause,
    FlushOutcome,
    LaunchState,
    Market,
    NodePhase,
    NoticeKind,
    RunStatus,
    SaveKind,
)
from spotproof.errors import Lost, StoreError, Superseded
from spotproof.store.checkpoints import Checkpoints, is_complete
from spotproof.store.head import Heads
from spotproof.store.history import Histories
from spotproof.store.launcher import LauncherLeases
from spotproof.store.launches import Launches
from spotproof.store.live import LiveIndex
from spotproof.store.members import Members, Memberships
from spotproof.store.nodes import Nodes
from spotproof.store.pointer import Pointers
from spotproof.store.pools import Pools as PoolStore
from spotproof.store.slots import Slots
from spotproof.store.spec import Specs
from spotproof.store.table import Table
from spotproof.store.values import item_to_wire
from tests.conformance.makers import generation, part, pointer

NOW = 1_796_000_000


def head_of(table: Table, run: str, **fields: object) -> Head:
    head = Head(run=run, status=RunStatus.ACTIVE, **fields)  # type: ignore[arg-type]
    Heads(table).create(head)
    return head


def order(name: str, *leavers: int) -> FlushOrder:
    return FlushOrder(order=name, kind=NoticeKind.INTERRUPTION, deadline_at=NOW + 120, leavers=frozenset(leavers))


# ---------------------------------------------------------------------------------------------------------------- spec
def test_a_spec_comes_back_equal_and_never_changes(table: Table, run: str) -> None:
    spec = RunSpec(
        run=run,
        image="repo/train@sha256:" + "a" * 64,
        command=("python", "train.py"),
        pools=Pools(types=("g5.xlarge", "g6.xlarge"), zones=("us-east-1a",)),
        slots=2,
        environment=("A=b",),
        placement=Placement(template="lt-1", template_version="3", subnets=("subnet-1=us-east-1a",)),
    )
    specs = Specs(table)
    assert specs.read(run) is None
    specs.create(spec)
    specs.create(spec)  # the same submit, tried again
    with pytest.raises(Lost):
        specs.create(dataclasses.replace(spec, slots=3))
    assert specs.read(run) == spec
    item = table.get(keys.spec(run))
    assert item is not None
    assert item["image"] == spec.image  # user data reads it by name


def test_a_spec_without_placement_comes_back_equal(table: Table, run: str) -> None:
    spec = RunSpec(run=run, image="r@sha256:" + "b" * 64, command=("x",), pools=Pools(types=("g5.xlarge",)))
    Specs(table).create(spec)
    assert Specs(table).read(run) == spec


# ---------------------------------------------------------------------------------------------------------------- head
def test_a_run_is_made_once(table: Table, run: str) -> None:
    head = head_of(table, run, slots=3)
    assert Heads(table).read(run) == head
    with pytest.raises(Lost):
        Heads(table).create(dataclasses.replace(head, slots=9))
    assert Heads(table).read(run) == head


def test_a_status_moves_only_from_where_it_was_seen(table: Table, run: str) -> None:
    heads, seen = Heads(table), head_of(table, run)
    paused = heads.move(seen, RunStatus.PAUSED, cause=Cause.BUDGET, reason="r" * 500, now=100)
    assert (paused.status, paused.cause, len(paused.reason)) == (RunStatus.PAUSED, Cause.BUDGET, 200)
    assert (
        heads.move(seen, RunStatus.PAUSED, cause=Cause.USER, now=200) == paused
    )  # done already, the first cause stays
    with pytest.raises(Lost):
        heads.move(seen, RunStatus.BLOCKED, now=200)
    active = heads.move(paused, RunStatus.ACTIVE, now=NOW + 10)
    assert (active.status, active.cause, active.reason, active.status_at) == (RunStatus.ACTIVE, None, "", NOW + 10)


def test_a_done_run_stays_done(table: Table, run: str) -> None:
    heads = Heads(table)
    done = heads.move(head_of(table, run), RunStatus.DONE, now=NOW)
    with pytest.raises(StoreError, match="does not become"):
        heads.move(done, RunStatus.ACTIVE, now=NOW)


def test_a_second_flush_order_has_to_see_the_first(table: Table, run: str) -> None:
    heads, seen = Heads(table), head_of(table, run, slots=3)
    first = heads.order_flush(seen, order("one", 0), now=NOW)
    assert first is not None
    assert (first.order_at, first.wake_at) == (NOW, 0)
    assert (first.order, first.order_leavers, first.order_deadline_at) == ("one", "1", NOW + 120)
    assert heads.order_flush(seen, order("one", 0)) is None, "somebody else has put it, and sends it"
    assert heads.order_flush(first, order("one", 0)) is None
    with pytest.raises(Lost) as caught:
        heads.order_flush(seen, order("two", 2))
    assert caught.value.current is not None
    assert caught.value.current["order"] == "one"
    second = heads.order_flush(first, order("two", 0, 2))
    assert second is not None
    assert second.order_leavers == "5"


def test_one_of_many_says_when_somebody_comes_for_open_claims(table: Table, run: str) -> None:
    heads, seen = Heads(table), head_of(table, run)
    first = heads.expect(seen, wake_at=NOW + 6, wake_s=6)
    assert (first.wake_at, first.wake_s) == (NOW + 6, 6)
    with pytest.raises(Lost):
        heads.expect(seen, wake_at=NOW + 7, wake_s=6)
    assert heads.expect(first, wake_at=NOW + 20, wake_s=12).wake_at == NOW + 20


def test_a_head_with_the_largest_order_is_under_1_kb(table: Table, run: str) -> None:
    heads = Heads(table)
    seen = head_of(table, run, slots=1000)
    seen = heads.move(seen, RunStatus.BLOCKED, cause=Cause.CONFIGURATION, reason="r" * 200, now=NOW)
    heads.order_flush(seen, order("o" * 64, *range(1000)), now=NOW)
    item = table.get(keys.head(run))
    assert item is not None
    assert sum(len(name) + len(str(value)) for name, value in item.items()) < 1024


def test_a_launch_counts_once_however_often_it_is_said(table: Table, run: str) -> None:
    heads = Heads(table)
    head_of(table, run)
    for _ in range(3):
        failed = heads.launch_failed(run, 1, next_launch_at=NOW, spot=True, refused="Odd", refusals=1)
    assert (failed.spot_attempts, failed.next_launch_at, failed.refused, failed.refusals) == (1, NOW, "Odd", 1)
    assert heads.launch_failed(run, 2, next_launch_at=NOW + 1, spot=False).spot_attempts == 1
    for _ in range(2):
        found = heads.launched(run, 3, recovered=True)
    assert (found.recoveries, found.spot_attempts, found.next_launch_at, found.refusals) == (1, 0, 0, 0)
    assert heads.launched(run, 2, recovered=True).recoveries == 1, "told late, after a newer one"
    assert heads.launched(run, 4, recovered=False).recoveries == 1
    assert heads.retry_at(run, NOW + 60).next_launch_at == NOW + 60


def test_a_newer_commit_resets_the_budgets_of_recoveries_and_node_faults(table: Table, run: str) -> None:
    heads = Heads(table)
    head_of(table, run)
    heads.launched(run, 1, recovered=True)
    for node in ("0:2", "1:2", "0:2"):
        faulty = heads.node_fault(run, node)
    assert faulty.node_faults == {"0:2", "1:2"}
    committed = heads.committed(run, 40)
    assert (committed.committed_step, committed.recoveries, committed.node_faults) == (40, 0, frozenset())
    heads.launched(run, 2, recovered=True)
    assert heads.committed(run, 40).recoveries == 1  # not newer
    assert heads.committed(run, 30).committed_step == 40


def test_an_estimate_of_what_was_spent_is_written_once(table: Table, run: str) -> None:
    heads, seen = Heads(table), head_of(table, run, submitted_at=NOW)
    assert heads.spent(seen, usd=0.5, now=NOW + 300).spent_usd == 0.5
    with pytest.raises(Lost):
        heads.spent(seen, usd=0.5, now=NOW + 301)


def test_a_run_that_is_active_again_has_its_budgets_anew(table: Table, run: str) -> None:
    heads, seen = Heads(table), head_of(table, run, submitted_at=NOW)
    heads.launch_failed(run, 1, next_launch_at=NOW + 600, spot=True, refused="Odd", refusals=5)
    heads.launched(run, 2, recovered=True)
    heads.launch_failed(run, 3, next_launch_at=NOW + 600, spot=True, refused="Odd", refusals=5)
    heads.node_fault(run, "0:1")
    spent = heads.spent(heads.node_fault(run, "0:2"), usd=9.5, now=NOW + 300)
    paused = heads.move(spent, RunStatus.PAUSED, cause=Cause.BUDGET, now=NOW + 400)
    resumed = heads.move(paused, RunStatus.ACTIVE, now=NOW + 500)
    assert (resumed.budgets_at, resumed.submitted_at, resumed.next_launch_at) == (NOW + 500, NOW, 0)
    assert (resumed.recoveries, resumed.spot_attempts, resumed.refusals, resumed.refused) == (0, 0, 0, "")
    assert (resumed.node_faults, resumed.spent_usd, resumed.counted_launch) == (frozenset(), 0.0, 3)
    assert heads.move(seen, RunStatus.ACTIVE, now=NOW + 600).budgets_at == NOW + 500, "it is active already"


def test_a_run_that_is_not_there_is_not_made_by_counting(table: Table, run: str) -> None:
    heads = Heads(table)
    writes: list[Callable[[], Head | None]] = [
        lambda: heads.launched(run, 1, recovered=True),
        lambda: heads.launch_failed(run, 1, next_launch_at=NOW, spot=True),
        lambda: heads.node_fault(run, "0:1"),
        lambda: heads.committed(run, 1),
        lambda: heads.retry_at(run, NOW),
        lambda: heads.order_flush(Head(run=run, status=RunStatus.ACTIVE), order("one", 0)),
    ]
    for write in writes:
        with pytest.raises(Lost):
            write()
    assert heads.read(run) is None


# --------------------------------------------------------------------------------------------------------------- slots
def held_slot(table: Table, run: str, instance: str = "i-a") -> Slot:
    """Slot 0 with a holder, by the path that every run takes: submit, claim, bind, seal, promote."""
    slots = Slots(table)
    slots.create(run, 1)
    [empty] = slots.list(run)
    claimed = slots.claim(empty, NO_INSTANCE, cause=Cause.SUBMIT, now=NOW)
    slots.bind(run, 0, claimed.incarnation, instance=instance, launch=1, now=NOW)
    return slots.promote(run, 0, claimed.incarnation, instance=instance)


def test_slots_are_made_empty_and_only_once(table: Table, run: str) -> None:
    slots = Slots(table)
    slots.create(run, 11)
    claimed = slots.claim(slots.list(run)[10], NO_INSTANCE, cause=Cause.SUBMIT, now=NOW)
    slots.create(run, 11)
    listed = slots.list(run)
    assert [slot.slot for slot in listed] == list(range(11))
    assert listed[10] == claimed
    assert slots.read(run, 10) == claimed
    assert slots.read(run, 11) is None


def test_the_first_claim_opens_the_slot_and_a_second_one_loses(table: Table, run: str) -> None:
    slots = Slots(table)
    slots.create(run, 1)
    [empty] = slots.list(run)
    claimed = slots.claim(empty, NO_INSTANCE, cause=Cause.SUBMIT, now=NOW)
    assert (claimed.incarnation, claimed.successor_incarnation, claimed.successor_instance) == (1, 1, NO_INSTANCE)
    for seen in (empty, claimed):  # a stale duplicate, and one that has read again
        with pytest.raises(Lost):
            slots.claim(seen, NO_INSTANCE, cause=Cause.SUBMIT, now=NOW)
    assert slots.list(run) == (claimed,)


def test_the_whole_way_of_a_replacement(table: Table, run: str) -> None:
    slots, held = Slots(table), held_slot(table, run)
    assert (held.holder_instance, held.holder_incarnation, held.successor_instance) == ("i-a", 1, None)
    claimed = slots.claim(
        held, "i-a", cause=Cause.INTERRUPTION, now=NOW, deadline_at=NOW + 120, lost_pool="g5.xlarge#us-east-1a#spot"
    )
    assert (claimed.holder_instance, claimed.incarnation, claimed.successor_incarnation) == ("i-a", 2, 2)
    assert (claimed.deadline_at, claimed.cause, claimed.claimed_at) == (NOW + 120, Cause.INTERRUPTION, NOW)
    with pytest.raises(Lost):
        slots.claim(held, "i-a", cause=Cause.DISAPPEARED, now=NOW + 1)  # the same loss under another event
    with pytest.raises(Lost):
        slots.claim(claimed, "i-a", cause=Cause.DISAPPEARED, now=NOW + 1)
    bound = slots.bind(run, 0, 2, instance="i-b", launch=7, now=NOW + 2)
    assert (bound.successor_instance, bound.successor_launch, bound.successor_bound_at) == ("i-b", 7, NOW + 2)
    promoted = slots.promote(run, 0, 2, instance="i-b")
    assert promoted == Slot(run=run, slot=0, incarnation=2, holder_instance="i-b", holder_incarnation=2)
    assert slots.promote(run, 0, 2, instance="i-b") == promoted
    assert slots.read(run, 0) == promoted


def test_a_claim_without_a_deadline_means_the_holder_is_gone_now(table: Table, run: str) -> None:
    held = held_slot(table, run)
    assert Slots(table).claim(held, "i-a", cause=Cause.SILENCE, now=NOW + 9).deadline_at == NOW + 9


def test_a_successor_that_dies_is_claimed_the_same_way(table: Table, run: str) -> None:
    slots, held = Slots(table), held_slot(table, run)
    slots.claim(held, "i-a", cause=Cause.INTERRUPTION, now=NOW, deadline_at=NOW + 120)
    bound = slots.bind(run, 0, 2, instance="i-b", launch=7, now=NOW + 2)
    again = slots.claim(bound, "i-b", cause=Cause.INTERRUPTION, now=NOW + 30, deadline_at=NOW + 150)
    assert (again.incarnation, again.successor_incarnation, again.successor_instance) == (3, 3, NO_INSTANCE)
    assert (again.successor_launch, again.successor_bound_at) == (None, None)
    assert again.deadline_at == NOW + 120  # the holder's, who may still flush
    with pytest.raises(Lost):
        slots.claim(bound, "i-b", cause=Cause.INTERRUPTION, now=NOW + 31)
    with pytest.raises(Lost):
        slots.promote(run, 0, 2, instance="i-b")  # it was lost: the claim stands
    with pytest.raises(Lost):
        slots.bind(run, 0, 2, instance="i-b", launch=7, now=NOW + 31)


def test_a_claim_for_an_instance_that_has_no_place_loses(table: Table, run: str) -> None:
    slots, held = Slots(table), held_slot(table, run)
    with pytest.raises(Lost):
        slots.claim(held, "i-stranger", cause=Cause.INTERRUPTION, now=NOW)
    assert slots.read(run, 0) == held


def test_a_second_instance_for_one_claim_is_surplus(table: Table, run: str) -> None:
    slots, held = Slots(table), held_slot(table, run)
    slots.claim(held, "i-a", cause=Cause.INTERRUPTION, now=NOW)
    bound = slots.bind(run, 0, 2, instance="i-b", launch=7, now=NOW)
    assert slots.bind(run, 0, 2, instance="i-b", launch=7, now=NOW + 5) == bound
    with pytest.raises(Lost):
        slots.bind(run, 0, 2, instance="i-c", launch=8, now=NOW)
    with pytest.raises(Lost):
        slots.bind(run, 0, 3, instance="i-c", launch=8, now=NOW)


def test_a_hand_tagged_instance_is_bound_without_a_launch(table: Table, run: str) -> None:
    slots = Slots(table)
    slots.create(run, 1)
    [empty] = slots.list(run)
    slots.claim(empty, NO_INSTANCE, cause=Cause.USER, now=NOW)
    assert slots.bind(run, 0, 1, instance="i-hand", launch=None, now=NOW).successor_launch is None


def test_the_deadline_of_a_claimed_holder_only_falls_and_only_for_that_holder(table: Table, run: str) -> None:
    slots, held = Slots(table), held_slot(table, run)
    with pytest.raises(Lost):
        slots.lift_barrier(held, "i-a", now=NOW)  # nobody waits
    claimed = slots.claim(held, "i-a", cause=Cause.INTERRUPTION, now=NOW, deadline_at=NOW + 120)
    with pytest.raises(Lost):
        slots.lift_barrier(claimed, "i-z", now=NOW + 5)
    assert slots.lift_barrier(claimed, "i-a", now=NOW + 5).deadline_at == NOW + 5
    for again in (NOW + 5, NOW + 60):
        with pytest.raises(Lost):
            slots.lift_barrier(claimed, "i-a", now=again)
    stands = slots.read(run, 0)
    assert stands is not None
    assert (stands.deadline_at, stands.successor_incarnation) == (NOW + 5, 2)


def test_vacating_takes_an_instance_out_and_only_once(table: Table, run: str) -> None:
    slots, held = Slots(table), held_slot(table, run)
    vacant = slots.vacate(held, "i-a")
    assert (vacant.holder_instance, vacant.successor_instance) == (NO_INSTANCE, None)
    with pytest.raises(Lost):
        slots.vacate(held, "i-a")
    assert slots.claim(vacant, NO_INSTANCE, cause=Cause.USER, now=NOW).incarnation == 2  # resumed


def test_a_successor_that_waits_beside_a_vacated_holder_has_nobody_to_wait_for(table: Table, run: str) -> None:
    slots, held = Slots(table), held_slot(table, run)
    claimed = slots.claim(held, "i-a", cause=Cause.REBALANCE, now=NOW, deadline_at=NEVER, waits_for_notice=True)
    vacant = slots.vacate(claimed, "i-a")
    assert (vacant.holder_instance, vacant.successor_instance) == (NO_INSTANCE, NO_INSTANCE)
    assert not vacant.waits_for_notice


def test_vacating_a_successor_withdraws_its_claim(table: Table, run: str) -> None:
    slots, held = Slots(table), held_slot(table, run)
    slots.claim(held, "i-a", cause=Cause.REBALANCE, now=NOW)
    bound = slots.bind(run, 0, 2, instance="i-b", launch=7, now=NOW)
    vacant = slots.vacate(bound, "i-b")
    assert (vacant.holder_instance, vacant.successor_instance, vacant.incarnation) == ("i-a", None, 2)
    with pytest.raises(Lost):
        slots.claim(held, "i-a", cause=Cause.INTERRUPTION, now=NOW)  # what it saw would give number 2 out again
    assert slots.claim(vacant, "i-a", cause=Cause.INTERRUPTION, now=NOW).incarnation == 3


# ------------------------------------------------------------------------------------------------------------ launches
def launch(run: str, number: int, **fields: object) -> Launch:
    made = Launch(
        run=run,
        launch=number,
        state=LaunchState.INTENDED,
        wants=("0:1",),
        request='{"Type":"instant"}',
        token=f"token-{number}",
        market=Market.SPOT,
        made_at=NOW,
    )
    return dataclasses.replace(made, **fields)  # type: ignore[arg-type]


def test_a_launch_number_is_given_once(table: Table, run: str) -> None:
    launches = Launches(table)
    assert launches.next_number(run) == 1
    first = launches.intend(launch(run, 1))
    assert launches.intend(launch(run, 1, made_at=NOW + 5)) == first  # the same request, tried again
    with pytest.raises(Lost):
        launches.intend(launch(run, 1, token="another"))
    with pytest.raises(Lost):
        launches.intend(launch(run, 1, wants=("1:1",)))
    assert launches.next_number(run) == 2
    assert launches.read(run, 1) == first


def test_a_launch_is_unfinished_until_it_is_closed(table: Table, run: str) -> None:
    launches = Launches(table)
    for number in (1, 2, 10):
        launches.intend(launch(run, number))
    with pytest.raises(Lost):
        launches.close(run, 1)  # it has no answer: replay it
    launches.answer(run, 1, instances=("i-a",), errors=(), now=NOW)
    assert [one.launch for one in launches.unfinished(run)] == [1, 2, 10]
    closed = launches.close(run, 1)
    assert launches.close(run, 1) == closed
    assert [one.launch for one in launches.unfinished(run)] == [2, 10]
    assert [one.launch for one in launches.recent(run, limit=2)] == [2, 10]
    assert launches.next_number(run) == 11


def test_the_first_answer_stands(table: Table, run: str) -> None:
    launches = Launches(table)
    launches.intend(launch(run, 1))
    errors = ("g5.xlarge#us-east-1a#spot:InsufficientInstanceCapacity",)
    pools = ("g5.xlarge#us-east-1b#spot", "g5.xlarge#us-east-1b#spot")
    answered = launches.answer(run, 1, instances=("i-a", "i-b"), pools=pools, errors=errors, now=NOW)
    assert (answered.state, answered.instances, answered.errors) == (LaunchState.ANSWERED, ("i-a", "i-b"), errors)
    assert answered.pools == pools
    assert launches.answer(run, 1, instances=("i-b", "i-a"), errors=(), now=NOW + 1) == answered
    with pytest.raises(Lost):
        launches.answer(run, 1, instances=("i-c",), errors=(), now=NOW + 1)
    amended = launches.amend(answered, ("i-b", "i-c"))
    assert amended.instances == ("i-a", "i-b", "i-c")
    with pytest.raises(Lost):
        launches.amend(answered, ("i-d",))  # the record has changed since
    assert launches.read(run, 1) == amended


def test_a_launch_is_given_up_only_as_it_was_seen(table: Table, run: str) -> None:
    launches = Launches(table)
    launches.intend(launch(run, 1))
    answered = launches.answer(run, 1, instances=("i-a",), errors=(), now=NOW)
    launches.amend(answered, ("i-b",))
    with pytest.raises(Lost):
        launches.release(answered)
    [found] = launches.unfinished(run)
    assert launches.release(found).released
    assert launches.release(found).released
    assert launches.close(run, 1).released


def test_the_launcher_lease_excludes_until_its_time(table: Table, run: str) -> None:
    leases = LauncherLeases(table)
    leases.take(run, "a", now=NOW, until=NOW + 60)
    with pytest.raises(Lost):
        leases.take(run, "b", now=NOW + 59, until=NOW + 120)
    assert leases.take(run, "a", now=NOW + 50, until=NOW + 110).until == NOW + 110
    assert leases.take(run, "b", now=NOW + 110, until=NOW + 170).owner == "b"
    leases.let_go(run, "a")  # a's has expired and is b's now
    with pytest.raises(Lost):
        leases.take(run, "a", now=NOW + 111, until=NOW + 180)
    leases.let_go(run, "b")
    leases.let_go(run, "b")
    assert leases.take(run, "a", now=NOW + 111, until=NOW + 180).owner == "a"


# ------------------------------------------------------------------------------------------------------------- members
def test_an_instance_has_one_place(table: Table, run: str) -> None:
    members = Members(table)
    mine = Member(instance=f"i-{run}", run=run, slot=2, incarnation=3, launch=4, launched_at=NOW)
    assert members.read(mine.instance) is None
    members.put(mine)
    members.put(mine)
    assert members.read(mine.instance) == mine
    with pytest.raises(Lost):
        members.put(dataclasses.replace(mine, slot=5))
    assert [members.end(mine.instance, now=NOW + 9), members.end(mine.instance, now=NOW + 10)] == [True, False]
    members.put(mine)  # a late duplicate does not bring it back to life
    assert members.read(mine.instance) == dataclasses.replace(mine, ended_at=NOW + 9)
    assert members.end("i-unknown", now=NOW) is False
    assert members.read("i-unknown") is None


def test_memberships_are_sealed_one_after_the_other(table: Table, run: str) -> None:
    memberships = Memberships(table)
    assert memberships.newest(run) is None
    first = memberships.seal(generation(run, 1), pointer=None)
    assert memberships.seal(generation(run, 1), pointer=None) == first
    with pytest.raises(Lost):
        memberships.seal(generation(run, 1, "0:9:i-other"), pointer=None)
    with pytest.raises(Lost):
        memberships.seal(generation(run, 3), pointer=None)
    second = memberships.seal(generation(run, 2, "0:2:i-b"), pointer=None)
    newest = memberships.newest(run)
    assert newest is not None
    assert newest.generation == 2
    assert memberships.generation(run, 1) == first
    assert memberships.generation(run, 2) == second
    assert memberships.generation(run, 3) is None


def test_sealing_again_later_keeps_the_first_time(table: Table, run: str) -> None:
    memberships = Memberships(table)
    first = memberships.seal(generation(run, 1), pointer=None)
    later = memberships.seal(dataclasses.replace(generation(run, 1), sealed_at=first.sealed_at + 60), pointer=None)
    assert later == first


def test_a_seal_chooses_its_start_again_when_the_pointer_has_moved(table: Table, run: str) -> None:
    memberships, pointers = Memberships(table), Pointers(table)
    memberships.seal(generation(run, 1), pointer=None)
    at_five = pointers.rise(pointer(run, 1, 5), own_generation=1)
    with pytest.raises(Lost) as caught:
        memberships.seal(generation(run, 2), pointer=None)
    assert caught.value.op == 2
    at_ten = pointers.rise(pointer(run, 1, 10), own_generation=1)
    with pytest.raises(Lost) as caught:
        memberships.seal(generation(run, 2), pointer=at_five)
    assert (caught.value.op, caught.value.current is not None) == (2, True)
    assert memberships.newest(run) is not None
    assert memberships.generation(run, 2) is None
    memberships.seal(generation(run, 2), pointer=at_ten)


def test_the_bad_mark_only_rises_and_survives_the_seal(table: Table, run: str) -> None:
    memberships = Memberships(table)
    with pytest.raises(Lost):
        memberships.mark_bad(run, 1)
    memberships.seal(generation(run, 1), pointer=None)
    assert memberships.mark_bad(run, 1).bad == 1
    assert memberships.mark_bad(run, 1).bad == 1
    with pytest.raises(Lost):
        memberships.mark_bad(run, 2)
    memberships.seal(generation(run, 2), pointer=None)
    newest = memberships.newest(run)
    assert newest is not None
    assert (newest.generation, newest.bad) == (2, 1)
    assert memberships.mark_bad(run, 2).bad == 2
    assert memberships.mark_bad(run, 1).bad == 2


# ------------------------------------------------------------------------------------------------- pointer, checkpoints
def test_the_pointer_rises_lexicographically_and_never_goes_back(table: Table, run: str) -> None:
    memberships, pointers = Memberships(table), Pointers(table)
    assert pointers.read(run) is None
    memberships.seal(generation(run, 1), pointer=None)
    pointers.rise(pointer(run, 1, 5), own_generation=1)
    at_ten = pointers.rise(pointer(run, 1, 10), own_generation=1)
    assert pointers.rise(dataclasses.replace(pointer(run, 1, 10), committed_at=NOW + 60), own_generation=1) == at_ten
    with pytest.raises(Lost):
        pointers.rise(pointer(run, 1, 9), own_generation=1)
    with pytest.raises(Lost):
        pointers.rise(pointer(run, 1, 10, digest="f" * 64), own_generation=1)
    assert pointers.read(run) == at_ten
    memberships.seal(generation(run, 2), pointer=at_ten)
    lower_step = pointers.rise(pointer(run, 2, 7), own_generation=2)
    assert pointers.read(run) == lower_step


def test_st_07_a_woken_node_of_an_older_generation_commits_nothing(table: Table, run: str) -> None:
    memberships, pointers = Memberships(table), Pointers(table)
    with pytest.raises(Superseded):
        pointers.rise(pointer(run, 1, 5), own_generation=1)  # nothing was sealed at all
    memberships.seal(generation(run, 1), pointer=None)
    at_five = pointers.rise(pointer(run, 1, 5), own_generation=1)
    memberships.seal(generation(run, 2), pointer=at_five)
    with pytest.raises(Superseded, match="newest generation is 2"):
        pointers.rise(pointer(run, 1, 99), own_generation=1)
    assert pointers.read(run) == at_five


def test_whoever_completes_the_set_knows_it(table: Table, run: str) -> None:
    checkpoints = Checkpoints(table)
    assert checkpoints.read(run, 1, 20) is None
    seen = [checkpoints.add_part(part(run, 1, 20, rank, 3), kind=SaveKind.PERIODIC, now=NOW) for rank in (2, 0, 2, 1)]
    assert [is_complete(one) for one in seen] == [False, False, False, True]
    whole = seen[-1]
    assert (whole.done, whole.world, whole.kind) == (frozenset({"0", "1", "2"}), 3, SaveKind.PERIODIC)
    assert whole.bytes == 3 * part(run, 1, 20, 0, 3).image.bytes  # rank 2 came twice and counts once
    with pytest.raises(Lost):
        checkpoints.add_part(part(run, 1, 20, 3, 4), kind=SaveKind.PERIODIC, now=NOW)


def test_a_commit_is_noted_once_and_the_newest_come_first(table: Table, run: str) -> None:
    checkpoints = Checkpoints(table)
    for g, step in ((1, 20), (2, 5), (1, 100)):
        checkpoints.add_part(part(run, g, step, 0, 1), kind=SaveKind.FLUSH, now=NOW)
    done = checkpoints.committed(run, 1, 100, manifest_key="m", now=NOW)
    assert checkpoints.committed(run, 1, 100, manifest_key="m", now=NOW + 5) == done
    with pytest.raises(Lost):
        checkpoints.committed(run, 1, 101, manifest_key="m", now=NOW)
    assert [(one.generation, one.step) for one in checkpoints.newest(run)] == [(2, 5), (1, 100), (1, 20)]
    assert [one.step for one in checkpoints.newest(run, limit=1)] == [5]


def test_the_quarantine_keeps_the_first_reason(table: Table, run: str) -> None:
    checkpoints = Checkpoints(table)
    assert checkpoints.quarantined(run) == frozenset()
    checkpoints.quarantine(Quarantine(run=run, generation=1, step=20, reason="chunk ab", found_at=NOW))
    checkpoints.quarantine(Quarantine(run=run, generation=1, step=20, reason="again", found_at=NOW))
    checkpoints.quarantine(Quarantine(run=run, generation=2, step=5, reason="NaN", found_at=NOW))
    assert checkpoints.quarantined(run) == frozenset({(1, 20), (2, 5)})
    item = table.get(keys.quarantine(run, 1, 20))
    assert item is not None
    assert item["reason"] == "chunk ab"


# --------------------------------------------------------------------------------------------------------------- nodes
def beat(run: str, slot: int, incarnation: int, instance: str = "i-0aaaaaaaaaaaaaaa1", **fields: object) -> Node:
    return Node(run=run, slot=slot, incarnation=incarnation, instance=instance, phase=NodePhase.TRAINING, **fields)  # type: ignore[arg-type]


def test_a_beat_comes_back_whole(table: Table, run: str) -> None:
    nodes = Nodes(table)
    assert nodes.read(run, 0, 1) is None
    first = beat(run, 0, 1, beat_at=NOW, beats=1)
    nodes.beat(first)
    assert nodes.read(run, 0, 1) == first
    last = beat(run, 0, 1, beat_at=NOW + 15, beats=2, generation=3, step=1200, loss=2.5, flush=FlushOutcome.PENDING)
    nodes.beat(last)
    assert nodes.read(run, 0, 1) == last


def test_a_node_whose_place_was_given_away_learns_it_from_its_beat(table: Table, run: str) -> None:
    nodes = Nodes(table)
    nodes.beat(beat(run, 0, 1, "i-a"))
    with pytest.raises(Superseded, match="i-a"):
        nodes.beat(beat(run, 0, 1, "i-b"))


def test_all_beats_of_a_run_over_the_shards(table: Table, run: str) -> None:
    nodes = Nodes(table)
    places = [(0, 1), (3, 2), (8, 1), (9, 1), (11, 1), (3, 10)]
    for slot, incarnation in places:
        nodes.beat(beat(run, slot, incarnation))
    assert [(node.slot, node.incarnation) for node in nodes.list(run, slots=12)] == sorted(places)
    assert [node.slot for node in nodes.list(run, slots=1)] == [0, 8]


def test_a_full_beat_of_an_ordinary_run_is_200_bytes() -> None:
    full = beat(
        "mini-gpt-2026-11",
        999,
        42,
        beat_at=NOW,
        beats=99_999,
        generation=42,
        step=1_000_000,
        loss=2.718281828,
        flush=FlushOutcome.KEPT_LAST,
        flush_step=1_000_000,
    )
    written: list[int] = []

    class Scale:
        def write(self, op: object) -> dict[str, object]:
            wire = item_to_wire(op.key, op.item)  # type: ignore[attr-defined]
            written.append(sum(len(name) + _bytes(value) for name, value in wire.items()))
            return {}

    Nodes(Scale()).beat(full)  # type: ignore[arg-type]
    assert written[0] <= 200


def _bytes(wire: dict[str, str]) -> int:
    [(kind, held)] = wire.items()
    return len(held) // 2 + 1 if kind == "N" else len(held)


# ------------------------------------------------------------------------------------------------- live, pools, history
def test_the_sweep_finds_what_is_due(table: Table, run: str) -> None:
    index = LiveIndex(table)
    index.hasten(run, due_at=NOW + 60)
    assert run not in {entry.run for entry in index.due(now=NOW + 59)}
    assert Live(run=run, due_at=NOW + 60) in index.due(now=NOW + 60)
    index.hasten(run, due_at=NOW + 90)  # an earlier time stands
    assert index.read(run) == Live(run=run, due_at=NOW + 60)
    index.hasten(run, due_at=NOW + 5)
    seen = index.read(run)
    assert seen == Live(run=run, due_at=NOW + 5)
    index.reschedule(seen, due_at=NOW + 65)
    with pytest.raises(Lost):
        index.reschedule(seen, due_at=NOW + 100)
    index.remove(run)
    index.remove(run)
    assert index.read(run) is None
    with pytest.raises(Lost):
        index.reschedule(Live(run=run, due_at=NOW + 65), due_at=NOW + 100)  # a removed run stays removed


def test_pools_cool_down_from_what_was_seen_and_keep_their_losses(table: Table, run: str) -> None:
    pools, region = PoolStore(table), f"region-{run}"
    hot = Pool(region=region, instance_type="g5.xlarge", zone="a", market=Market.SPOT)
    first = pools.cool(None, dataclasses.replace(hot, until=NOW + 600, cooldown_s=600, verdict="capacity"))
    with pytest.raises(Lost):
        pools.cool(None, dataclasses.replace(hot, until=NOW + 1200, cooldown_s=1200))
    counted = pools.lost(hot, losses=1, counted_for="a#1", now=NOW)
    assert (counted.losses, counted.lost_at, counted.until) == (1, NOW, NOW + 600)
    second = pools.cool(first, dataclasses.replace(hot, until=NOW + 1800, cooldown_s=1200, verdict="capacity"))
    assert (second.cooldown_s, second.losses) == (1200, 1)
    other = Pool(region=region, instance_type="g6.xlarge", zone="b", market=Market.ON_DEMAND)
    pools.lost(other, losses=1, counted_for="a#1", now=NOW)
    assert [(pool.instance_type, pool.losses) for pool in pools.list(region)] == [("g5.xlarge", 1), ("g6.xlarge", 1)]
    assert pools.list("nowhere") == ()


def test_a_pool_lost_before_it_ever_cooled_can_cool(table: Table, run: str) -> None:
    pools, region = PoolStore(table), f"region-{run}"
    pool = Pool(region=region, instance_type="g5.xlarge", zone="a", market=Market.SPOT)
    known = pools.lost(pool, losses=1, counted_for="a#1", now=NOW)
    assert pools.cool(known, dataclasses.replace(known, until=NOW + 600, cooldown_s=600)).losses == 1


def test_losses_of_a_launch_count_once_and_by_the_hour_of_the_week(table: Table, run: str) -> None:
    pools, region = PoolStore(table), f"region-{run}"
    pool = Pool(region=region, instance_type="g5.xlarge", zone="a", market=Market.SPOT)
    for _ in range(2):
        pools.lost(pool, losses=3, counted_for="a#1", now=NOW)
    pools.lost(pool, losses=1, counted_for="b#1", now=NOW)
    known = pools.lost(pool, losses=3, counted_for="a#1", now=NOW + 7200)
    assert (known.losses, known.lost_at, hours.losses_at(known.hours, NOW)) == (4, NOW, 4)
    assert hours.losses_at(known.hours, NOW + 7200) == 0
    for number in range(40):
        known = pools.lost(pool, losses=1, counted_for=f"c#{number}", now=NOW)
    assert (known.losses, len(known.counted), len(known.hours)) == (44, 16, 168)


def test_what_ec2_tells_of_a_pool_stands_beside_what_was_learned(table: Table, run: str) -> None:
    pools, region = PoolStore(table), f"region-{run}"
    pool = Pool(region=region, instance_type="g5.xlarge", zone="a", market=Market.SPOT)
    pools.told(pool, market={"price_usd": 0.4, "priced_at": NOW})
    cool = dataclasses.replace(pool, until=NOW + 600, cooldown_s=600, verdict="capacity")
    pools.cool(pools.list(region)[0], cool)
    known = pools.told(pool, market={"price_usd": 0.5, "priced_at": NOW + 1, "score": 7, "scored_at": NOW + 1})
    assert (known.price_usd, known.score, known.until) == (0.5, 7, NOW + 600)


def test_of_many_one_looks_at_the_market_of_the_same_types_in_an_hour(table: Table, run: str) -> None:
    pools, region = PoolStore(table), f"region-{run}"
    pools.look(region, types=("a", "b"), now=NOW, before=NOW - 3600)
    with pytest.raises(Lost):
        pools.look(region, types=("b", "a"), now=NOW + 1, before=NOW - 3599)
    pools.look(region, types=("c",), now=NOW + 1, before=NOW - 3599)
    pools.look(region, types=("a", "b"), now=NOW + 3601, before=NOW + 1)


def test_the_timeline_is_in_order_and_tells_each_thing_once(table: Table, run: str) -> None:
    histories = Histories(table)
    entries = [
        History(run=run, at_ms=NOW * 1000 + at, what=what, slot=0, incarnation=1, cause=Cause.INTERRUPTION)
        for at, what in ((5, HistoryKind.CLAIMED), (0, HistoryKind.NOTICE), (5, HistoryKind.BOUND))
    ]
    for entry in (*entries, entries[0]):
        histories.add(entry)
    listed = histories.list(run)
    assert [entry.what for entry in listed] == [HistoryKind.NOTICE, HistoryKind.BOUND, HistoryKind.CLAIMED]
    assert listed[0].ttl == NOW + HISTORY_TTL_S
    assert [entry.what for entry in histories.list(run, since_ms=NOW * 1000 + 1)] == [
        HistoryKind.BOUND,
        HistoryKind.CLAIMED,
    ]
    assert len(histories.list(run, limit=1)) == 1


def test_st_09_a_long_history_leaves_the_run_record_small(table: Table, run: str) -> None:
    """600 here; each is an item of its own, so 6,000 differ only in the time that the test takes."""
    heads, histories = Heads(table), Histories(table)
    head_of(table, run)
    for number in range(600):
        histories.add(History(run=run, at_ms=NOW * 1000 + number, what=HistoryKind.NOTICE, detail="x" * 200))
    for launch in range(600):
        heads.launched(run, launch + 1, recovered=True)
    assert len(histories.list(run)) == 600
    item = table.get(keys.head(run))
    assert item is not None
    assert len(str(item)) < 1024


def test_launches_of_an_hour_are_counted_up_to_the_limit_and_each_hour_anew(table: Table, run: str) -> None:
    pools, region = PoolStore(table), f"region-{run}"

    def count(hour: int) -> int | None:
        begun = pools.launches_made(region, hour=hour) is not None
        table.transact([pools.counting(region, hour=hour, limit=2, begun=begun)])
        return pools.launches_made(region, hour=hour)

    assert [count(100) for _ in range(2)] == [1, 2]
    with pytest.raises(Lost):
        count(100)
    assert count(124) == 1, "the same of the 24 items, a day later"
    with pytest.raises(Lost):
        count(100)
    with pytest.raises(Lost):
        table.transact([pools.counting(region, hour=124, limit=2, begun=False)])

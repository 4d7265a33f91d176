"""What the sweep repairs, through the real pipeline: a minute passes, the run is due, repair looks at it."""

from __future__ import annotations

from pathlib import Path

import pytest

from lambdas.decisions.facts import Facts, Silence
from lambdas.facts import Reader
from spotproof.contract import s3keys
from spotproof.contract.history import HistoryKind
from spotproof.contract.items import NO_INSTANCE
from spotproof.contract.manifest import Chunk, File, Part, Receipt, encode
from spotproof.contract.metrics import Metric
from spotproof.contract.runspec import Budgets
from spotproof.contract.states import (
    Cause,
    FlushOutcome,
    LaunchState,
    NodePhase,
    RunStatus,
    SaveKind,
)
from spotproof.store.digest import digest_of
from tests.fakes.control import STACK, World, notice


def minutes(world: World, count: int, *, beating: tuple[str, ...] = ()) -> None:
    """So many sweeps; the beating nodes have beaten shortly before each."""
    for _ in range(count):
        world.clock.advance(50)
        for instance in beating:
            world.beat("mini", instance)
        world.tick(after_s=10)


def test_a_silent_node_is_replaced_within_two_minutes_and_left_to_the_orphan_rule() -> None:
    world = World()
    frozen, other = world.started(slots=2)
    world.beat_all()
    minutes(world, 2, beating=(other,))
    slot = world.slot()
    assert (slot.incarnation, slot.cause, slot.holder_instance) == (2, Cause.SILENCE, frozen)
    assert slot.deadline_at is not None
    assert slot.deadline_at <= world.clock()
    assert world.ec2.terminated == []
    assert world.slot(number=1).successor_instance is None


def test_a_node_that_has_flushed_and_drains_is_replaced_though_no_event_told_why() -> None:
    world = World()
    leaver, other = world.started(slots=2)
    world.beat_all()
    world.beat("mini", leaver, NodePhase.FLUSHING, flush=FlushOutcome.PENDING)
    minutes(world, 1, beating=(other,))
    assert world.slot().successor_instance is None
    world.flushed("mini", leaver, step=7)
    minutes(world, 1, beating=(other,))
    assert (world.slot().incarnation, world.slot().cause) == (2, Cause.DISAPPEARED)
    assert world.slot().successor_instance not in (None, NO_INSTANCE)
    assert world.ec2.terminated == []


def test_a_run_that_is_resumed_before_its_nodes_have_ended_is_filled_again() -> None:
    world = World()
    (first,) = world.started()
    world.commit("mini", 7)
    world.pause("mini")
    world.flushed("mini", first, step=7)
    world.stores.heads.move(world.head(), RunStatus.ACTIVE, now=int(world.clock()))
    minutes(world, 2)
    assert world.slot().successor_instance not in (None, NO_INSTANCE, first)


def test_silence_counts_only_after_the_first_beat() -> None:
    world = World()
    world.started()
    minutes(world, 5)
    assert world.slot().incarnation == 1


def test_mass_silence_replaces_nobody_and_rings() -> None:
    world = World()
    world.started(slots=6)
    world.beat_all()
    minutes(world, 4)
    assert [slot.incarnation for slot in world.slots()] == [1] * 6
    assert world.meter.total(Metric.MASS_SILENCE) > 0
    world.beat_all()
    minutes(world, 1)
    assert HistoryKind.MASS_SILENCE not in [entry.what for entry in world.told() if entry.at_ms >= world.clock() * 1000]


def test_mass_silence_is_counted_over_the_whole_stack() -> None:
    world = World()
    for number in range(6):
        world.started(f"run-{number}")
    for number in range(6):
        world.beat_all(f"run-{number}")
    world.tick()
    world.tick()
    assert [world.slot(f"run-{number}").incarnation for number in range(6)] == [1] * 6


@pytest.mark.parametrize(("silent", "replaced"), [(12, 0), (2, 2)])
def test_a_silent_run_reads_a_sample_of_the_others(silent: int, replaced: int, monkeypatch: pytest.MonkeyPatch) -> None:
    world, looks, reads = World(), list[str](), list[str]()
    runs = [f"run-{number}" for number in range(12)]
    for run in runs:
        world.submit(run)
    world.tick()
    world.boot()
    for run in runs:
        world.join(run)
        world.beat_all(run)
    look, beating = Reader._stack_silence, Reader._beating

    def looked(self: Reader, own: Facts) -> Silence:
        looks.append(own.run)
        return look(self, own)

    def read(self: Reader, run: str, *, now: int) -> Facts:
        reads.append(run)
        return beating(self, run, now=now)

    monkeypatch.setattr("lambdas.facts.RUNS_AT_MOST", 4)
    monkeypatch.setattr(Reader, "_stack_silence", looked)
    monkeypatch.setattr(Reader, "_beating", read)
    for _ in range(3):
        world.clock.advance(50)
        for run in runs[silent:]:
            world.beat_all(run)
        world.tick(after_s=10)
    assert sum(world.slot(run).incarnation == 2 for run in runs) == replaced
    assert len(reads) == 4 * len(looks) > 0
    assert set(looks) <= set(runs[:silent])


def test_mass_silence_is_seen_while_it_begins() -> None:
    world = World()
    holders = world.started(slots=6)
    for holder in holders:  # the last beats before an outage, spread over a heartbeat
        world.beat("mini", holder)
        world.clock.advance(2.5)
    world.tick(after_s=50)
    assert [slot.incarnation for slot in world.slots()] == [1] * 6


def test_the_breaker_opens_when_many_are_late_so_that_a_look_while_beats_return_replaces_nobody() -> None:
    world = World()
    holders = world.started(slots=6)
    world.beat_all()
    world.tick(after_s=48)
    world.clock.advance(40)
    for holder in holders[:2]:  # the table is back, and these were first
        world.beat("mini", holder)
    world.tick(after_s=8)
    assert [slot.incarnation for slot in world.slots()] == [1] * 6
    assert world.meter.total(Metric.MASS_SILENCE) == 0, "it rings only for silence"
    minutes(world, 3, beating=tuple(holders[:2]))
    assert [slot.incarnation for slot in world.slots()] == [1, 1, 2, 2, 2, 2], "the others have died"


def test_four_silent_of_six_are_replaced() -> None:
    world = World()
    holders = world.started(slots=6)
    world.beat_all()
    minutes(world, 2, beating=tuple(holders[:2]))
    assert [slot.incarnation for slot in world.slots()] == [1, 1, 2, 2, 2, 2]


def test_a_look_that_is_overdue_replaces_nobody_for_silence() -> None:
    world = World()
    [holder] = world.started()
    world.beat("mini", holder)
    world.tick(after_s=200)  # our own outage: no sweep, and no node could beat
    assert world.slot().incarnation == 1
    world.beat("mini", holder)
    minutes(world, 1)
    assert world.slot().incarnation == 1


def test_an_instance_that_ec2_does_not_know_is_lost_a_minute_after_it_was_bound() -> None:
    world = World()
    world.submit()
    world.tick()
    [bound] = world.ec2.instances
    world.ec2.instances.clear()
    world.tick(after_s=50)
    assert world.slot().successor_instance == bound
    world.tick(after_s=50)
    assert world.slot().incarnation == 2


def test_a_node_that_never_joins_is_claimed_then_ended_and_another_pool_is_asked() -> None:
    world = World()
    world.submit()
    world.tick()
    [dead] = world.ec2.instances
    world.boot()
    minutes(world, 11)
    slot = world.slot()
    assert world.ec2.terminated == [dead]
    assert (slot.incarnation, slot.cause) == (2, Cause.NEVER_JOINED)
    assert world.member(str(slot.successor_instance)).zone != world.member(dead).zone
    assert world.meter.total(Metric.NEVER_JOINED) == 1


def test_the_last_word_done_of_every_slot_ends_the_run_and_its_nodes() -> None:
    world = World()
    one, two = world.started(slots=2)
    world.beat("mini", one, NodePhase.DONE, step=300)
    minutes(world, 1, beating=(two,))
    assert world.head().status is RunStatus.ACTIVE
    world.beat("mini", two, NodePhase.DONE, step=300)
    minutes(world, 1)
    assert world.head().status is RunStatus.DONE
    assert set(world.ec2.terminated) == {one, two}
    minutes(world, 8)
    assert world.stores.live.read("mini") is None


@pytest.mark.parametrize("status", [RunStatus.PAUSED, RunStatus.STOPPING])
def test_a_run_that_wants_no_nodes_is_flushed_once_and_ended_when_it_is_durable(status: RunStatus) -> None:
    world = World()
    [holder] = world.started()
    world.beat("mini", holder)
    world.pause("mini", status)
    minutes(world, 1)
    assert (world.ec2.terminated, len(world.ssm.sent), world.head().order_leavers) == ([], 1, "1")
    world.flushed("mini", holder, step=80)
    world.clock.advance(300)
    minutes(world, 1)
    assert (world.ec2.terminated, len(world.ssm.sent)) == ([holder], 1)
    assert world.slot().holder_instance == NO_INSTANCE
    world.clock.advance(300)
    minutes(world, 1)
    assert world.head().status is (RunStatus.PAUSED if status is RunStatus.PAUSED else RunStatus.STOPPED)
    assert world.ec2.count("create_fleet") == 1


def test_a_paused_run_ends_a_mute_node_after_ten_minutes() -> None:
    world = World()
    [holder] = world.started()
    world.beat("mini", holder)
    world.pause("mini")
    world.clock.advance(540)
    minutes(world, 1)
    world.clock.advance(300)
    minutes(world, 1)
    assert world.ec2.terminated == [holder]


def test_a_resumed_run_is_filled_again() -> None:
    world = World()
    [holder] = world.started()
    world.pause("mini")
    world.flushed("mini", holder, step=3)
    minutes(world, 1)
    head = world.head()
    world.stores.heads.move(head, RunStatus.ACTIVE, now=int(world.clock()))
    world.stores.live.hasten("mini", due_at=int(world.clock()))
    minutes(world, 1)
    assert world.slot().successor_instance not in (None, NO_INSTANCE)


def test_a_spent_recovery_budget_pauses_with_its_cause_and_a_commit_renews_it() -> None:
    world = World()
    [lost] = world.started(budgets=Budgets(recoveries=2))
    for _ in range(3):
        world.deliver(notice(lost, world.clock()))
        world.clock.advance(10)
        lost = str(world.slot().successor_instance)
    assert (world.head().status, world.head().cause) == (RunStatus.PAUSED, Cause.BUDGET)
    assert world.ec2.count("create_fleet") == 3
    assert len(world.sns.said) == 1


def test_a_commit_between_renews_the_recovery_budget() -> None:
    world = World()
    [lost] = world.started(budgets=Budgets(recoveries=2))
    for step in range(4):
        world.commit("mini", step + 1)
        world.deliver(notice(lost, world.clock()))
        world.boot()
        world.join()
        world.beat("mini", str(world.slot().successor_instance))
        world.tick()
        lost = str(world.slot().holder_instance)
    assert world.head().status is RunStatus.ACTIVE


def test_an_orphan_is_ended_when_it_is_ten_minutes_old_and_a_hand_tagged_one_never() -> None:
    world = World()
    [holder] = world.started()
    tags = {"spotproof:stack": STACK, "spotproof:run": "mini"}
    world.ec2.tag("i-0fffffffffffffff1", tags={**tags, "spotproof:launch": "1"})
    world.ec2.tag("i-0fffffffffffffff2", tags=tags)
    minutes(world, 8, beating=(holder,))
    assert world.ec2.terminated == []
    minutes(world, 5, beating=(holder,))
    assert world.ec2.terminated == ["i-0fffffffffffffff1"]
    assert world.meter.total(Metric.ORPHANS_ENDED) == 1


def test_an_instance_of_a_launch_that_is_unfinished_is_adopted_and_not_an_orphan() -> None:
    world = World()
    [lost] = world.started()
    world.ec2.fail("create_fleet", "timeout")
    world.deliver(notice(lost, world.clock()))
    assert world.slot().successor_instance == NO_INSTANCE
    world.ec2.honours_tokens = True
    minutes(world, 1, beating=(lost,))
    assert world.slot().successor_instance not in (None, NO_INSTANCE)
    assert len(world.ec2.instances) == 2


def test_a_surplus_instance_is_ended_at_once() -> None:
    world = World()
    world.submit()
    world.ec2.extra = 1
    world.tick()
    assert [one.instance for one in world.ec2.alive()] == [world.slot().successor_instance]
    assert world.meter.total(Metric.SURPLUS_ENDED) == 1


def test_an_unfinished_launch_of_a_paused_run_is_adopted_and_ended_not_replayed() -> None:
    world = World()
    [lost] = world.started()
    world.ec2.fail("create_fleet", "timeout")
    world.deliver(notice(lost, world.clock()))
    world.pause("mini")
    world.flushed("mini", lost, step=1)
    for _ in range(3):
        world.clock.advance(240)
        minutes(world, 1)
    assert (world.ec2.count("create_fleet"), world.ec2.alive()) == (2, [])
    [_, launch] = world.stores.launches.recent("mini")
    assert launch.state is LaunchState.CLOSED


def test_a_complete_checkpoint_whose_agents_died_is_committed(tmp_path: Path) -> None:
    world = World(folder=tmp_path)
    [holder] = world.started()
    part = _part(step=40)
    data = encode(part)
    world.stores.objects.put(s3keys.part("mini", 1, 40, 0), data, digest=digest_of(data))
    world.stores.checkpoints.add_part(part, kind=SaveKind.FLUSH, now=int(world.clock()))
    minutes(world, 1, beating=(holder,))
    assert world.stores.pointers.read("mini") is None, "its agents get their time first"
    minutes(world, 2, beating=(holder,))
    pointer = world.stores.pointers.read("mini")
    assert pointer is not None
    assert (pointer.generation, pointer.step) == (1, 40)
    assert world.stores.objects.get(pointer.manifest_key, digest=pointer.manifest_digest)


def _part(*, step: int) -> Part:
    file = File(name="__0_0.distcp", chunks=(Chunk(digest="a" * 64, bytes=8),))
    receipt = Receipt(rank=0, step=step, samples=0, sample_chain="", state_digest="b" * 64)
    return Part(
        run="mini", generation=1, step=step, rank=0, world=1, image=file, layout=file, metadata=None, receipt=receipt
    )


def test_a_flush_that_failed_is_counted_when_the_successor_has_joined() -> None:
    world = World()
    [lost] = world.started()
    world.deliver(notice(lost, world.clock()))
    world.beat("mini", lost, NodePhase.DRAINING, flush=FlushOutcome.FAILED)
    world.boot()
    world.join()
    world.beat("mini", str(world.slot().successor_instance))
    minutes(world, 1)
    assert (world.meter.total(Metric.FLUSHES_FAILED), world.meter.total(Metric.FLUSHES_COMMITTED)) == (1, 0)


def test_a_refused_termination_keeps_nothing_else_from_being_done_and_is_not_forgotten() -> None:
    world = World()
    world.submit()
    world.ec2.extra = 1
    world.ec2.fail("terminate_instances", "UnauthorizedOperation")
    [failure] = world.tick().values()
    assert "UnauthorizedOperation" in str(failure)
    assert world.slot().successor_instance not in (None, NO_INSTANCE)
    [launch] = world.stores.launches.recent("mini")
    assert launch.state is LaunchState.CLOSED
    world.boot()
    minutes(world, 12, beating=(str(world.slot().successor_instance),))
    assert [one.instance for one in world.ec2.alive()] == [world.slot().successor_instance]


def test_the_stacks_launches_of_an_hour_are_a_budget_that_pauses_with_its_cause() -> None:
    world = World()
    world.submit("other")
    world.tick()
    count = world.stores.pools.counting("us-east-1", hour=int(world.clock()) // 3600, limit=200, begun=True)
    for _ in range(199):
        world.table.write(count)
    world.submit()
    world.tick()
    assert (world.head().status, world.head().cause) == (RunStatus.PAUSED, Cause.BUDGET)
    assert world.stores.launches.recent("mini") == ()
    world.clock.advance(3600)
    world.stores.heads.move(world.head(), RunStatus.ACTIVE, now=int(world.clock()))
    world.stores.live.hasten("mini", due_at=0)
    world.tick()
    assert len(world.stores.launches.recent("mini")) == 1


def test_a_node_that_joins_before_ec2_shows_it_is_not_taken_for_gone() -> None:
    world = World()
    world.submit()
    world.tick()
    world.ec2.invisible_s = 100  # as seen by DescribeInstances
    world.boot()
    world.join()
    world.beat_all()
    world.tick(after_s=50)
    slot = world.slot()
    assert (slot.incarnation, slot.holder_incarnation, slot.successor_instance) == (1, 1, None)


def test_the_breaker_stays_open_while_beats_return_one_by_one() -> None:
    world = World()
    holders = world.started(slots=6)
    world.beat_all()
    minutes(world, 2)
    minutes(world, 1, beating=tuple(holders[:3]))
    assert [slot.incarnation for slot in world.slots()] == [1] * 6
    for _ in range(3):
        minutes(world, 1, beating=tuple(holders[:3]))
    assert [slot.incarnation for slot in world.slots()] == [1, 1, 1, 2, 2, 2], "those that never came back are lost"

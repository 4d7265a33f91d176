"""Nodes that are well and have to go: prewarmed successors, storms of advice, planned moves, ends of blocks, drills."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from lambdas.decisions.facts import Facts, Loss
from lambdas.decisions.losses import claim_of
from spotproof.contract import keys
from spotproof.contract.history import HistoryKind
from spotproof.contract.items import NEVER, NO_INSTANCE
from spotproof.contract.metrics import Metric
from spotproof.contract.orders import slots_of
from spotproof.contract.runspec import Signals
from spotproof.contract.states import Cause, FlushOutcome, NodePhase, NoticeKind, RunStatus
from spotproof.errors import Lost
from spotproof.store.table import Update
from tests.fakes.control import World, advice, event, notice, state

PREWARM = Signals(prewarm=True, prewarm_keep_s=900, storm_after=2)


def prewarmed(world: World, **fields: Any) -> tuple[str, str]:
    """A run whose holder was advised: the holder and the successor that is parked beside it."""
    [holder] = world.started(signals=PREWARM, **fields)
    world.deliver(advice(holder, world.clock()))
    world.boot()
    successor = str(world.slot().successor_instance)
    world.beat("mini", holder)
    world.beat("mini", successor, NodePhase.PARKED)
    return holder, successor


def leavers(world: World) -> frozenset[int]:
    return slots_of(world.head().order_leavers or "0")


def look(world: World, *others: str) -> None:
    """A minute passes, everybody beats as before, and the sweep looks."""
    for slot in world.slots():
        for instance, phase in (
            (slot.holder_instance, NodePhase.TRAINING),
            (slot.successor_instance, NodePhase.PARKED),
        ):
            if instance not in (None, NO_INSTANCE, *others) and world.ec2.instances[str(instance)].is_alive:
                world.beat("mini", str(instance), phase)
    world.tick()


# ------------------------------------------------------------------------------------------------------------- prewarm
def test_advice_starts_nothing_unless_the_run_wants_it() -> None:
    world = World()
    [holder] = world.started()
    world.deliver(advice(holder, world.clock()))
    assert (len(world.ssm.sent), leavers(world), world.slot().successor_instance) == (1, frozenset(), None)
    assert world.meter.total(Metric.ADVICE) == 1


def test_a_prewarmed_successor_waits_and_its_holder_is_not_told_to_leave() -> None:
    world = World()
    holder, successor = prewarmed(world)
    slot = world.slot()
    assert (slot.holder_instance, slot.cause, slot.waits_for_notice) == (holder, Cause.REBALANCE, True)
    assert slot.deadline_at == NEVER
    for _ in range(5):
        look(world)
    assert world.slot() == slot
    assert (leavers(world), world.ec2.terminated, world.ec2.count("create_fleet")) == (frozenset(), [], 2)
    assert {holder, successor} == {one.instance for one in world.ec2.alive()}


def test_the_same_advice_again_starts_nothing_again() -> None:
    world = World()
    holder, _ = prewarmed(world)
    world.deliver(advice(holder, world.clock()), advice(holder, world.clock()))
    world.tick()
    assert world.ec2.count("create_fleet") == 2


def test_the_notice_releases_the_successor_and_launches_nothing() -> None:
    world = World()
    holder, successor = prewarmed(world)
    world.deliver(notice(holder, world.clock()))
    slot = world.slot()
    assert (slot.waits_for_notice, slot.deadline_at, slot.cause) == (
        None,
        int(world.clock()) + 120,
        Cause.INTERRUPTION,
    )
    assert (slot.successor_instance, leavers(world)) == (successor, frozenset({0}))
    assert world.ec2.count("create_fleet") == 2
    assert world.meter.total(Metric.INTERRUPTIONS) == 1
    world.flushed("mini", holder, 7)
    world.join()
    world.tick()
    assert (world.slot().holder_instance, world.slot().waits_for_notice) == (successor, None)


def test_a_notice_twice_counts_once() -> None:
    world = World()
    holder, _ = prewarmed(world)
    world.deliver(notice(holder, world.clock()))
    released, sent = world.slot(), len(world.ssm.sent)
    world.deliver(notice(holder, world.clock()))
    assert (world.slot(), len(world.ssm.sent), world.meter.total(Metric.INTERRUPTIONS)) == (released, sent, 1)


@pytest.mark.parametrize("told", ["by an event", "by nobody"])
def test_a_holder_that_goes_without_notice_is_succeeded_at_once(told: str) -> None:
    world = World()
    holder, successor = prewarmed(world)
    world.ec2.instances[holder].state = "terminated"
    if told == "by an event":
        world.deliver(state(holder, world.clock(), "terminated"))
    else:
        look(world)
    slot = world.slot()
    assert (slot.successor_instance, slot.waits_for_notice, slot.deadline_at) == (successor, None, int(world.clock()))
    assert world.ec2.count("create_fleet") == 2
    assert world.meter.total(Metric.LOSSES_WITHOUT_NOTICE) == 1


def test_a_holder_that_falls_silent_is_succeeded() -> None:
    world = World()
    holder, _ = prewarmed(world)
    look(world, holder)
    look(world, holder)
    slot = world.slot()
    assert (slot.waits_for_notice, slot.cause) == (None, Cause.SILENCE)


def test_without_a_notice_the_extra_node_ends_and_the_holder_goes_on() -> None:
    world = World()
    holder, successor = prewarmed(world)
    world.clock.advance(860)
    look(world)
    slot = world.slot()
    assert (slot.holder_instance, slot.successor_instance, slot.waits_for_notice) == (holder, None, None)
    assert world.ec2.terminated == [successor]
    assert HistoryKind.SURPLUS_ENDED in world.words()
    world.deliver(notice(holder, world.clock()))
    assert world.slot().successor_instance not in (None, NO_INSTANCE, successor)


def test_a_notice_in_the_moment_of_the_withdrawal_wins_or_claims_anew() -> None:
    world = World()
    holder, successor = prewarmed(world)
    seen = world.slot()
    world.deliver(notice(holder, world.clock()))  # after the sweep has looked, before it acts
    with pytest.raises(Lost):
        world.stores.slots.withdraw(seen)
    assert world.slot().successor_instance == successor


def test_an_extra_node_that_is_interrupted_itself_is_not_launched_again() -> None:
    world = World()
    holder, successor = prewarmed(world)
    world.deliver(notice(successor, world.clock()))
    look(world)
    assert (world.slot().holder_instance, world.slot().successor_instance) == (holder, None)
    assert world.ec2.count("create_fleet") == 2


@pytest.mark.parametrize("fate", ["gone", "silent", "never joined"])
def test_the_sweep_lets_an_extra_node_go_that_has_gone_itself(fate: str) -> None:
    world = World()
    [holder] = world.started(signals=Signals(prewarm=True, prewarm_keep_s=10**6))
    world.deliver(advice(holder, world.clock()))
    world.boot()
    successor = str(world.slot().successor_instance)
    if fate != "never joined":
        world.beat("mini", successor, NodePhase.PARKED)
    if fate == "gone":
        world.ec2.instances[successor].state = "terminated"
    world.clock.advance(700 if fate == "never joined" else 0)
    for _ in range(2):
        look(world, successor)
    slot = world.slot()
    assert (slot.holder_instance, slot.successor_instance, world.ec2.count("create_fleet")) == (holder, None, 2)
    assert (successor in world.ec2.terminated) is (fate != "gone")


def test_a_holder_that_heard_its_notice_alone_is_succeeded() -> None:
    """EventBridge was silent: the node's own metadata told it, and it has flushed and drains."""
    world = World()
    holder, _ = prewarmed(world)
    world.flushed("mini", holder, 7)
    world.tick()
    assert world.slot().waits_for_notice is None


def test_a_notice_whose_claim_loses_to_a_prewarm_releases_it() -> None:
    """Both have seen the slot without a successor; the prewarm was faster."""
    world = World()
    [holder] = world.started(signals=PREWARM)
    seen = world.slot()
    now = int(world.clock())
    facts = Facts(run="mini", stack="prod", region="us-east-1", now=now, head=world.head(), slots=(seen,))
    loss = Loss(instance=holder, slot=0, cause=Cause.INTERRUPTION, at=now, deadline_at=now + 120)
    world.deliver(advice(holder, world.clock()))
    world.control._apply((claim_of(facts, seen, loss),))
    slot = world.slot()
    assert (slot.waits_for_notice, slot.deadline_at, slot.incarnation) == (None, now + 120, seen.incarnation + 1)


def test_a_storm_of_advice_starts_a_few_and_is_said_once() -> None:
    world = World()
    nodes = world.started(slots=6, signals=PREWARM)
    for node in nodes:
        world.beat("mini", node)
        world.deliver(advice(node, world.clock()))
    waiting = [slot for slot in world.slots() if slot.waits_for_notice]
    assert (len(waiting), world.meter.total(Metric.PREWARMED)) == (2, 2)
    storms = [said for said in world.sns.said if "storm" in said["Subject"]]
    assert (len(storms), world.meter.total(Metric.ADVICE_STORMS)) == (1, 1)
    assert world.ec2.terminated == []
    world.clock.advance(601)
    for node in nodes:
        world.beat("mini", node)
    world.deliver(*(advice(node, world.clock()) for node in nodes))
    assert len([slot for slot in world.slots() if slot.waits_for_notice]) == 4
    assert len([said for said in world.sns.said if "storm" in said["Subject"]]) == 1


# --------------------------------------------------------------------------------------------------------------- moves
def health(*instances: str, at: float, starts: str, code: str) -> dict[str, Any]:
    return {
        "version": "0",
        "id": f"event-health-{at}",
        "detail-type": "AWS Health Event",
        "source": "aws.health",
        "account": "111122223333",
        "time": "2026-05-04T10:00:00Z",
        "region": "us-east-1",
        "resources": list(instances),
        "detail": {
            "service": "EC2",
            "eventTypeCode": code,
            "eventTypeCategory": "scheduledChange",
            "startTime": starts,
            "affectedEntities": [{"entityValue": one} for one in instances],
        },
    }


REBOOT = "AWS_EC2_INSTANCE_REBOOT_MAINTENANCE_SCHEDULED"
RETIRED = "AWS_EC2_PERSISTENT_INSTANCE_RETIREMENT_SCHEDULED"


def test_a_move_flushes_when_the_successor_is_ready_and_ends_the_old_node() -> None:
    world = World()
    [holder] = world.started()
    world.deliver(health(holder, at=world.clock(), starts="Mon, 18 May 2026 06:00:00 GMT", code=RETIRED))
    slot = world.slot()
    assert (slot.cause, slot.waits_for_notice) == (Cause.MAINTENANCE, True)
    assert leavers(world) == frozenset()  # an extra checkpoint, and nobody leaves yet
    world.boot()
    successor = str(world.slot().successor_instance)
    world.beat("mini", holder)
    world.beat("mini", successor, NodePhase.PREPARING)
    world.clock.advance(60)
    world.control.handle({"repair": '{"repair": "mini"}'}, until=world.clock() + 60)
    assert world.slot().waits_for_notice, "it is not ready"
    sent = len(world.ssm.sent)
    look(world)
    slot = world.slot()
    assert (slot.waits_for_notice, slot.deadline_at, leavers(world)) == (
        None,
        int(world.clock()) + 120,
        frozenset({0}),
    )
    assert len(world.ssm.sent) == sent + 1
    world.flushed("mini", holder, 7)
    world.join()
    assert world.ec2.terminated == []
    world.tick()
    assert (world.slot().holder_instance, world.ec2.terminated) == (successor, [holder])


def test_a_date_that_is_far_is_kept_in_the_slot_and_the_move_begins_an_hour_before() -> None:
    world = World()
    [holder] = world.started()
    starts = int(world.clock()) + 5 * 3600
    moment = "2026-05-04T15:02:00Z"  # two minutes have passed since 10:00
    planned = health(holder, at=world.clock(), starts=moment, code=REBOOT)
    world.deliver(planned)
    world.deliver(planned)
    slot = world.slot()
    assert (slot.move_instance, slot.move_before) == (holder, starts)
    assert (slot.move_at, slot.successor_instance, world.ssm.sent) == (starts - 3600, None, [])
    assert len([said for said in world.sns.said if "has to go" in said["Subject"]]) == 1
    world.clock.now = starts - 3600 - 61
    look(world)
    assert world.slot().successor_instance is None
    look(world)
    slot = world.slot()
    assert (slot.cause, slot.waits_for_notice, slot.deadline_at) == (Cause.MAINTENANCE, True, starts)
    assert slot.successor_instance not in (None, NO_INSTANCE)


def test_the_end_of_a_block_is_not_forgotten_because_a_successor_was_prewarmed() -> None:
    world = World()
    holder, _ = prewarmed(world)
    world.ec2.instances[holder].reservation = "cr-1"
    world.deliver(block("cr-1", world.clock(), "2026-05-04T12:42:00Z"))
    assert (world.slot().cause, world.slot().move_instance) == (Cause.REBALANCE, holder)
    world.clock.advance(900)
    look(world)  # no notice has come: the prewarmed node ends
    assert world.slot().successor_instance is None
    look(world)
    slot = world.slot()
    assert (slot.cause, slot.waits_for_notice) == (Cause.BLOCK_EXPIRY, True)


def test_a_run_that_wants_no_nodes_keeps_the_date() -> None:
    world = World()
    [holder] = world.started()
    world.pause("mini", RunStatus.BLOCKED)
    world.deliver(health(holder, at=world.clock(), starts="2026-05-04T10:30:00Z", code=RETIRED))
    assert (world.slot().successor_instance, world.slot().move_instance) == (None, holder)
    world.stores.heads.move(world.head(), RunStatus.ACTIVE, cause=Cause.USER, now=int(world.clock()))
    world.clock.advance(300)
    look(world)
    assert (world.slot().cause, world.slot().waits_for_notice) == (Cause.MAINTENANCE, True)


def minutes(world: World, count: int) -> None:
    """The sweep as it is: resting runs have their turn every five minutes."""
    for _ in range(count):
        look(world)


def test_a_node_of_a_blocked_run_is_told_to_save_before_its_date() -> None:
    world = World()
    [holder] = world.started()
    world.pause("mini", RunStatus.BLOCKED)
    minutes(world, 6)
    assert world.stores.live.watched() == ()
    starts = datetime.fromtimestamp(world.clock() + 1800, tz=UTC)
    world.deliver(health(holder, at=world.clock(), starts=starts.isoformat(), code=REBOOT))
    minutes(world, 25)
    assert leavers(world) == frozenset(), "an extra checkpoint, and nobody leaves yet"
    minutes(world, 2)
    assert (leavers(world), world.head().order_deadline_at) == (frozenset({0}), int(starts.timestamp()))
    order = world.head().order
    minutes(world, 2)
    assert (world.head().order, world.slot().successor_instance) == (order, None)


def test_failing_hardware_of_a_blocked_run_gets_its_extra_checkpoint() -> None:
    world = World()
    [holder] = world.started()
    world.pause("mini", RunStatus.BLOCKED)
    world.deliver(health(holder, at=world.clock(), starts="Mon, 18 May 2026 06:00:00 GMT", code=RETIRED))
    assert (world.head().order_kind, leavers(world)) == (NoticeKind.MAINTENANCE, frozenset())
    assert world.slot().successor_instance is None


def test_a_date_that_is_near_wakes_a_run_that_rests() -> None:
    world = World()
    [holder] = world.started()
    world.pause("mini", RunStatus.BLOCKED)
    minutes(world, 6)
    starts = datetime.fromtimestamp(world.clock() + 230, tz=UTC)
    world.deliver(health(holder, at=world.clock(), starts=starts.isoformat(), code=REBOOT))
    world.tick(after_s=30)
    assert (leavers(world), world.head().order_deadline_at) == (frozenset({0}), int(starts.timestamp()))


def test_a_date_that_passed_while_the_run_was_blocked_is_none_when_it_goes_on() -> None:
    world = World()
    [holder] = world.started()
    world.pause("mini", RunStatus.BLOCKED)
    starts = datetime.fromtimestamp(world.clock() + 1800, tz=UTC)
    world.deliver(health(holder, at=world.clock(), starts=starts.isoformat(), code=REBOOT))
    world.clock.advance(1801)
    world.stores.heads.move(world.head(), RunStatus.ACTIVE, cause=Cause.USER, now=int(world.clock()))
    look(world)
    assert (world.slot().cause, world.slot().waits_for_notice, world.slot().deadline_at) == (
        Cause.MAINTENANCE,
        True,
        NEVER,
    ), "it is well, and is not replaced before it has saved"


def test_a_run_that_does_not_want_to_be_moved_is_only_told() -> None:
    world = World()
    [holder] = world.started(signals=Signals(moves=False))
    world.deliver(health(holder, at=world.clock(), starts="2026-05-04T10:30:00Z", code=RETIRED))
    world.clock.advance(3600)
    look(world)
    assert (world.slot().successor_instance, world.ec2.count("create_fleet")) == (None, 1)
    [said] = [said for said in world.sns.said if "has to go" in said["Subject"]]
    assert "not moved" in said["Message"]


def test_the_order_of_a_look_that_was_cut_off_is_not_given_again() -> None:
    world = World()
    [holder] = world.started()
    world.deliver(health(holder, at=world.clock(), starts="Mon, 18 May 2026 06:00:00 GMT", code=RETIRED))
    world.boot()
    bound = world.slot()
    look(world)
    ordered, sent = world.head(), len(world.ssm.sent)
    # What the cut left: the order stands, the successor has not been released.
    waits = Update(key=keys.slot("mini", 0), set={"waits_for_notice": True, "deadline_at": bound.deadline_at})
    world.table.write(waits)
    look(world)
    assert (world.head().order, len(world.ssm.sent)) == (ordered.order, sent)
    assert (world.slot().waits_for_notice, world.slot().deadline_at) == (None, ordered.order_deadline_at)


def test_a_lost_successor_of_a_move_is_replaced_and_waits_as_well() -> None:
    world = World()
    [holder] = world.started()
    world.deliver(health(holder, at=world.clock(), starts="Mon, 18 May 2026 06:00:00 GMT", code=RETIRED))
    world.boot()
    first = str(world.slot().successor_instance)
    world.deliver(notice(first, world.clock()))
    slot = world.slot()
    assert slot.successor_instance not in (first, None, NO_INSTANCE)
    assert (slot.cause, slot.waits_for_notice, slot.holder_instance) == (Cause.MAINTENANCE, True, holder)


def test_a_standing_order_that_meant_the_node_before_does_not_release_the_successor_of_this_one() -> None:
    world = World()
    [first] = world.started()
    world.deliver(health(first, at=world.clock(), starts="Mon, 18 May 2026 06:00:00 GMT", code=RETIRED))
    world.boot()
    look(world)
    world.flushed("mini", first, 7)
    world.join()
    look(world, first)
    second, order = str(world.slot().holder_instance), world.head().order
    world.deliver(health(second, at=world.clock(), starts="Mon, 18 May 2026 06:00:00 GMT", code=RETIRED))
    world.boot()
    look(world)
    head = world.head()
    assert (head.order_at, leavers(world)) == (int(world.clock()), frozenset({0}))
    assert head.order != order
    assert world.slot().deadline_at == head.order_deadline_at


def test_no_order_names_the_place_of_a_holder_that_is_lost_while_its_successor_is_ready() -> None:
    world = World()
    [holder] = world.started()
    world.deliver(health(holder, at=world.clock(), starts="Mon, 18 May 2026 06:00:00 GMT", code=RETIRED))
    world.boot()
    world.beat("mini", str(world.slot().successor_instance), NodePhase.PARKED)
    ordered = world.head().order
    world.beat("mini", holder, NodePhase.DRAINING, flush=FlushOutcome.COMMITTED, flush_step=3)
    world.tick()
    assert (world.slot().waits_for_notice, world.slot().cause) == (None, Cause.DISAPPEARED)
    assert (world.head().order, leavers(world)) == (ordered, frozenset())


def test_a_failed_holder_ends_the_run_although_a_successor_waits() -> None:
    world = World()
    holder, _ = prewarmed(world)
    world.beat("mini", holder, NodePhase.FAILED, generation=1, exit_code=1)
    world.tick()
    assert world.head().status is RunStatus.FAILED


# -------------------------------------------------------------------------------------------------------------- blocks
def block(reservation: str, at: float, ends: str) -> dict[str, Any]:
    made = event("Capacity Block Expiration Warning", instance="none", at=at)
    made["detail"] = {"capacity-reservation-id": reservation, "end-date": ends}
    return made


def test_a_block_is_replaced_early_and_flushed_late_all_nodes_together() -> None:
    world = World()
    a, b = world.started(slots=2)
    c = world.ec2.tag("i-0ffffffffffffff01", tags={"Name": "not ours"}, reservation="cr-1")
    for instance in (a, b):
        world.ec2.instances[instance].reservation = "cr-1"
    sent = len(world.ssm.sent)
    world.deliver(block("cr-1", world.clock(), "2026-05-04T10:42:00Z"))
    deadline = int(world.clock()) + 10 * 60  # 10:12: EC2 begins to take its instances 30 minutes before the end
    slots = world.slots()
    assert {slot.deadline_at for slot in slots} == {deadline}
    assert {(slot.cause, slot.waits_for_notice) for slot in slots} == {(Cause.BLOCK_EXPIRY, True)}
    assert (len(world.ssm.sent), world.ec2.count("create_fleet")) == (sent, 2)
    world.boot()
    look(world, str(slots[1].successor_instance))
    assert leavers(world) == frozenset(), "one of two is ready"
    look(world)
    assert leavers(world) == frozenset({0, 1})
    assert {slot.waits_for_notice for slot in world.slots()} == {None}
    assert c.state == "running"


def test_a_block_without_a_successor_in_time_flushes_before_its_end() -> None:
    world = World()
    [holder] = world.started()
    world.ec2.instances[holder].reservation = "cr-1"
    world.ec2.refused = {
        f"{kind}#{zone}#spot": "InsufficientInstanceCapacity"
        for kind in ("g5.xlarge", "g6.xlarge")
        for zone in ("us-east-1a", "us-east-1b", "us-east-1c")
    }
    world.deliver(block("cr-1", world.clock(), "2026-05-04T10:42:00Z"))
    deadline = int(world.clock()) + 10 * 60
    ordered_at = 0.0
    while world.clock() < deadline and not ordered_at:
        look(world)
        ordered_at = world.clock() if leavers(world) == frozenset({0}) else 0.0
    assert 120 <= deadline - ordered_at <= 240
    assert world.head().order_deadline_at == deadline


# --------------------------------------------------------------------------------------------------------------- drill
def drill(instance: str, at: float, notice_s: int = 60) -> dict[str, Any]:
    made = event("Spotproof Drill", instance=instance, at=at, **{"notice-s": notice_s})
    return {**made, "source": "spotproof.drill"}


def test_a_drill_takes_the_way_of_a_notice_and_the_old_node_is_ended_by_us() -> None:
    world = World()
    [holder] = world.started()
    world.deliver(drill(holder, world.clock()))
    slot = world.slot()
    assert (slot.cause, slot.deadline_at, leavers(world)) == (Cause.DRILL, int(world.clock()) + 60, frozenset({0}))
    assert slot.lost_pool is None, "the pool has done nothing"
    world.boot()
    world.flushed("mini", holder, 9)
    world.join()
    world.tick()
    assert (world.slot().holder_instance, world.ec2.terminated) == (slot.successor_instance, [holder])
    told = [one for one in world.told() if one.what == HistoryKind.FLUSHED]
    assert [(one.step, one.detail) for one in told] == [(9, FlushOutcome.COMMITTED)]


def test_a_hand_tagged_node_is_drilled_and_never_ended() -> None:
    world = World()
    [holder] = world.started()
    del world.ec2.instances[holder].tags["spotproof:launch"]
    world.deliver(drill(holder, world.clock()))
    world.boot()
    world.flushed("mini", holder, 9)
    world.join()
    world.tick()
    world.clock.advance(1200)
    world.tick()
    assert world.slot().holder_instance != holder
    assert world.ec2.terminated == []


@pytest.mark.parametrize("joined", [False, True])
def test_a_drilled_successor_is_ended_by_the_next_look_unless_it_has_joined(joined: bool) -> None:
    world = World()
    [holder] = world.started()
    world.deliver(notice(holder, world.clock()))
    world.boot()
    first = str(world.slot().successor_instance)
    seen = world.slot()
    if joined:
        world.join()
        now = int(world.clock())
        world.stores.slots.claim(seen, first, cause=Cause.DRILL, now=now, deadline_at=now + 60)
    else:
        world.deliver(drill(first, world.clock()))
    world.ec2.instances[holder].state = "terminated"
    world.beat("mini", first, NodePhase.PREPARING)
    world.tick()
    assert world.slot().incarnation == 3
    assert world.ec2.terminated == ([] if joined else [first])

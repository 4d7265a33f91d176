"""Where features meet: what each does alone is tested elsewhere, here is what one does while another is under way."""

from __future__ import annotations

import pytest

from spotproof.cli.lifecycle import RESUME, carry_out
from spotproof.contract import tags
from spotproof.contract.orders import slots_of
from spotproof.contract.runspec import Budgets, MarketPolicy, Pools, Signals
from spotproof.contract.states import Cause, FlushOutcome, NodePhase, RunStatus
from spotproof.store.live import LiveIndex
from tests.fakes.control import STACK, SUBNETS, World, advice, notice, state

MINE = "i-0ffffffffffffff01"


def leavers(world: World) -> frozenset[int]:
    return slots_of(world.head().order_leavers or "0")


def resume(world: World) -> None:
    carry_out("mini", world.table, RESUME, reason="", now=int(world.clock()))


def test_a_run_that_is_resumed_while_a_look_forgets_it_is_looked_at_again(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    [holder] = world.started()
    world.pause("mini", RunStatus.FAILED)
    world.tick()
    world.ec2.instances[holder].state = "terminated"
    original = LiveIndex.remove

    def remove(self: LiveIndex, run: str) -> None:
        resume(world)  # a person, after this look has read the run
        original(self, run)

    monkeypatch.setattr(LiveIndex, "remove", remove)
    for _ in range(6):
        world.tick()
    assert world.head().status is RunStatus.ACTIVE
    assert world.stores.live.read("mini") is not None
    assert len(world.ec2.alive()) == 1


def test_a_run_that_failed_and_lost_its_node_goes_on_when_it_is_resumed() -> None:
    world = World()
    [holder] = world.started()
    world.beat("mini", holder, NodePhase.FAILED, exit_code=1, generation=1)
    world.ec2.instances[holder].state = "terminated"
    world.tick()
    assert world.head().status is RunStatus.FAILED
    world.tick()
    resume(world)
    world.tick()
    world.tick()
    assert world.head().status is RunStatus.ACTIVE
    assert len(world.ec2.alive()) == 1


def test_a_run_of_a_hand_tagged_node_that_failed_goes_on_when_it_is_resumed() -> None:
    world = World()
    world.submit()
    world.ec2.tag(MINE, tags={tags.STACK: STACK, tags.RUN: "mini"})
    world.tick()
    assert world.slot().successor_instance == MINE
    world.join()
    world.tick()
    assert world.slot().holder_instance == MINE
    world.beat("mini", MINE, NodePhase.FAILED, exit_code=1, generation=1)
    world.tick()
    assert world.head().status is RunStatus.FAILED
    world.tick()
    resume(world)
    world.tick()
    world.tick()
    assert world.head().status is RunStatus.ACTIVE
    assert MINE not in world.ec2.terminated
    assert len(world.ec2.alive()) == 2


def test_an_untagged_node_that_is_done_keeps_no_other_place_empty() -> None:
    world = World()
    [one, two] = world.started(slots=2)
    world.beat("mini", one, NodePhase.DONE, generation=1)
    world.beat("mini", two)
    world.clock.advance(300)
    world.ec2.instances[one].tags.pop(tags.RUN)
    world.beat("mini", two)
    world.tick()
    world.ec2.instances[two].state = "terminated"  # and no event tells
    world.tick()
    world.tick()
    assert world.slot(number=1).successor_instance is not None


def test_in_a_burst_a_node_whose_successor_is_prewarmed_is_named_too() -> None:
    world = World()
    nodes = world.started(slots=20, signals=Signals(prewarm=True))
    world.deliver(advice(nodes[15], world.clock()))
    world.boot()
    world.beat_all()
    world.clock.advance(200)
    world.beat_all()
    world.deliver(*(notice(one, world.clock()) for one in nodes[:9]))
    assert len(leavers(world)) == 9
    world.clock.advance(1)
    world.deliver(notice(nodes[15], world.clock()))
    assert not world.slot(number=15).waits_for_notice
    named = leavers(world)
    for _ in range(3):
        world.clock.advance(15)
        for number, body in enumerate(world.sqs.take()):
            world.control.handle({f"m{number}": body}, until=world.clock() + 60)
        named |= leavers(world)
    assert 15 in named


def test_a_way_back_to_spot_pauses_no_run_that_trains() -> None:
    world = World()
    kinds = ("g5.xlarge",)
    world.ec2.refused = {f"g5.xlarge#{zone}#spot": "InsufficientInstanceCapacity" for zone in SUBNETS.values()}
    pools = Pools(types=kinds, market=MarketPolicy.SPOT_THEN_ON_DEMAND, failback_after_s=300, cooldown_s=60)
    world.started(pools=pools, budgets=Budgets(recoveries=1))
    world.stores.heads.launched("mini", 99, recovered=True)  # the budget for recoveries is spent
    world.ec2.refused = {}
    for _ in range(12):
        world.beat_all()
        world.tick()
    assert world.head().status is RunStatus.ACTIVE
    assert [one.lifecycle for one in world.ec2.alive()] == ["on-demand"]


def test_a_move_that_is_due_does_not_wait_for_a_prewarmed_node_to_be_withdrawn() -> None:
    world = World()
    [holder] = world.started(signals=Signals(prewarm=True, prewarm_keep_s=7200))
    world.deliver(advice(holder, world.clock()))
    world.boot()
    world.beat("mini", holder)
    world.beat("mini", str(world.slot().successor_instance), NodePhase.PARKED)
    world.stores.slots.plan_move(world.slot(), holder, at=int(world.clock()) + 60, before=int(world.clock()) + 900)
    for _ in range(5):
        world.beat("mini", holder)
        world.beat("mini", str(world.slot().successor_instance), NodePhase.PARKED)
        world.tick()
    assert leavers(world) == {0}
    assert not world.slot().waits_for_notice


def test_a_late_notice_of_a_moved_node_does_not_tell_the_one_that_has_joined_to_leave() -> None:
    world = World()
    [holder] = world.started()
    date = int(world.clock()) + 900
    world.stores.slots.plan_move(world.slot(), holder, at=int(world.clock()), before=date)
    world.beat("mini", holder)
    world.tick()
    world.boot()
    successor = str(world.slot().successor_instance)
    world.clock.now = date + 11  # no look came: the successor joins when the date has passed
    world.join()
    world.deliver(notice(holder, world.clock()))
    assert leavers(world) == frozenset()
    assert world.slot().holder_instance == successor
    assert world.ec2.count("create_fleet") == 2


def test_a_prewarmed_node_and_its_holder_that_go_together_are_both_replaced() -> None:
    world = World()
    [holder] = world.started(signals=Signals(prewarm=True))
    world.deliver(advice(holder, world.clock()))
    world.boot()
    both = (holder, str(world.slot().successor_instance))
    world.beat_all()
    for one in both:
        world.ec2.instances[one].state = "terminated"
    world.deliver(*(state(one, world.clock(), "terminated") for one in both))
    for _ in range(3):
        world.tick()
    assert [one.instance for one in world.ec2.alive()] == [world.slot().successor_instance]
    assert not world.slot().waits_for_notice


def test_a_run_that_is_paused_while_a_node_moves_has_every_place_filled_when_it_goes_on() -> None:
    for refused in (False, True):
        world = World()
        [holder] = world.started(signals=Signals(prewarm=True))
        if refused:
            kinds = ("g5.xlarge", "g6.xlarge")
            world.ec2.refused = {
                f"{kind}#{zone}#spot": "InsufficientInstanceCapacity" for kind in kinds for zone in SUBNETS.values()
            }
        world.deliver(advice(holder, world.clock()))
        world.pause("mini")
        for _ in range(13):
            world.tick()
        assert world.ec2.alive() == []
        world.ec2.refused = {}
        resume(world)
        world.clock.advance(3 * 3600)
        for _ in range(3):
            world.tick()
        world.boot()
        world.join()
        world.tick()
        assert [one.instance for one in world.ec2.alive()] == [world.slot().holder_instance]


@pytest.mark.parametrize("cause", [Cause.DRILL, Cause.USER, Cause.BLOCK_EXPIRY])
def test_a_holder_that_trains_on_after_it_was_claimed_on_its_notice_is_told_by_the_next_look(cause: Cause) -> None:
    """The handler that claimed it died before the order, or before somebody was asked to come for it."""
    world = World()
    [holder, other] = world.started(slots=2)
    now = int(world.clock())
    world.stores.slots.claim(world.slot(), holder, cause=cause, now=now, deadline_at=now + 120)
    world.clock.advance(20)
    world.beat("mini", holder)
    world.beat("mini", other)
    world.tick(after_s=30)
    assert (leavers(world), world.head().order_deadline_at) == (frozenset({0}), now + 120)
    sent = len(world.ssm.sent)
    world.beat("mini", holder, NodePhase.FLUSHING, flush=FlushOutcome.PENDING)
    world.tick(after_s=30)
    assert (len(world.ssm.sent), world.slot().incarnation) == (sent, 2)


def test_a_holder_that_saves_already_or_has_not_beaten_since_is_not_told_again() -> None:
    world = World()
    [first, second] = world.started(slots=2)
    world.beat_all()
    now = int(world.clock())
    world.stores.slots.claim(world.slot(), first, cause=Cause.DRILL, now=now, deadline_at=now + 120)
    world.stores.slots.claim(world.slot(number=1), second, cause=Cause.DRILL, now=now, deadline_at=now + 120)
    world.clock.advance(20)
    world.beat("mini", second, NodePhase.FLUSHING, flush=FlushOutcome.PENDING)
    world.tick(after_s=30)
    assert (leavers(world), world.head().order) == (frozenset(), None)

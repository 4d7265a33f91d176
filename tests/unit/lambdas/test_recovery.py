"""One recovery through the real pipeline: notice, flush order, claim, launch, bind, join."""

from __future__ import annotations

from spotproof.contract.history import HistoryKind
from spotproof.contract.items import NO_INSTANCE
from spotproof.contract.orders import bitmap_of
from spotproof.contract.states import NoticeKind
from tests.fakes.control import World, notice, state


def test_the_first_launch_is_the_replacement_path() -> None:
    world = World()
    world.submit(slots=2)
    assert world.tick() == {}
    assert world.ec2.count("create_fleet") == 1
    slots = world.slots()
    assert [slot.successor_incarnation for slot in slots] == [1, 1]
    assert {slot.successor_instance for slot in slots} == set(world.ec2.instances)
    for slot in slots:
        member = world.member(str(slot.successor_instance))
        assert (member.slot, member.incarnation, member.launch) == (slot.slot, 1, 1)
        assert (member.instance_type, member.zone) == ("g5.xlarge", "us-east-1a")


def test_a_notice_is_flushed_claimed_and_replaced_at_once() -> None:
    world = World()
    [lost] = world.started()
    assert world.slot().holder_incarnation == 1
    at = world.clock()
    assert world.deliver(notice(lost, at)) == {}
    head, slot = world.head(), world.slot()
    assert (head.order_kind, head.order_leavers) == (NoticeKind.INTERRUPTION, bitmap_of(frozenset({0})))
    assert len(world.ssm.sent) == 1
    assert (slot.holder_instance, slot.incarnation, slot.successor_incarnation) == (lost, 2, 2)
    assert slot.successor_instance not in (None, NO_INSTANCE, lost)
    assert slot.deadline_at == int(at) + 120
    assert set(world.words()[-6:]) == {
        HistoryKind.FLUSH_ORDERED,
        HistoryKind.CLAIMED,
        HistoryKind.NOTICE,
        HistoryKind.LAUNCH_INTENDED,
        HistoryKind.BOUND,
        HistoryKind.LAUNCH_ANSWERED,
    }


def test_a_duplicate_and_the_end_of_the_node_change_nothing() -> None:
    world = World()
    [lost] = world.started()
    at = world.clock()
    world.deliver(notice(lost, at), notice(lost, at))
    before = (world.slot(), world.ec2.count("create_fleet"), len(world.ssm.sent))
    world.clock.advance(30)
    world.deliver(notice(lost, at))
    world.clock.advance(90)
    world.ec2.instances[lost].state = "terminated"
    world.deliver(state(lost, world.clock(), "shutting-down"), state(lost, world.clock(), "terminated"))
    assert (world.slot(), world.ec2.count("create_fleet"), len(world.ssm.sent)) == before


def test_the_successor_becomes_the_holder_when_its_membership_is_sealed() -> None:
    world = World()
    [lost] = world.started()
    world.deliver(notice(lost, world.clock()))
    world.flushed("mini", lost, step=40)
    world.boot()
    world.join()
    world.beat("mini", str(world.slot().successor_instance))
    world.tick()
    slot = world.slot()
    assert (slot.holder_incarnation, slot.successor_instance) == (2, None)
    assert slot.holder_instance != lost
    assert HistoryKind.FLUSHED in world.words()

"""What a node wrote last, and what its tags say, is read before its end counts as a loss."""

from __future__ import annotations

from spotproof.contract.states import NodePhase, RunStatus
from tests.fakes.control import STACK, World, notice, state

LAUNCHED = "i-0fffffffffffffff1"


def test_a_node_that_is_done_gets_no_successor_when_its_notice_comes_before_the_sweep() -> None:
    world = World()
    [holder] = world.started()
    world.beat("mini", holder, NodePhase.DONE, step=300)
    assert world.deliver(notice(holder, world.clock())) == {}
    world.tick()
    assert (world.head().status, world.ec2.count("create_fleet")) == (RunStatus.DONE, 1)


def test_a_trainer_that_gave_up_fails_the_run_even_if_a_notice_comes_before_the_sweep() -> None:
    world = World()
    [holder] = world.started()
    world.beat("mini", holder, NodePhase.FAILED, exit_code=1, generation=1)
    world.deliver(notice(holder, world.clock()))
    world.deliver(state(holder, world.clock(), "shutting-down"))
    world.tick()
    assert (world.head().status, world.ec2.count("create_fleet")) == (RunStatus.FAILED, 1)


def test_a_notice_for_what_was_launched_and_has_no_place_yet_is_not_taken_for_a_hand_tagged_one() -> None:
    world = World()
    [holder] = world.started()
    tags = {"spotproof:stack": STACK, "spotproof:run": "mini", "spotproof:launch": "1"}
    world.ec2.tag(LAUNCHED, tags=tags)
    assert world.deliver(notice(LAUNCHED, world.clock())) == {}
    assert (world.ssm.sent, world.sns.said) == ([], [])
    assert world.slot().holder_instance == holder


def test_a_launch_tag_that_is_no_number_is_nobodys_launch() -> None:
    world = World()
    [holder] = world.started()
    tags = {"spotproof:stack": STACK, "spotproof:run": "mini", "spotproof:launch": "\u00b2"}
    world.ec2.tag(LAUNCHED, tags=tags)
    for _ in range(12):
        world.beat("mini", holder)
        assert world.tick() == {}
    assert world.ec2.terminated == []


def test_a_launch_whose_instances_are_seen_is_adopted_without_asking_ec2_to_remember_the_token() -> None:
    world = World()
    [lost] = world.started()
    world.ec2.fail("create_fleet", "timeout")
    world.deliver(notice(lost, world.clock()))
    world.ec2.honours_tokens = False  # our outage outlasted EC2's memory
    world.tick(after_s=90_000)
    assert len(world.ec2.instances) == 2
    assert world.slot().successor_instance in world.ec2.instances

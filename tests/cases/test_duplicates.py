"""ST cases of the case book that are the control plane's."""

from __future__ import annotations

from itertools import permutations

import pytest

from spotproof.contract.states import FlushOutcome, NodePhase
from tests.fakes.control import World, notice

ORDERS = list(permutations(("X", "X again", "Y", "agent")))


@pytest.mark.parametrize("order", ORDERS, ids=[" ".join(order) for order in ORDERS])
def test_st_04_one_interruption_in_several_messages_is_one_recovery(order: tuple[str, ...]) -> None:
    assert len(ORDERS) == 24
    world = World()
    [lost] = world.started()
    at = world.clock()
    for step in order:
        if step == "agent":
            world.beat("mini", lost, NodePhase.DRAINING, flush=FlushOutcome.COMMITTED, flush_step=9)
        else:
            assert world.deliver({**notice(lost, at), "id": step.split()[0]}) == {}
    assert world.ec2.count("create_fleet") == 2  # the run's start and one replacement
    assert len({tuple(command["Parameters"]["Request"]) for command in world.ssm.sent}) == 1
    assert len(world.ssm.sent) == 1


def test_st_03_the_order_of_keys_is_no_difference() -> None:
    world = World()
    [lost] = world.started()
    event = notice(lost, world.clock())
    world.deliver(event)
    world.deliver(dict(reversed(list(event.items()))))
    assert world.ec2.count("create_fleet") == 2


def test_mn_02_a_worker_that_is_gone_without_a_word_is_replaced_by_the_sweep() -> None:
    world = World()
    head, worker = world.started(slots=2)
    world.beat_all()
    world.ec2.instances[worker].state = "terminated"
    world.beat("mini", head)
    world.tick()
    assert world.slot(number=0).successor_instance is None
    replaced = world.slot(number=1)
    assert (replaced.incarnation, world.ec2.count("create_fleet")) == (2, 2)


def test_mn_05_preemptions_while_recovering_eat_no_failure_budget() -> None:
    world = World()
    [lost] = world.started()
    for _ in range(3):
        world.deliver(notice(lost, world.clock()))
        world.clock.advance(20)
        lost = str(world.slot().successor_instance)
    assert world.head().node_faults == frozenset()
    assert world.head().status == "active"
    assert world.ec2.count("create_fleet") == 4


def test_mn_05_a_member_whose_trainer_failed_three_times_ends_the_run_and_its_nodes() -> None:
    world = World()
    [holder] = world.started()
    world.beat("mini", holder, NodePhase.FAILED, generation=1, exit_code=1)  # its agent has counted the three
    world.tick()
    assert (world.head().status, world.head().cause) == ("failed", "trainer-error")
    world.tick()
    assert (world.ec2.alive(), world.ec2.count("create_fleet")) == ([], 1)


def test_mn_05_nodes_that_fail_before_they_join_are_replaced_and_the_third_ends_the_run() -> None:
    world = World()
    world.submit()
    world.tick()
    for _ in range(3):
        world.boot()
        world.beat("mini", str(world.slot().successor_instance), NodePhase.FAILED, exit_code=1)
        world.tick()
    assert (world.head().status, world.ec2.count("create_fleet")) == ("failed", 3)
    assert world.head().cause == "node-fault", "no trainer has run"
    world.tick()
    assert world.ec2.alive() == []


def test_st_06_a_handler_that_gets_no_answer_twice_still_makes_one_replacement() -> None:
    world = World()
    [lost] = world.started()
    world.ec2.fail("create_fleet", "timeout", times=2)
    world.deliver(notice(lost, world.clock()))
    for _ in range(3):
        world.tick()
    assert len(world.ec2.instances) == 2
    assert world.slot().successor_instance not in (None, "none")

"""ST-01, ST-02: handlers that are cut off. No record says "in progress": the slot itself is the record."""

from __future__ import annotations

import json

import pytest

from spotproof.contract.items import NO_INSTANCE
from tests.fakes.control import World, notice
from tests.fakes.fuse import Fuse, FusedClient, FusedTable, Killed


@pytest.mark.parametrize("late_s", [0.0, 5.0, 400.0])
@pytest.mark.parametrize("after", [False, True])
def test_st_01_a_handler_killed_after_its_claim_is_finished_by_the_next_delivery(late_s: float, after: bool) -> None:
    world = World()
    [lost] = world.started()
    body = {"m": json.dumps(notice(lost, world.clock()))}
    fuse = Fuse(at=3, after=after)  # order, command, claim
    table, ec2, ssm = FusedTable(world.table, fuse), FusedClient(world.ec2, fuse), FusedClient(world.ssm, fuse)
    control = world.make_control(table, ec2, ssm, world.sqs)
    with pytest.raises(Killed):
        control.handle(body, until=world.clock() + 60)
    world.clock.advance(late_s)
    assert world.control.handle(body, until=world.clock() + 60) == {}
    assert world.slot().incarnation == 2
    assert world.slot().successor_instance not in (None, NO_INSTANCE)
    assert world.ec2.count("create_fleet") == 2  # the first node of the run, and one replacement


@pytest.mark.parametrize("remaining_s", [0, -5])
def test_st_02_without_time_left_the_claim_stands_and_the_next_look_goes_on(remaining_s: int) -> None:
    world = World()
    [lost] = world.started()
    body = {"m": json.dumps(notice(lost, world.clock()))}
    assert world.control.handle(body, until=world.clock() + remaining_s) == {}
    assert world.slot().successor_instance == NO_INSTANCE, "claimed; a launch that is cut off would bring all back"
    assert world.ec2.count("create_fleet") == 1
    [later] = world.sqs.take()
    world.clock.advance(world.sqs.delays[-1])
    assert world.control.handle({"later": later}, until=world.clock() + 60) == {}
    assert world.slot().successor_instance not in (None, NO_INSTANCE)
    assert world.control.handle(body, until=world.clock() + 60) == {}
    assert world.ec2.count("create_fleet") == 2

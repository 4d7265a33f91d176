"""Nothing is left running that nobody uses, however the run fares; what EC2 ends by itself is left to EC2."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from botocore.exceptions import ClientError

from spotproof.contract.states import NodePhase, RunStatus
from tests.fakes.control import STACK, World, notice

LOST_TRACK_OF = "i-0fffffffffffffff1"
PROTECTED = "i-0fffffffffffffff0"


@dataclass(slots=True)
class WithProtection:
    """EC2 where somebody has protected one instance from termination: it refuses every request that names it."""

    client: Any

    def __getattr__(self, name: str) -> Any:
        return getattr(self.client, name)

    def terminate_instances(self, **request: Any) -> Any:
        if PROTECTED in request["InstanceIds"]:
            raise ClientError({"Error": {"Code": "OperationNotPermitted", "Message": "m"}}, "TerminateInstances")
        return self.client.terminate_instances(**request)


def replaced(world: World, *, step: int, gone: bool = True) -> str:
    """The holder is interrupted, its successor joins after half a minute; returns who left."""
    lost = str(world.slot().holder_instance)
    world.deliver(notice(lost, world.clock()))
    world.flushed("mini", lost, step=step)
    world.boot()
    world.clock.advance(30)
    world.join()
    world.beat("mini", str(world.slot().successor_instance))
    world.tick(after_s=30)
    if gone:
        world.ec2.instances[lost].state = "terminated"
    return lost


def minutes(world: World, count: int) -> None:
    for _ in range(count):
        world.clock.advance(50)
        world.beat("mini", str(world.slot().holder_instance))
        world.tick(after_s=10)


def test_a_run_that_is_interrupted_every_five_minutes_still_ends_its_orphans() -> None:
    world = World()
    world.started()
    world.beat_all()
    tags = {"spotproof:stack": STACK, "spotproof:run": "mini", "spotproof:launch": "1"}
    world.ec2.tag(LOST_TRACK_OF, tags=tags)
    for step in range(1, 5):
        world.commit("mini", step)
        replaced(world, step=step)
        minutes(world, 4)
    assert world.ec2.terminated == [LOST_TRACK_OF]


def test_a_frozen_node_that_comes_back_is_ended_though_the_slot_moves_on_again_and_again() -> None:
    world = World()
    [frozen] = world.started()
    world.beat_all()
    for step in range(1, 5):
        world.commit("mini", step)
        replaced(world, step=step, gone=step > 1)
        minutes(world, 4)
    assert world.ec2.terminated == [frozen]


def test_an_interrupted_node_that_has_been_replaced_is_left_to_ec2() -> None:
    world = World()
    world.started()
    world.beat_all()
    minutes(world, 15)
    leaving = replaced(world, step=7, gone=False)
    minutes(world, 1)
    assert world.ec2.instances[leaving].state == "running"
    assert world.ec2.terminated == []


def test_a_run_that_finishes_while_it_is_blocked_is_done_and_its_node_is_ended() -> None:
    world = World()
    [holder] = world.started()
    world.beat_all()
    world.pause("mini", RunStatus.BLOCKED)
    world.beat("mini", holder, NodePhase.DONE, step=9)
    minutes_without_beats(world, 6)
    assert world.head().status is RunStatus.DONE
    assert world.ec2.terminated == [holder]


def minutes_without_beats(world: World, count: int) -> None:
    for _ in range(count):
        world.tick()


def test_an_instance_that_people_protect_keeps_no_other_one_alive_and_is_reported() -> None:
    world = World()
    world.started()
    world.beat_all()
    tags = {"spotproof:stack": STACK, "spotproof:run": "mini", "spotproof:launch": "1"}
    for orphan in (PROTECTED, LOST_TRACK_OF):
        world.ec2.tag(orphan, tags=tags)
    world.control = world.make_control(world.table, WithProtection(world.ec2), world.ssm, world.sqs)
    minutes(world, 10)
    world.beat("mini", str(world.slot().holder_instance))
    [failure] = world.tick().values()
    assert "OperationNotPermitted" in str(failure)
    assert world.ec2.terminated == [LOST_TRACK_OF]

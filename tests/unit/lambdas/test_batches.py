"""What the messages of one batch do to each other: nothing, as far as one can be worked on without the other."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from spotproof.contract.items import NO_INSTANCE
from tests.fakes.control import World, notice

STRANGER = "i-0fffffffffffffff9"


@dataclass(slots=True)
class Watched:
    """A client that says which call is about to be made."""

    client: Any
    before: Callable[[str], None]

    def __getattr__(self, name: str) -> Any:
        def call(**request: Any) -> Any:
            self.before(name)
            return getattr(self.client, name)(**request)

        return call


def test_an_unknown_instance_that_ec2_cannot_describe_now_costs_the_known_ones_nothing() -> None:
    world = World()
    [lost] = world.started()
    world.ec2.fail("describe_instances", "RequestLimitExceeded")
    failures = world.deliver(notice(STRANGER, world.clock()), notice(lost, world.clock()))
    assert set(failures) == {"message-0"}
    assert world.slot().incarnation == 2
    assert world.slot().successor_instance not in (None, NO_INSTANCE)


def test_every_run_of_a_batch_hears_of_its_notice_before_any_of_them_launches() -> None:
    world = World()
    lost = [world.started(run)[0] for run in ("one", "two", "three")]
    calls: list[str] = []
    ec2, ssm = Watched(world.ec2, calls.append), Watched(world.ssm, calls.append)
    control = world.make_control(world.table, ec2, ssm, world.sqs)
    assert world.deliver(*(notice(one, world.clock()) for one in lost), control=control) == {}
    assert calls == ["send_command"] * 3 + ["create_fleet"] * 3


def test_a_launch_that_takes_all_the_time_leaves_the_other_runs_claimed_and_due_and_fails_nothing() -> None:
    world = World()
    lost = [world.started(run)[0] for run in ("one", "two")]
    control = world.make_control(world.table, Watched(world.ec2, _slow(world)), world.ssm, world.sqs)
    assert world.deliver(*(notice(one, world.clock()) for one in lost), control=control) == {}
    assert [world.slot(run).incarnation for run in ("one", "two")] == [2, 2]
    assert world.slot("two").successor_instance == NO_INSTANCE
    world.tick()
    assert world.slot("two").successor_instance not in (None, NO_INSTANCE)


def test_a_repair_without_time_stays_due() -> None:
    world = World()
    for run in ("one", "two"):
        world.submit(run)
    control = world.make_control(world.table, Watched(world.ec2, _slow(world)), world.ssm, world.sqs)
    control.sweep()
    bodies = {str(number): body for number, body in enumerate(world.sqs.take())}
    assert control.handle(bodies, until=world.clock() + 60) == {}
    assert world.ec2.count("describe_instances") == 1, "the second one was not begun"
    world.tick()
    assert all(world.slot(run).successor_instance not in (None, NO_INSTANCE) for run in ("one", "two"))


def _slow(world: World) -> Callable[[str], None]:
    """CreateFleet takes 50 seconds."""
    return lambda call: world.clock.advance(50) if call == "create_fleet" else None

"""Losing orders that are forced: another handler acts between two reads of this one."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from lambdas.decisions import express
from spotproof.contract import keys
from spotproof.contract.items import NO_INSTANCE
from spotproof.contract.parse import repair_body
from spotproof.contract.states import Cause, LaunchState, RunStatus
from tests.fakes.control import World, notice


@dataclass(slots=True)
class Interrupted:
    """A table that lets somebody else act after the first query of a kind of item."""

    table: Any
    prefix: str
    act: Callable[[], None]
    acted: bool = field(default=False)

    def query(self, pk: str, **how: Any) -> Any:
        found = self.table.query(pk, **how)
        if how.get("prefix") == self.prefix and not self.acted:
            self.acted = True
            self.act()
        return found

    def __getattr__(self, name: str) -> Any:
        return getattr(self.table, name)


def test_a_node_that_another_handler_binds_while_repair_reads_is_no_orphan() -> None:
    world = World()
    world.submit()
    world.ec2.fail("create_fleet", "timeout")
    world.tick()
    [launched] = world.ec2.instances
    assert world.slot().successor_instance == NO_INSTANCE
    world.clock.advance(700)
    repair = {"other": json.dumps(repair_body("mini"))}

    def other() -> None:
        assert world.control.handle(repair, until=world.clock() + 60) == {}
        assert world.slot().successor_instance == launched
        assert world.stores.launches.recent("mini")[-1].state is LaunchState.CLOSED

    table = Interrupted(world.table, keys.SLOT_PREFIX, other)
    control = world.make_control(table, world.ec2, world.ssm, world.sqs)
    control.handle(repair, until=world.clock() + 60)
    assert table.acted
    assert world.ec2.terminated == []


CALLS = frozenset(
    {"get", "get_many", "put_many", "query", "write", "transact", "create_fleet", "send_command", "describe_instances"}
)


@dataclass(slots=True)
class Moment:
    """Between two calls of a handler, whatever they are to: `act` comes before call number `at`."""

    at: int
    act: Callable[[], None]
    calls: int = 0

    def __call__(self, target: Any) -> Any:
        return _Counted(self, target)


@dataclass(slots=True)
class _Counted:
    moment: Moment
    target: Any

    def __getattr__(self, name: str) -> Any:
        called = getattr(self.target, name)
        if name not in CALLS:
            return called

        def call(*values: Any, **named: Any) -> Any:
            self.moment.calls += 1
            if self.moment.calls == self.moment.at:
                self.moment.act()
            return called(*values, **named)

        return call


@pytest.mark.parametrize("status", [RunStatus.PAUSED, RunStatus.STOPPING, RunStatus.DONE, RunStatus.FAILED])
@pytest.mark.parametrize(
    ("short", "at"), [(True, at) for at in range(1, 32, 5)] + [(False, at) for at in range(1, 43, 6)]
)
def test_a_run_that_ends_between_two_calls_of_a_recovery_leaves_nothing_running(
    status: RunStatus, at: int, monkeypatch: pytest.MonkeyPatch, *, short: bool
) -> None:
    if not short:
        monkeypatch.setattr(express, "decide", lambda *_: None)
    world = World()
    [lost] = world.started()
    world.beat("mini", lost)
    moment = Moment(at=at, act=lambda: _moved(world, status))
    control = world.make_control(moment(world.table), moment(world.ec2), moment(world.ssm), world.sqs)
    world.deliver(notice(lost, world.clock()), control=control)
    assert moment.calls >= at
    world.clock.advance(120)
    world.ec2.instances[lost].state = "terminated"
    for _ in range(20):
        world.tick()
    assert world.ec2.alive() == []
    assert {launch.state for launch in world.stores.launches.recent("mini")} == {LaunchState.CLOSED}


def _moved(world: World, status: RunStatus) -> None:
    world.stores.heads.move(world.head(), status, cause=Cause.USER, now=int(world.clock()))

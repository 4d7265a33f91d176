"""Who is looked at, when, and whose silence counts: only time that was watched, second by second."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

import pytest

from spotproof.contract.states import RunStatus
from spotproof.errors import Unavailable
from spotproof.store.table import BulkTable
from tests.fakes.control import World, notice


@dataclass(slots=True)
class OutTable:
    """A table that answers nobody for a while."""

    inner: Any
    is_out: bool = False

    def __getattr__(self, name: str) -> Any:
        if self.is_out:
            raise Unavailable("the table is out")
        return getattr(self.inner, name)


@pytest.mark.parametrize("outage_s", [40, 60, 80, 100, 110])
@pytest.mark.parametrize("begins_s", [1, 20, 40, 58])
def test_a_healthy_node_is_not_silent_because_the_table_was_out(outage_s: int, begins_s: int) -> None:
    """Nodes beat every 15 s while the table answers; sweeps look each minute. A stack of one slot has no breaker."""
    world = World()
    [holder] = world.started()
    table = OutTable(world.table)
    control = world.make_control(table, world.ec2, world.ssm, world.sqs)
    later: list[tuple[float, str]] = []
    for second in range(1, 420):
        world.clock.advance(1)
        table.is_out = begins_s + 60 <= second < begins_s + 60 + outage_s
        if second % 15 == 7 and not table.is_out:
            world.beat("mini", holder)
        bodies = [body for at, body in later if at <= second]
        later = [(at, body) for at, body in later if at > second]
        if second % 60 == 0 and not table.is_out:
            control.sweep()
        world.sqs.delays.clear()
        for body in bodies:
            control.handle({"m": body}, until=world.clock() + 60)
        delayed = [second + delay for delay in world.sqs.delays] or [second + 2]
        later += [(delayed[-1], body) for body in world.sqs.take()]
    assert world.slot().incarnation == 1, "nobody was replaced"
    assert world.ec2.count("create_fleet") == 1


@pytest.mark.parametrize("dies_s", [1, 14, 29, 44, 59])
def test_a_node_that_falls_silent_is_replaced_within_two_minutes(dies_s: int) -> None:
    world = World()
    [holder] = world.started()
    later: list[tuple[float, str]] = []
    replaced_s = 0
    for second in range(1, 420):
        world.clock.advance(1)
        if second % 15 == 7 and second < 120 + dies_s:
            world.beat("mini", holder)
        bodies = [body for at, body in later if at <= second]
        later = [(at, body) for at, body in later if at > second]
        if second % 60 == 0:
            world.control.sweep()
        world.sqs.delays.clear()
        for body in bodies:
            world.control.handle({"m": body}, until=world.clock() + 60)
        delayed = [second + delay for delay in world.sqs.delays] or [second + 2]
        later += [(delayed[-1], body) for body in world.sqs.take()]
        replaced_s = replaced_s or (second if world.slot().incarnation == 2 else 0)
    last_beat_s = max(second for second in range(1, 120 + dies_s) if second % 15 == 7)
    assert 60 < replaced_s - last_beat_s <= 120


def test_an_entry_of_the_index_that_was_lost_comes_back_with_the_next_notice() -> None:
    world = World()
    [holder] = world.started()
    world.stores.live.remove("mini")
    world.deliver(notice(holder, world.clock()))
    [body] = world.sqs.take()
    assert world.control.handle({"m": body}, until=world.clock() + 60) == {}
    assert world.stores.live.read("mini") is not None
    assert [entry.run for entry in world.stores.live.watched()] == ["mini"]


def test_the_sweep_reads_what_is_due_and_not_every_run_that_waits_for_its_people() -> None:
    world = World()
    for number in range(40):
        world.submit(f"run-{number}")
        world.pause(f"run-{number}")
    world.submit("works")
    world.tick()
    world.tick()
    assert [entry.run for entry in world.stores.live.watched()] == ["works"]
    looked_at = 0
    for _ in range(5):
        world.clock.advance(60)
        looked_at += world.control.sweep()
    assert looked_at == 40 + 5, "each of them once in five minutes, the run at work each minute"
    world.sqs.take()
    world.stores.heads.move(world.head("run-7"), RunStatus.ACTIVE, now=int(world.clock()))
    for _ in range(5):
        world.tick()
    assert "run-7" in [entry.run for entry in world.stores.live.watched()]


@dataclass(slots=True)
class HeldUp:
    """A table whose first answer about nodes takes long enough for some of them to beat again."""

    world: World
    back: list[str]
    held_up: bool = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self.world.table, name)

    def query(self, pk: str, **more: Any) -> Any:
        if pk.startswith("NODE#") and not self.held_up:
            self.held_up = True
            self.world.clock.advance(40)
            for instance in self.back:
                self.world.beat("mini", instance)
        return self.world.table.query(pk, **more)


def test_a_look_that_is_held_up_while_beats_return_replaces_nobody() -> None:
    world = World()
    holders = world.started(slots=6)
    for instance in holders[:3]:
        world.beat("mini", instance)
    world.clock.advance(17)
    for instance in holders[3:]:  # the last beats before the table goes are spread over a heartbeat
        world.beat("mini", instance)
    world.tick(after_s=29)
    world.clock.advance(50)
    control = world.make_control(cast("BulkTable", HeldUp(world, holders[3:])), world.ec2, world.ssm, world.sqs)
    control.sweep()
    for body in world.sqs.take():
        control.handle({"m": body}, until=world.clock() + 60)
    assert [slot.incarnation for slot in world.slots()] == [1] * 6

"""Pause, resume and stop: the operator's word and what the stack makes of it, through the real pipeline."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from spotproof.cli.lifecycle import PAUSE, RESUME, STOP, Wish, carry_out, checked, wait_until_stopped
from spotproof.cli.main import commands
from spotproof.contract.history import HistoryKind
from spotproof.contract.items import Head
from spotproof.contract.states import Cause, FlushOutcome, NodePhase, RunStatus
from spotproof.errors import BadSettings, Missing, Unavailable
from spotproof.store.head import Heads
from spotproof.store.history import Histories
from spotproof.store.live import LiveIndex
from spotproof.store.local import IN_MEMORY, LocalTable
from tests.fakes.control import World


def say(world: World, wish: Wish) -> None:
    carry_out("mini", world.table, wish, reason="", now=int(world.clock()))


def leave(world: World, *instances: str) -> None:
    """Every node has heard the order, and its flush is committed."""
    for instance in instances:
        world.beat("mini", instance, NodePhase.DRAINING, flush=FlushOutcome.COMMITTED)


def minutes(world: World, count: int = 1) -> None:
    for _ in range(count):
        world.tick(after_s=60)


def running(world: World) -> list[str]:
    return [name for name, one in world.ec2.instances.items() if one.state in ("pending", "running")]


def test_a_paused_run_saves_and_ends_its_nodes_and_resumed_it_goes_on_with_as_many() -> None:
    world = World()
    nodes = world.started(slots=2)
    world.beat_all()
    say(world, PAUSE)
    minutes(world)
    order = world.head().order
    assert order is not None
    assert sorted(running(world)) == sorted(nodes)  # nobody ends before it has saved
    leave(world, *nodes)
    minutes(world)
    assert running(world) == []
    minutes(world, 5)
    assert running(world) == []
    say(world, RESUME)
    minutes(world, 2)
    assert world.head().status is RunStatus.ACTIVE
    assert len(running(world)) == 2
    assert all(world.slot(number=number).successor_instance in running(world) for number in (0, 1))


def test_a_stopped_run_is_over_when_its_nodes_are_and_can_still_be_resumed() -> None:
    world = World()
    nodes = world.started(slots=1)
    world.beat_all()
    say(world, STOP)
    minutes(world)
    leave(world, *nodes)
    minutes(world, 10)
    assert world.head().status is RunStatus.STOPPED
    assert running(world) == []
    assert LiveIndex(world.table).read("mini") is None
    say(world, RESUME)
    minutes(world, 2)
    assert len(running(world)) == 1


@pytest.fixture
def table() -> LocalTable:
    return LocalTable(IN_MEMORY)


def made(table: LocalTable, status: RunStatus) -> None:
    Heads(table).create(Head(run="r", status=status))


@pytest.mark.parametrize(
    ("wish", "status"),
    [(PAUSE, RunStatus.ACTIVE), (RESUME, RunStatus.PAUSED), (RESUME, RunStatus.BLOCKED), (RESUME, RunStatus.FAILED)]
    + [(STOP, status) for status in (RunStatus.ACTIVE, RunStatus.PAUSED, RunStatus.BLOCKED)],
)
def test_the_status_is_moved_told_and_looked_at_soon(table: LocalTable, wish: Wish, status: RunStatus) -> None:
    made(table, status)
    before, after = carry_out("r", table, wish, reason="maintenance of the cluster", now=100)
    assert (before.status, after.status) == (status, wish.to)
    head = Heads(table).read("r")
    assert head is not None
    assert (head.cause, head.reason) == (Cause.USER, "maintenance of the cluster")
    live = LiveIndex(table).read("r")
    assert live is not None
    assert live.due_at <= 100
    (entry,) = Histories(table).list("r")
    assert (entry.what, entry.cause) == (HistoryKind.STATUS, Cause.USER)


@pytest.mark.parametrize(
    ("wish", "status"), [(PAUSE, RunStatus.PAUSED), (RESUME, RunStatus.ACTIVE), (STOP, RunStatus.STOPPED)]
)
def test_a_wish_that_is_fulfilled_is_repeated_without_a_word(table: LocalTable, wish: Wish, status: RunStatus) -> None:
    made(table, status)
    before, after = carry_out("r", table, wish, reason="", now=100)
    assert before == after
    assert Histories(table).list("r") == ()


@pytest.mark.parametrize(
    ("wish", "status"), [(PAUSE, RunStatus.DONE), (PAUSE, RunStatus.BLOCKED), (RESUME, RunStatus.DONE)]
)
def test_what_cannot_be_is_refused_with_the_next_step(table: LocalTable, wish: Wish, status: RunStatus) -> None:
    made(table, status)
    with pytest.raises(BadSettings, match=f"{status}: it cannot {wish.verb}"):
        carry_out("r", table, wish, reason="", now=100)
    with pytest.raises(Missing, match="there is no run other"):
        checked("other", table, wish)


def test_a_stop_that_is_waited_for_tells_when_it_takes_too_long(table: LocalTable) -> None:
    made(table, RunStatus.STOPPING)
    now = [0.0]

    def sleep(seconds: float) -> None:
        now[0] += seconds

    with pytest.raises(Unavailable, match="still stopping"):
        wait_until_stopped("r", table, clock=lambda: now[0], sleep=sleep)
    head = Heads(table).read("r")
    assert head is not None
    Heads(table).move(head, RunStatus.STOPPED, now=1)
    wait_until_stopped("r", table, clock=lambda: now[0], sleep=sleep)


def test_the_commands_are_there() -> None:
    for name in ("pause", "resume", "stop"):
        assert CliRunner().invoke(commands, [name, "--help"]).exit_code == 0

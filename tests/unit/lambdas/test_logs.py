"""What the functions log: what it is about in fields, and never what nobody should read."""

from __future__ import annotations

import logging
from dataclasses import dataclass

import pytest

from lambdas.decisions.actions import Bind, Claim, MoveRun
from lambdas.effects.log import ContextLog, about
from spotproof.contract.items import Head, Slot
from spotproof.contract.states import Cause, RunStatus
from tests.fakes.control import World, notice, state

SECRET = "hunter2-hunter2"


@pytest.fixture
def world(caplog: pytest.LogCaptureFixture) -> World:
    caplog.set_level(logging.INFO, logger="tests.control")
    made = World()
    nodes = made.started(slots=2, environment=(f"API_KEY={SECRET}",))
    made.deliver(notice(nodes[0], made.clock()), notice(nodes[0], made.clock()))
    made.deliver(state(nodes[1], made.clock(), "terminated"))
    made.ec2.fail("create_fleet", "InsufficientInstanceCapacity")
    made.boot()
    made.join()
    made.tick()
    return made


def test_every_line_about_a_run_has_the_run_in_a_field(world: World, caplog: pytest.LogCaptureFixture) -> None:
    del world
    of_stack = {"swept", "ignored"}
    without = [one.getMessage() for one in caplog.get_records("setup") if not hasattr(one, "run")]
    assert set(without) <= of_stack
    assert {one.run for one in caplog.get_records("setup") if hasattr(one, "run")} == {"mini"}


def test_a_claim_says_slot_incarnation_instance_and_cause(world: World, caplog: pytest.LogCaptureFixture) -> None:
    del world
    claimed = [
        vars(one)
        for one in caplog.get_records("setup")
        if one.getMessage() == "claimed" and vars(one)["incarnation"] > 1
    ]
    assert {(one["slot"], one["incarnation"], one["cause"]) for one in claimed} == {
        (0, 2, "interruption"),
        (1, 2, "disappeared"),
    }
    assert all(one["instance"].startswith("i-") for one in claimed)


def test_no_line_holds_what_the_run_was_given(world: World, caplog: pytest.LogCaptureFixture) -> None:
    """Neither the run's environment, nor a launch's request and token."""
    launches = world.stores.launches.recent("mini")
    assert launches
    for record in caplog.get_records("setup"):
        spelled = str(vars(record))
        assert SECRET not in spelled
        assert not any(launch.token in spelled or launch.request in spelled for launch in launches)


def test_an_action_is_told_by_what_it_is_about() -> None:
    slot = Slot(run="mini", slot=3, incarnation=7)
    assert about(Claim(seen=slot, instance="i-1", cause=Cause.SILENCE)) == {
        "run": "mini",
        "slot": 3,
        "incarnation": 7,
        "instance": "i-1",
        "cause": "silence",
    }
    bind = Bind(run="mini", slot=3, incarnation=8, instance="i-2", launch=4)
    assert about(bind) == {"run": "mini", "slot": 3, "incarnation": 8, "instance": "i-2"}
    move = MoveRun(seen=Head(run="mini", status=RunStatus.ACTIVE), to=RunStatus.PAUSED, cause=Cause.BUDGET, reason="r")
    assert about(move) == {"run": "mini", "cause": "budget"}


@dataclass
class Kept:
    """A logger that keeps the fields of its lines."""

    fields: list[dict[str, object]]

    def info(self, msg: object, *args: object, extra: object = None) -> None:
        assert isinstance(extra, dict)
        self.fields.append({"msg": str(msg) % args, **extra})


def test_what_is_being_worked_on_stands_in_every_line_until_it_is_done() -> None:
    kept = Kept([])
    log = ContextLog(kept)  # type: ignore[arg-type]
    with log.about(run="one"):
        log.info("begun %s", 1)
        log.info("other", extra={"run": "two", "slot": 1})
    log.info("after")
    assert kept.fields == [
        {"msg": "begun 1", "run": "one"},
        {"msg": "other", "run": "two", "slot": 1},
        {"msg": "after"},
    ]

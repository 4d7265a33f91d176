"""EV cases of the case book, through the real pipeline. The agent's share of EV is in its own file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from spotproof.contract.history import HistoryKind
from spotproof.contract.items import NO_INSTANCE
from spotproof.contract.messages import Interruption
from spotproof.contract.metrics import Metric
from spotproof.contract.parse import parse
from spotproof.contract.states import InterruptionAction, NodePhase
from spotproof.errors import Superseded
from tests.fakes.control import ACCOUNT, REGION, STACK, World, advice, notice, state

FIXTURES = Path(__file__).parent / "fixtures"


def fixture(name: str) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads((FIXTURES / f"{name}.json").read_text())
    return loaded


def started_as(world: World, instance: str) -> str:
    """A run whose holder has the id that the fixtures name."""
    world.ec2.names = [instance]
    assert world.started() == [instance]
    return instance


@pytest.mark.parametrize("resources", [["arn:aws:ec2:us-east-1b:instance/i-0a1b2c3d4e5f60718"], []])
def test_ev_01_the_arn_is_never_needed(resources: list[str]) -> None:
    message = parse({**fixture("spot-terminate"), "resources": resources}, received_at=0)
    assert isinstance(message, Interruption)
    assert (message.instance, message.region, message.action) == ("i-0a1b2c3d4e5f60718", "us-east-1", "terminate")


def test_ev_02_stop_is_flushed_like_terminate_and_its_comeback_writes_nothing() -> None:
    world = World()
    [lost] = world.started()
    world.deliver(notice(lost, world.clock(), "stop"))
    assert len(world.ssm.sent) == 1
    [told] = [entry for entry in world.told() if entry.what == HistoryKind.NOTICE]
    assert told.detail == InterruptionAction.STOP
    world.ec2.instances[lost].state = "stopped"
    world.boot()
    world.join()
    world.tick()
    holder = world.slot()
    assert (holder.holder_instance, holder.holder_incarnation) != (lost, 1)
    world.ec2.instances[lost].state = "running"
    world.deliver(state(lost, world.clock(), "running"))
    world.beat("mini", lost)
    world.tick()
    assert world.slot() == holder
    stale = world.commit("mini", 7)
    with pytest.raises(Superseded):
        world.stores.pointers.rise(stale, own_generation=1)


def test_ev_10_advice_saves_and_the_warning_after_it_still_flushes() -> None:
    world = World()
    a, b, c = world.started(slots=3)
    world.deliver(advice(a, world.clock()))
    assert (len(world.ssm.sent), world.head().order_leavers) == (1, "0")
    world.clock.advance(8 * 3600 + 42 * 60)
    for instance in (a, b, c):
        world.beat("mini", instance)
    world.deliver(advice(b, world.clock()))
    assert (len(world.ssm.sent), world.ec2.terminated, world.ec2.count("create_fleet")) == (2, [], 1)
    world.clock.advance(130)
    world.deliver(notice(a, world.clock()))
    assert (len(world.ssm.sent), world.ec2.count("create_fleet")) == (3, 2)
    world.clock.advance(130)
    world.deliver(notice(c, world.clock()))
    assert (len(world.ssm.sent), world.ec2.count("create_fleet")) == (4, 3)
    assert world.slot(number=1).successor_instance is None
    assert world.ec2.terminated == []


def test_ev_11_an_instance_that_is_not_ours_is_ignored_without_a_trace() -> None:
    world = World()
    world.started()
    world.ec2.tag("i-0ffffffffffffff01", tags={"Name": "a web server"})
    before = len(world.ec2.calls)
    assert world.deliver(notice("i-0ffffffffffffff01", world.clock())) == {}
    assert [call for call, _ in world.ec2.calls[before:]] == ["describe_instances"]
    assert world.ssm.sent == []
    assert world.meter.total(Metric.IGNORED) == 1


def test_ev_11_a_state_change_of_an_unknown_instance_costs_no_call() -> None:
    world = World()
    assert world.deliver(state("i-0ffffffffffffff01", world.clock(), "terminated")) == {}
    assert (world.ec2.calls, world.meter.total(Metric.IGNORED)) == ([], 1)


def test_ev_12_what_is_gone_is_found_in_our_own_table() -> None:
    world = World()
    known = started_as(world, "i-0a1b2c3d4e5f60718")
    world.ec2.instances.pop(known)
    launches = world.ec2.count("create_fleet")
    assert world.deliver(fixture("state-terminated")) == {}
    assert world.ec2.count("create_fleet") == launches + 1
    assert world.slot().successor_instance not in (None, NO_INSTANCE)


def test_ev_15_odd_input_is_handled_or_ignored_and_never_raises() -> None:
    world = World()
    started_as(world, "i-0a1b2c3d4e5f60718")
    launches = world.ec2.count("create_fleet")
    odd = [
        {**fixture("spot-terminate"), "time": ""},
        {},
        {"detail-type": "Something New", "source": "aws.ec2", "detail": {}},
        {"source": "aws.autoscaling", "detail-type": "x", "detail": {"Event": "autoscaling:TEST_NOTIFICATION"}},
    ]
    assert world.deliver(*odd) == {}
    assert world.ec2.count("create_fleet") == launches + 1
    assert world.meter.total(Metric.IGNORED) == 3
    assert world.slot().deadline_at == int(world.clock()) + 120


def test_ev_16_a_notice_after_the_end_replaces_and_names_the_last_durable_step() -> None:
    world = World()
    [lost] = world.started()
    world.commit("mini", 1200)
    at = world.clock()
    world.clock.advance(130)
    world.ec2.instances[lost].state = "terminated"
    launches = world.ec2.count("create_fleet")
    assert world.deliver(notice(lost, at)) == {}
    assert (world.ssm.sent, world.ec2.count("create_fleet")) == ([], launches + 1)
    [missed] = [entry for entry in world.told() if entry.what == HistoryKind.LOST]
    assert (missed.detail, missed.step) == ("flush: missed", 1200)


def test_an_event_of_another_account_or_region_is_ignored() -> None:
    world = World()
    [holder] = world.started()
    mine = notice(holder, world.clock())
    assert mine["account"] == ACCOUNT
    assert mine["region"] == REGION
    world.deliver({**mine, "account": "999999999999"}, {**mine, "region": "eu-west-1"})
    assert (world.ssm.sent, world.slot().successor_instance) == ([], None)
    assert world.meter.total(Metric.IGNORED) == 2


def test_a_hand_tagged_instance_gets_a_flush_and_word_and_no_replacement() -> None:
    world = World()
    world.ec2.tag("i-0ffffffffffffff02", tags={"spotproof:stack": STACK, "spotproof:run": "by-hand"})
    world.ec2.tag("i-0ffffffffffffff03", tags={"spotproof:stack": "other", "spotproof:run": "by-hand"})
    world.deliver(notice("i-0ffffffffffffff02", world.clock()), notice("i-0ffffffffffffff03", world.clock()))
    assert [command["Targets"][1]["Values"] for command in world.ssm.sent] == [["by-hand"]]
    assert (world.ec2.count("create_fleet"), len(world.sns.said)) == (0, 1)
    assert world.meter.total(Metric.IGNORED) == 1


def test_a_node_that_said_done_and_went_is_no_loss() -> None:
    world = World()
    [holder] = world.started()
    world.beat("mini", holder, NodePhase.DONE, step=300)
    world.ec2.instances[holder].state = "terminated"
    launches = world.ec2.count("create_fleet")
    world.deliver(state(holder, world.clock(), "terminated"))
    assert (world.slot().successor_instance, world.ec2.count("create_fleet")) == (None, launches)

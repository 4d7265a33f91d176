"""EV-13, EV-14, SSM-07 and what SSM says of flushes: events with several entities, with none, and with a wrong one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from spotproof.contract.history import HistoryKind
from spotproof.contract.items import NO_INSTANCE
from spotproof.contract.limits import MOVE_LEAD_S
from spotproof.contract.messages import BlockExpiry, CommandResult
from spotproof.contract.metrics import Metric
from spotproof.contract.orders import slots_of
from spotproof.contract.parse import parse, unix_seconds
from spotproof.contract.states import Cause, FlushOutcome
from tests.fakes.control import SETTINGS, World, notice

FIXTURES = Path(__file__).parent / "fixtures"
OURS = "i-0a1b2c3d4e5f60718"
OTHERS = "i-0ffffffffffffff01"
STARTS = unix_seconds("2026-05-18T06:00:00Z")


def fixture(name: str) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads((FIXTURES / f"{name}.json").read_text())
    return loaded


def with_detail(name: str, **changes: Any) -> dict[str, Any]:
    loaded = fixture(name)
    return {**loaded, "detail": {**loaded["detail"], **changes}}


def started_as(world: World, *instances: str, **fields: Any) -> None:
    world.ec2.names = list(instances)
    assert world.started(slots=len(instances), **fields) == list(instances)


def leavers(world: World) -> frozenset[int]:
    return slots_of(world.head().order_leavers or "0")


def test_ev_13_a_planned_change_of_ours_is_moved_before_its_date_and_the_other_entity_is_ignored() -> None:
    world = World()
    started_as(world, OURS)
    launches = world.ec2.count("create_fleet")
    event = with_detail("health-retirement", eventTypeCode="AWS_EC2_INSTANCE_REBOOT_MAINTENANCE_SCHEDULED")
    assert world.deliver(event) == {}
    planned = {slot.move_instance: slot.move_at for slot in world.slots()}
    assert planned == {OURS: STARTS - MOVE_LEAD_S}
    assert (world.ssm.sent, world.ec2.count("create_fleet"), world.slot().successor_instance) == ([], launches, None)
    assert world.stores.members.read(OTHERS) is None


def test_ev_13_failing_hardware_is_left_as_soon_as_a_successor_is_ready() -> None:
    """The case lets a retirement wait for its date; hardware that fails is not waited for (DESIGN section 3)."""
    world = World()
    started_as(world, OURS)
    assert world.deliver(fixture("health-retirement")) == {}
    slot = world.slot()
    assert (slot.cause, slot.waits_for_notice, slot.deadline_at) == (Cause.MAINTENANCE, True, STARTS)
    assert (len(world.ssm.sent), leavers(world)) == (1, frozenset())  # an extra checkpoint; nobody leaves yet
    assert world.ec2.terminated == []


def test_ev_13_entities_of_two_runs_are_two_decisions() -> None:
    world = World()
    world.ec2.names = [OURS]
    world.started("first")
    world.ec2.names = [OTHERS]
    world.started("second")
    world.deliver(fixture("health-retirement"))
    assert [world.slot(run).waits_for_notice for run in ("first", "second")] == [True, True]


@pytest.mark.parametrize("change", [{"service": "RDS"}, {"eventTypeCategory": "issue"}])
def test_ev_13_another_service_or_category_is_ignored(change: dict[str, str]) -> None:
    world = World()
    started_as(world, OURS)
    world.deliver(with_detail("health-retirement", **change))
    assert (world.slot().successor_instance, world.slot().move_at) == (None, None)
    assert world.meter.total(Metric.IGNORED) == 1


@pytest.mark.parametrize("name", ["Capacity Block Expiration Warning", "Capacity Block Reservation Expiration Warning"])
@pytest.mark.parametrize("key", ["detail-type", "detail_type"])
def test_ev_14_a_block_is_found_by_its_reservation_under_every_spelling(name: str, key: str) -> None:
    event = fixture("capacity-block-expiry")
    del event["detail-type"]
    event[key] = name
    message = parse(event, received_at=0)
    assert isinstance(message, BlockExpiry)
    assert message.deadline_at == unix_seconds("2026-05-04T11:00:00Z")
    world = World()
    started_as(world, OURS, OTHERS)
    world.ec2.instances[OURS].reservation = "cr-0123456789abcdef0"
    world.clock.now = unix_seconds("2026-05-04T10:50:00Z")
    launches = world.ec2.count("create_fleet")
    assert world.deliver(event, event) == {}
    ours, others = world.slots()
    assert (ours.cause, ours.deadline_at, ours.waits_for_notice) == (Cause.BLOCK_EXPIRY, message.deadline_at, True)
    assert ours.successor_instance not in (None, NO_INSTANCE)
    assert others.successor_instance is None
    assert (world.ec2.count("create_fleet"), leavers(world)) == (launches + 1, frozenset())


def test_ev_14_a_block_without_an_instance_of_ours_is_ignored() -> None:
    world = World()
    started_as(world, OURS)
    world.ec2.tag(OTHERS, tags={"Name": "somebody's"}, reservation="cr-0123456789abcdef0")
    assert world.deliver(fixture("capacity-block-expiry")) == {}
    assert (world.slot().successor_instance, world.meter.total(Metric.IGNORED)) == (None, 1)


def test_ev_14_ec2_out_of_reach_brings_the_block_back_and_keeps_nothing_else() -> None:
    world = World()
    started_as(world, OURS)
    world.ec2.fail("describe_instances", "RequestLimitExceeded")
    failures = world.deliver(fixture("capacity-block-expiry"), notice(OURS, world.clock()))
    assert set(failures) == {"message-0"}
    assert world.slot().successor_instance not in (None, NO_INSTANCE)


def test_ssm_07_the_target_is_the_one_in_the_detail_and_foreign_commands_write_nothing() -> None:
    world = World()
    started_as(world, OURS)
    own = with_detail("ssm-invocation-failed", **{"document-name": SETTINGS.document})
    message = parse(own, received_at=0)
    assert isinstance(message, CommandResult)
    assert (message.instance, message.command) == (OURS, "0d1e2f30-1111-4222-8333-444455556666")
    before = world.told()
    world.deliver(fixture("ssm-invocation-failed"))  # of a stock document: somebody else's command
    assert (world.told(), world.meter.total(Metric.IGNORED)) == (before, 1)
    world.deliver(own, own)
    [told] = [one for one in world.told() if one.what == HistoryKind.COMMAND]
    assert (told.instance, told.detail) == (OURS, "0d1e2f30-1111-4222-8333-444455556666: Failed")
    assert [cause for metric, _, cause in world.meter.seen if metric is Metric.COMMANDS_ENDED] == ["Failed"] * 2


def test_ssm_07_a_command_that_is_under_way_is_not_recorded() -> None:
    world = World()
    started_as(world, OURS)
    running = with_detail("ssm-invocation-failed", **{"document-name": SETTINGS.document, "status": "InProgress"})
    world.deliver(running)
    assert [one for one in world.told() if one.what == HistoryKind.COMMAND] == []


@pytest.mark.parametrize(
    ("outcome", "status", "committed"),
    [(FlushOutcome.COMMITTED, "TimedOut", 1), (FlushOutcome.FAILED, "Success", 0)],
)
def test_ssm_04_what_ssm_says_is_no_proof_of_a_flush_and_none_against_it(
    outcome: FlushOutcome, status: str, committed: int
) -> None:
    world = World()
    started_as(world, OURS)
    world.deliver(notice(OURS, world.clock()))
    world.flushed("mini", OURS, 7)
    if outcome is FlushOutcome.FAILED:
        world.beat("mini", OURS, flush=outcome)
    world.deliver(with_detail("ssm-invocation-failed", **{"document-name": SETTINGS.document, "status": status}))
    world.boot()
    world.join()
    world.tick()
    assert world.meter.total(Metric.FLUSHES_COMMITTED) == committed
    assert world.meter.total(Metric.FLUSHES_FAILED) == 1 - committed

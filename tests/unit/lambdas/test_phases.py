"""What only nodes know of a recovery: told from their beats, measured once."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from lambdas.decisions import phases, repairing
from lambdas.decisions.actions import Guarded, Measure
from spotproof.contract import keys
from spotproof.contract.history import HistoryKind
from spotproof.contract.items import Pool, to_item
from spotproof.contract.metrics import Metric
from spotproof.contract.states import FlushOutcome, Market, NodePhase, RunStatus
from spotproof.contract.times import Times
from spotproof.report.model import Stage
from spotproof.store.stories import story_from
from spotproof.store.table import Put
from tests.fakes.control import REGION, SUBNETS, World, notice

PHASES = (Metric.BOOT, Metric.PARK, Metric.RESTORE, Metric.FIRST_STEP, Metric.RECOVERY)
TOLD = [HistoryKind.PARKED, HistoryKind.SEALED, HistoryKind.RESTORED, HistoryKind.FIRST_STEP]


def times(at: float, *, park: float = 5.25, restore: float = 2.5, step: float = 0.75) -> Times:
    """Ready at `at`, then so long in each phase."""
    moments = (at, at + park, at + park + restore, at + park + restore + step)
    return Times(at_ms=tuple(int(moment * 1000) for moment in moments))


def recovered(**fields: Any) -> tuple[World, Times]:
    """A run whose node was interrupted and replaced; the replacement trains and has told its times."""
    world = World()
    [lost] = world.started(**fields)
    world.beat("mini", lost, step=40)
    world.commit("mini", 30)
    world.deliver(notice(lost, world.clock()))
    world.flushed("mini", lost, 40)
    world.commit("mini", 40)
    world.boot()
    world.clock.advance(40)
    world.join()
    told = times(world.clock())
    world.beat("mini", str(world.slot().successor_instance), step=41, times=told.text())
    return world, told


def phase_values(world: World) -> dict[Metric, list[float]]:
    return {metric: [value for one, value, _ in world.meter.seen if one is metric] for metric in PHASES}


def test_the_phases_of_a_recovery_are_measured_from_the_nodes_own_times() -> None:
    world, _ = recovered()
    world.tick()
    world.tick()
    assert phase_values(world) == {
        Metric.BOOT: [40.0],
        Metric.PARK: [5.25],
        Metric.RESTORE: [2.5],
        Metric.FIRST_STEP: [0.75],
        Metric.RECOVERY: [48.5],
    }


def test_they_are_told_once_however_often_the_run_is_looked_at() -> None:
    world, told = recovered()
    for _ in range(5):
        world.beat("mini", str(world.slot().successor_instance or world.slot().holder_instance), times=told.text())
        world.tick()
    assert {metric: len(values) for metric, values in phase_values(world).items()} == dict.fromkeys(PHASES, 1)
    entries = [entry for entry in world.told() if entry.what in TOLD and entry.incarnation == 2]
    assert [entry.what for entry in entries] == TOLD
    assert [entry.at_ms for entry in entries] == list(told.at_ms)


def test_two_looks_at_once_measure_once() -> None:
    world, _ = recovered()
    world.clock.advance(60)
    facts = world.control._reader.of_repair("mini", now=int(world.clock()))
    head = world.head()
    for _ in range(2):
        world.control._apply(phases.decide(facts, head))
    assert {metric: len(values) for metric, values in phase_values(world).items()} == dict.fromkeys(PHASES, 1)


def test_a_first_start_is_told_and_is_no_recovery() -> None:
    world = World()
    [node] = world.started()
    world.beat("mini", node, step=1, times=times(world.clock()).text())
    world.tick()
    world.tick()
    assert phase_values(world) == {metric: [] for metric in PHASES}
    assert [entry.what for entry in world.told() if entry.what in TOLD] == TOLD


def test_what_has_just_happened_waits_until_the_beats_of_its_burst_are_there() -> None:
    world, told = recovered()
    first_step_s = (told.at_ms[-1]) // 1000
    facts = world.control._reader.of_repair("mini", now=first_step_s + phases.SETTLES_S - 1)
    assert phases.decide(facts, world.head()) == ()
    facts = world.control._reader.of_repair("mini", now=first_step_s + phases.SETTLES_S)
    assert phases.decide(facts, world.head())


def test_a_run_that_is_over_does_not_wait() -> None:
    world, _ = recovered()
    world.clock.advance(9)
    world.stores.heads.move(world.head(), RunStatus.DONE, now=int(world.clock()))
    facts = world.control._reader.of_repair("mini", now=int(world.clock()))
    assert phases.decide(facts, world.head())


@pytest.mark.parametrize("text", [None, "", "nonsense", "19ec+1", "19ec+1+1", "19ec1cb4000+1+1+1+1"])
def test_a_node_that_tells_half_or_nonsense_is_told_of_nothing(text: str | None) -> None:
    world, _ = recovered()
    world.beat("mini", str(world.slot().successor_instance), step=41, times=text)
    world.clock.advance(100)
    facts = world.control._reader.of_repair("mini", now=int(world.clock()))
    assert phases.decide(facts, world.head()) == ()


def test_a_clock_far_ahead_is_believed_when_its_time_has_come() -> None:
    world, _ = recovered()
    ahead = times(world.clock() + 3600)
    world.beat("mini", str(world.slot().successor_instance), step=41, times=ahead.text())
    world.tick()
    assert phase_values(world)[Metric.PARK] == []


def test_flush_and_waste_are_measured_at_the_promotion() -> None:
    world, _ = recovered()
    world.tick()
    assert [value for metric, value, _ in world.meter.seen if metric is Metric.FLUSH] == [0]
    assert world.meter.total(Metric.WASTE_STEPS) == 0


def test_a_flush_that_became_durable_after_its_agent_gave_it_up_is_none_that_failed() -> None:
    world = World()
    [lost] = world.started()
    world.deliver(notice(lost, world.clock()))
    world.beat("mini", lost, NodePhase.DRAINING, step=40, flush=FlushOutcome.FAILED, flush_step=30)
    world.commit("mini", 40)
    world.boot()
    world.join()
    world.tick()
    assert (world.meter.total(Metric.FLUSHES_COMMITTED), world.meter.total(Metric.FLUSHES_FAILED)) == (1, 0)
    [told] = [entry for entry in world.told() if entry.what == HistoryKind.FLUSHED]
    assert (told.step, told.detail) == (40, "committed")


def test_steps_that_are_done_again_are_counted_with_the_cause() -> None:
    world = World()
    [lost] = world.started()
    world.commit("mini", 30)
    world.beat("mini", lost, step=47)
    world.ec2.instances[lost].state = "terminated"
    world.tick()
    world.boot()
    world.join()
    world.tick()
    assert [(value, cause) for metric, value, cause in world.meter.seen if metric is Metric.WASTE_STEPS] == [
        (17, "disappeared")
    ]


def test_idle_dollars_are_counted_where_a_price_is_known() -> None:
    world, _ = recovered()
    facts = world.control._reader.of_repair("mini", now=int(world.clock()) + 60)
    [machine] = [one for one in facts.machines if one.instance == world.slot().successor_instance]
    assert phases.price_of(facts, machine) is None
    pool = Pool(
        region=REGION, instance_type=machine.instance_type, zone=machine.zone, market=Market.SPOT, price_usd=3.6
    )
    priced = dataclasses.replace(facts, pools=(pool,))
    [guarded] = [one for one in phases.decide(priced, world.head()) if isinstance(one, Guarded)]
    dollars = [one.value for one in guarded.then if isinstance(one, Measure) and one.metric is Metric.WASTE_DOLLARS]
    assert dollars == [pytest.approx(48.5 * 3.6 / 3600)]


def test_idle_dollars_reach_the_meter() -> None:
    world, _ = recovered()
    for zone in SUBNETS.values():
        for kind in ("g5.xlarge", "g6.xlarge"):
            pool = Pool(region=REGION, instance_type=kind, zone=zone, market=Market.SPOT, price_usd=0.36, priced_at=1)
            world.table.write(Put(key=keys.pool(REGION, kind, zone, "spot"), item=to_item(pool)))
    world.tick()
    assert world.meter.total(Metric.WASTE_DOLLARS) == pytest.approx(48.5 * 0.36 / 3600)


def test_silent_nodes_are_counted_at_each_look() -> None:
    world = World()
    [node] = world.started()
    world.beat("mini", node)
    world.tick(after_s=50)
    world.tick(after_s=60)
    assert world.meter.total(Metric.SILENT_NODES) == 1


def test_the_page_draws_the_stages_that_were_measured() -> None:
    world, told = recovered()
    world.tick()
    [recovery] = story_from(world.table, "mini", now=world.clock()).recoveries
    seconds = {span.stage: round(span.seconds, 3) for span in recovery.stages}
    assert seconds[Stage.PARK] == 5.25
    assert seconds[Stage.RESTORE] == 2.5
    assert seconds[Stage.FIRST_STEP] == 0.75
    assert seconds[Stage.BOOT] == 40.0
    assert recovery.end_at == told.at_ms[-1] / 1000
    assert (recovery.last_step, recovery.resumed_step, recovery.steps_lost) == (40, 40, 0)


def test_repair_tells_of_starts_while_it_does_everything_else() -> None:
    world, _ = recovered()
    facts = world.control._reader.of_repair("mini", now=int(world.clock()) + 60)
    assert set(phases.decide(facts, world.head())) <= set(repairing.decide(facts))

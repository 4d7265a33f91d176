"""Every metric that the dashboard shows is really written: by the whole control plane, or by a node's heart."""

from __future__ import annotations

import inspect
import json
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import pytest

from spotproof.agent.heartbeat import Condition, Heart, Vitals
from spotproof.contract import emf
from spotproof.contract.metrics import METRICS, Dimension, Metric, MetricRow
from spotproof.contract.states import NodePhase
from spotproof.errors import Unavailable
from spotproof.store.local import IN_MEMORY, LocalTable
from spotproof.store.nodes import Nodes
from tests.cases import test_dated_events
from tests.fakes.control import World, advice, notice, state
from tests.unit.agent.test_heartbeat import PLACE, Scale
from tests.unit.lambdas import test_adoption, test_moves, test_notify, test_phases, test_repair

Scenario = Callable[..., object]


def recovery() -> None:
    world, _ = test_phases.recovered()
    world.deliver(notice(str(world.slot().holder_instance), world.clock()))  # again: it is claimed already
    world.tick()
    world.deliver(state("i-0000000000000ffff", world.clock(), "terminated"))


def losses() -> None:
    test_phases.test_steps_that_are_done_again_are_counted_with_the_cause()
    test_phases.test_silent_nodes_are_counted_at_each_look()


def refused_by_ec2() -> None:
    world = World()
    world.ec2.fail("create_fleet", "InvalidAMIID.NotFound", times=9)
    world.submit()
    world.tick()
    world.tick()


def trainer_failure() -> None:
    world = World()
    [node] = world.started()
    world.beat("mini", node, phase=NodePhase.FAILED, exit_code=1, generation=1)
    world.tick()


def advised() -> None:
    world = World()
    [node] = world.started()
    world.deliver(advice(node, world.clock()))


def malformed() -> None:
    World().control.handle({"m": "no JSON"}, until=2**40)


def not_sent() -> None:
    world = World()
    [node] = world.started()
    world.ssm.faults.append("AccessDeniedException")
    world.deliver(notice(node, world.clock()))


def commands_ended() -> None:
    test_dated_events.test_ssm_07_the_target_is_the_one_in_the_detail_and_foreign_commands_write_nothing()


def trains() -> None:
    with LocalTable(IN_MEMORY) as table:
        heart = Heart(
            nodes=Nodes(table),
            place=PLACE,
            now=lambda: 1.0,
            on_superseded=lambda _: None,
            vitals=Vitals(stack="prod", write=lambda _: None, now=lambda: 1.0),
        )
        heart.say(Condition(step=1, step_s=0.5, loss=1.0))
        heart.beat()


def trains_badly() -> None:
    scale = Scale()
    scale.fails = Unavailable("silent")
    vitals = Vitals(stack="prod", write=lambda _: None, now=lambda: 1.0)
    heart = Heart(nodes=scale, place=PLACE, now=lambda: 1.0, on_superseded=lambda _: None, vitals=vitals)
    heart.say(Condition(step=1, step_s=math.nan, loss=math.nan))
    heart.beat()


WRITTEN_BY: Final[Mapping[Metric, Scenario]] = {
    Metric.RUNS_LIVE: recovery,
    Metric.RUNS_BLOCKED: refused_by_ec2,
    Metric.RUNS_PAUSED: test_notify.test_a_spent_budget_says_what_to_do_once,
    Metric.RUNS_FAILED: trainer_failure,
    Metric.WASTE_STEPS: losses,
    Metric.WASTE_DOLLARS: test_phases.test_idle_dollars_reach_the_meter,
    Metric.INTERRUPTIONS: recovery,
    Metric.ADVICE: advised,
    Metric.ADVICE_STORMS: test_moves.test_a_storm_of_advice_starts_a_few_and_is_said_once,
    Metric.PREWARMED: test_moves.test_a_storm_of_advice_starts_a_few_and_is_said_once,
    Metric.MOVES_PLANNED: test_moves.test_a_date_that_is_far_is_kept_in_the_slot_and_the_move_begins_an_hour_before,
    Metric.ADOPTED: test_adoption.test_a_tagged_instance_is_given_the_open_claim,
    Metric.LOSSES_WITHOUT_NOTICE: losses,
    Metric.SILENT_NODES: losses,
    Metric.MASS_SILENCE: test_repair.test_mass_silence_replaces_nobody_and_rings,
    Metric.CLAIMS: recovery,
    Metric.CLAIMS_LOST: recovery,
    Metric.FLUSH_ORDERS: recovery,
    Metric.COMMANDS_NOT_SENT: not_sent,
    Metric.COMMANDS_ENDED: commands_ended,
    Metric.FLUSHES_COMMITTED: recovery,
    Metric.FLUSHES_FAILED: test_repair.test_a_flush_that_failed_is_counted_when_the_successor_has_joined,
    Metric.COMMITS_FOR_THE_DEAD: test_repair.test_a_complete_checkpoint_whose_agents_died_is_committed,
    Metric.RECOVERY: recovery,
    Metric.EVENT_DELAY: recovery,
    Metric.NOTICE_TO_CLAIM: recovery,
    Metric.FLUSH: recovery,
    Metric.CLAIM_TO_INSTANCE: recovery,
    Metric.BOOT: recovery,
    Metric.PARK: recovery,
    Metric.RESTORE: recovery,
    Metric.FIRST_STEP: recovery,
    Metric.LAUNCHES: recovery,
    Metric.INSTANCES_LAUNCHED: recovery,
    Metric.LAUNCH_ERRORS: refused_by_ec2,
    Metric.STEP: trains,
    Metric.NONFINITE_LOSS: trains_badly,
    Metric.BEATS_MISSED: trains_badly,
    Metric.SURPLUS_ENDED: test_repair.test_a_surplus_instance_is_ended_at_once,
    Metric.ORPHANS_ENDED: test_repair.test_an_orphan_is_ended_when_it_is_ten_minutes_old_and_a_hand_tagged_one_never,
    Metric.NEVER_JOINED: test_repair.test_a_node_that_never_joins_is_claimed_then_ended_and_another_pool_is_asked,
    Metric.IGNORED: recovery,
    Metric.MALFORMED: malformed,
    Metric.NOTIFICATIONS_LOST: test_notify.test_a_notification_that_is_lost_is_counted,
    Metric.NOTES_LOST: test_notify.test_entries_of_a_timeline_that_could_not_be_written_are_counted,
    Metric.NONFINITE_VALUES: trains_badly,
}
"""The registry: a metric that is added to the table without a line here, or whose scenario does not write it, fails."""


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """Every line that a meter or a heart writes."""
    found: list[dict[str, Any]] = []
    whole = emf.lines

    def spy(*args: Any, **fields: Any) -> tuple[str, ...]:
        lines = whole(*args, **fields)
        found.extend(json.loads(line) for line in lines)
        return lines

    monkeypatch.setattr(emf, "lines", spy)
    return found


def test_every_metric_of_the_table_has_its_scenario() -> None:
    assert set(WRITTEN_BY) == {row.metric for row in METRICS}


@pytest.mark.parametrize("row", METRICS, ids=lambda row: row.metric.value)
def test_the_metric_of_a_dashboard_widget_is_written(
    row: MetricRow, written: list[dict[str, Any]], tmp_path: Path
) -> None:
    scenario = WRITTEN_BY[row.metric]
    scenario(*([tmp_path] if "tmp_path" in inspect.signature(scenario).parameters else []))
    lines = [line for line in written if row.metric.value in line]
    assert lines, f"{row.metric} is on the dashboard and this scenario never writes it"
    assert any(value > 0 for line in lines for value in line[row.metric.value]) or row.metric in {
        Metric.EVENT_DELAY,
        Metric.NOTICE_TO_CLAIM,
        Metric.FLUSH,
        Metric.CLAIM_TO_INSTANCE,
    }, "it is always zero"
    wanted = [["stack"], *(["stack", one.value] for one in row.dimensions)]
    for line in lines:
        [directive] = [
            one
            for one in line["_aws"]["CloudWatchMetrics"]
            if row.metric.value in {named["Name"] for named in one["Metrics"]}
        ]
        assert directive["Dimensions"] == wanted
        assert all(line[one.value] for one in (Dimension.STACK, *row.dimensions))

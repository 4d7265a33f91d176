"""`spotproof status`: what stands in the table, and what a person should do."""

from __future__ import annotations

import json
from typing import Any

import pytest

from spotproof.cli.advice import next_steps
from spotproof.cli.status import describe
from spotproof.cli.statuslines import lines_of
from spotproof.contract.items import NO_INSTANCE, Head, Node, Pool, Slot
from spotproof.contract.states import Cause, Market, NodePhase, RunStatus
from spotproof.contract.times import Times
from spotproof.errors import Missing
from spotproof.store.local import IN_MEMORY, LocalTable
from tests.fakes.control import REGION, World, notice, state

NOW = 1_777_888_800


def shown(world: World) -> tuple[dict[str, Any], list[str]]:
    document = describe("mini", world.table, region=REGION, where="--stack prod", now=world.clock())
    json.dumps(document)
    return document, lines_of(document, now=int(world.clock()))


def recovered() -> World:
    world = World()
    [lost] = world.started()
    world.beat("mini", lost, step=40)
    world.commit("mini", 40)
    world.deliver(notice(lost, world.clock()))
    world.flushed("mini", lost, 40)
    world.boot()
    world.join()
    at_ms = int(world.clock() * 1000)
    times = Times(at_ms=(at_ms, at_ms + 2000, at_ms + 3000, at_ms + 3500))
    world.beat("mini", str(world.slot().successor_instance), step=41, times=times.text())
    world.tick()
    world.beat("mini", str(world.slot().holder_instance), step=60, times=times.text())
    return world


def test_a_run_that_nobody_knows_is_said() -> None:
    with LocalTable(IN_MEMORY) as table, pytest.raises(Missing, match="no run mini"):
        describe("mini", table)


def test_a_healthy_run_has_its_nodes_its_recoveries_drawn_and_nothing_to_do() -> None:
    world = recovered()
    document, lines = shown(world)
    text = "\n".join(lines)
    assert lines[0] == "run mini: active"
    assert "step 40 is committed (generation 1, 1 min 00 s ago)" in text
    assert "training" in text
    assert "park 2.0 s, restore 1.0 s, first step 0.5 s" in text
    assert "recoveries (n notice, q request, b boot, p park, r restore, s first step):" in text
    assert "slot 0 node 2 interruption" in text
    assert lines[-1] == "next: nothing to do"
    assert [one["cause"] for one in document["recoveries"]] == ["interruption"]
    assert document["recoveries"][0]["stages"]["park"] == 2.0


def test_a_run_before_its_first_node_says_so() -> None:
    world = World()
    world.submit()
    _, lines = shown(world)
    assert lines == ["run mini: active", "nothing is committed yet", "next: nothing to do"]


def test_pools_that_cool_down_are_named_with_the_reason() -> None:
    world = recovered()
    until = int(world.clock()) + 540
    pool = Pool(region=REGION, instance_type="g5.xlarge", zone="us-east-1a", market=Market.SPOT)
    world.stores.pools.cool(None, _cooled(pool, until))
    document, lines = shown(world)
    assert document["pools_cooling"][0]["seconds_left"] == 540
    assert "not asked: g5.xlarge in us-east-1a (spot) for 9 min 00 s more: capacity" in lines


def _cooled(pool: Pool, until: int) -> Pool:
    return Pool(
        region=pool.region,
        instance_type=pool.instance_type,
        zone=pool.zone,
        market=pool.market,
        until=until,
        cooldown_s=600,
        verdict="capacity",
    )


def test_a_slot_that_finds_no_capacity_says_what_to_change() -> None:
    slot = Slot(
        run="mini",
        slot=0,
        incarnation=3,
        holder_instance=NO_INSTANCE,
        successor_instance=NO_INSTANCE,
        successor_incarnation=3,
        claimed_at=NOW - 1200,
    )
    head = Head(run="mini", status=RunStatus.ACTIVE)
    [line] = next_steps("mini", head, [slot], [], now=NOW, where="--stack prod")
    assert "no capacity for 20 min" in line
    assert "allow on-demand" in line


@pytest.mark.parametrize(
    ("status", "reason", "says"),
    [
        (RunStatus.BLOCKED, "raise the quota", "raise the quota"),
        (RunStatus.PAUSED, "25 recoveries without a commit", "25 recoveries"),
        (RunStatus.PAUSED, "", "find out why"),
        (RunStatus.PAUSED, "", "then spotproof resume mini --stack prod"),
        (RunStatus.FAILED, "", "read the log"),
        (RunStatus.FAILED, "", "then spotproof resume mini --stack prod"),
        (RunStatus.DONE, "", "spotproof report mini --stack prod -o story.html"),
        (RunStatus.STOPPING, "", "the last checkpoint is on its way"),
    ],
)
def test_every_status_says_what_to_do_next(status: RunStatus, reason: str, says: str) -> None:
    head = Head(run="mini", status=status, cause=Cause.BUDGET, reason=reason)
    lines = next_steps("mini", head, [], [], now=NOW, where="--stack prod")
    assert any(says in line for line in lines)


def test_a_run_that_a_person_paused_is_resumed_by_a_command() -> None:
    head = Head(run="mini", status=RunStatus.PAUSED, cause=Cause.USER)
    assert next_steps("mini", head, [], [], now=NOW, where="--stack prod") == ["spotproof resume mini --stack prod"]


def test_a_silent_node_is_named_until_it_is_replaced() -> None:
    world = recovered()
    world.clock.advance(70)
    _, lines = shown(world)
    assert "next: 1 nodes have not beaten for 60 s: they are replaced within two minutes" in lines


def test_of_a_large_run_only_what_is_unusual_is_listed() -> None:
    world = World()
    world.submit(slots=200)
    for slot in range(200):
        phase = NodePhase.PARKED if slot == 77 else NodePhase.TRAINING
        world.stores.nodes.beat(
            Node(run="mini", slot=slot, incarnation=1, instance=f"i-{slot}", phase=phase, beat_at=int(world.clock()))
        )
    _, lines = shown(world)
    assert "200 nodes: 199 training, 1 parked" in lines
    assert [line.split()[0] for line in lines if "i-" in line] == ["77"]


def test_the_words_of_a_run_move_no_terminal() -> None:
    world = recovered()
    world.stores.heads.move(world.head(), RunStatus.BLOCKED, cause=Cause.QUOTA, reason="\x1b[2J", now=1)
    _, lines = shown(world)
    assert all(line.isprintable() for line in lines)


def test_a_second_loss_before_the_first_is_recovered_is_drawn_too() -> None:
    world = recovered()
    world.deliver(state(str(world.slot().holder_instance), world.clock(), "terminated"))
    document, lines = shown(world)
    assert len(document["recoveries"]) == 2
    assert any("still under way" in line for line in lines)

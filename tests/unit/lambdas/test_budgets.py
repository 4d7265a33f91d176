"""Budgets: what pauses a run, with its cause; and the counts that they stand on, each made once."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest

from spotproof.contract import hours, limits
from spotproof.contract.items import NO_INSTANCE
from spotproof.contract.metrics import Metric
from spotproof.contract.runspec import Budgets, Pools
from spotproof.contract.states import Cause, NodePhase, RunStatus
from tests.fakes.control import SETTINGS, World, notice, state
from tests.fakes.fuse import Fuse, FusedTable, Killed

PRICED = {"g5.xlarge#us-east-1a": 0.4, "g5.xlarge#us-east-1b": 0.5, "g5.xlarge#us-east-1c": 0.6}


def training(world: World, minutes: int) -> None:
    for _ in range(minutes):
        world.beat_all()
        world.tick()


def started(world: World, budgets: Budgets, **pools: Any) -> str:
    given = {"types": ("g5.xlarge",), "on_demand_usd": ("g5.xlarge=1.006",), **pools}
    [holder] = world.started(pools=Pools(**given), budgets=budgets)
    return holder


def test_dollars_are_estimated_from_what_ec2_says_of_spot_and_pause_the_run() -> None:
    world = World()
    world.ec2.prices = dict(PRICED)
    holder = started(world, Budgets(dollars=0.2))
    training(world, 27)
    assert world.head().status is RunStatus.ACTIVE
    assert world.head().spent_usd == pytest.approx(0.4 * 25 / 60, abs=0.05)
    training(world, 6)
    assert (world.head().status, world.head().cause) == (RunStatus.PAUSED, Cause.BUDGET)
    assert "$0.2" in world.head().reason
    assert any("budget" in said["Message"] for said in world.sns.said)
    world.beat("mini", holder, NodePhase.DRAINING)
    for _ in range(15):
        world.tick()
    assert world.ec2.alive() == [], "a paused run's nodes are ended after their flush"
    assert world.slot().holder_instance in (holder, NO_INSTANCE), "nothing is deleted"


def test_without_a_spot_price_the_on_demand_price_is_taken() -> None:
    world = World()
    started(world, Budgets(dollars=10.0))
    training(world, 60)
    assert world.head().spent_usd == pytest.approx(1.006, abs=0.1)


def test_the_time_of_a_run_is_a_budget_and_resuming_grants_it_again() -> None:
    world = World()
    started(world, Budgets(wall_clock_s=1800))
    training(world, 27)
    assert world.head().status is RunStatus.ACTIVE
    training(world, 4)
    paused = world.head()
    assert (paused.status, paused.cause, "1800 s" in paused.reason) == (RunStatus.PAUSED, Cause.BUDGET, True)
    world.stores.heads.move(paused, RunStatus.ACTIVE, now=int(world.clock()))
    world.stores.live.hasten("mini", due_at=int(world.clock()))
    training(world, 20)
    assert world.head().status is RunStatus.ACTIVE
    training(world, 12)
    assert world.head().status is RunStatus.PAUSED


def test_a_run_without_limits_is_never_paused_for_time_or_money() -> None:
    world = World()
    world.ec2.prices = dict(PRICED)
    started(world, Budgets())
    training(world, 120)
    assert world.head().status is RunStatus.ACTIVE
    assert world.head().spent_usd > 0.5, "what it costs is known all the same"


# ------------------------------------------------------------------------------------------------------------- counts
class Forgetful:
    """A table whose writes to one key take effect and lose their answer: the store writes again."""

    def __init__(self, table: Any, key: str) -> None:
        self._table, self._key = table, key

    def write(self, op: Any) -> Any:
        if op.key.sk == self._key and op.when is not None:
            self._table.write(op)
        return self._table.write(op)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._table, name)


def test_a_count_whose_answer_got_lost_is_made_once() -> None:
    world = World()
    [lost] = world.started()
    forgetful: Any = Forgetful(world.table, "HEAD")
    world.control = world.make_control(forgetful, world.ec2, world.ssm, world.sqs)
    world.deliver(notice(lost, world.clock()))
    assert world.head().recoveries == 1


def test_a_recovery_behind_a_commit_that_no_look_has_noted_is_counted_and_stays_so() -> None:
    world = World()
    [lost] = world.started()
    world.commit("mini", 100)
    world.deliver(notice(lost, world.clock()))
    assert (world.head().committed_step, world.head().recoveries) == (100, 1)
    world.beat("mini", lost)
    world.tick()
    assert world.head().recoveries == 1


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("effect", range(1, 22))
def test_killed_at_any_effect_a_recovery_counts_once(effect: int, after: bool) -> None:
    world = World()
    [lost] = world.started()
    at = world.clock()
    victim = world.make_control(FusedTable(world.table, Fuse(at=effect, after=after)), world.ec2, world.ssm, world.sqs)
    with contextlib.suppress(Killed):
        world.deliver(notice(lost, at), control=victim)
    world.deliver(notice(lost, at))
    for _ in range(3):
        world.beat("mini", lost)
        world.tick()
    assert (world.head().recoveries, len(world.ec2.instances)) == (1, 2)
    pools = {pool.zone: pool.losses for pool in world.stores.pools.list("us-east-1") if pool.losses}
    assert sum(pools.values()) <= 1, "a loss that a killed handler did not count is a worse guess; never two"


def test_losses_of_a_burst_are_one_count_of_the_pool_in_the_hour_of_the_week() -> None:
    world = World()
    lost = world.started(slots=6)
    for instance in lost:
        world.deliver(notice(instance, world.clock()))
    for _ in range(2):
        world.beat_all()
        world.tick()
    [pool] = [one for one in world.stores.pools.list("us-east-1") if one.losses]
    assert (pool.losses, hours.losses_at(pool.hours, int(world.clock()))) == (6, 6)


def test_a_claim_that_waits_for_capacity_counts_its_loss_once() -> None:
    world = World()
    [lost] = world.started(pools=Pools(types=("g5.xlarge",), cooldown_s=60))
    world.ec2.refused = {f"g5.xlarge#us-east-1{letter}#spot": "InsufficientInstanceCapacity" for letter in "abc"}
    world.deliver(notice(lost, world.clock()))
    for _ in range(15):
        world.tick()
    assert world.ec2.count("create_fleet") > 3
    assert sum(pool.losses for pool in world.stores.pools.list("us-east-1")) == 1


# ------------------------------------------------------------------------------------------------------- market looks
def test_prices_are_asked_for_once_an_hour_however_many_runs_there_are() -> None:
    world = World()
    world.ec2.prices = dict(PRICED)
    for run in ("mini", "other"):
        world.submit(run, types=("g5.xlarge",))
    for _ in range(50):
        world.tick()
    assert world.ec2.count("describe_spot_price_history") == 1
    for _ in range(20):
        world.tick()
    assert world.ec2.count("describe_spot_price_history") == 2
    assert world.ec2.count("get_spot_placement_scores") == 0
    known = {pool.zone: pool.price_usd for pool in world.stores.pools.list("us-east-1") if pool.price_usd}
    assert known == {"us-east-1a": 0.4, "us-east-1b": 0.5, "us-east-1c": 0.6}


@pytest.mark.parametrize(("types", "asked"), [(2, 0), (3, 1)])
def test_placement_scores_are_asked_for_where_a_run_wants_them_and_they_mean_something(types: int, asked: int) -> None:
    world = World()
    kinds = ("g5.xlarge", "g6.xlarge", "g6e.xlarge")[:types]
    world.ec2.prices = {f"{kind}#us-east-1{letter}": 0.4 for kind in kinds for letter in "abc"}
    world.ec2.scores = {"use1-aza": 1, "use1-azb": 9}
    world.submit(pools=Pools(types=kinds, placement_scores=True))
    world.tick()
    assert world.ec2.count("get_spot_placement_scores") == asked
    scores = {pool.zone: pool.score for pool in world.stores.pools.list("us-east-1") if pool.score}
    assert scores == ({"us-east-1a": 1, "us-east-1b": 9} if asked else {})


def test_what_ec2_and_the_past_say_of_pools_reaches_the_request() -> None:
    world = World()
    kinds = ("g5.xlarge", "g6.xlarge", "g6e.xlarge")
    world.ec2.prices = {f"{kind}#us-east-1{letter}": 0.4 for kind in kinds for letter in "abc"}
    world.ec2.scores = {"use1-aza": 1, "use1-azb": 9, "use1-azc": 7}
    [lost] = world.started(pools=Pools(types=kinds, placement_scores=True))
    world.deliver(notice(lost, world.clock()))
    *_, request = (request for call, request in world.ec2.calls if call == "create_fleet")
    overrides = request["LaunchTemplateConfigs"][0]["Overrides"]
    assert {one["SubnetId"] for one in overrides} == {"subnet-b", "subnet-c"}, "zone a has a poor score"


def test_a_market_that_does_not_answer_stops_nothing() -> None:
    world = World()
    world.ec2.fail("describe_spot_price_history", "RequestLimitExceeded", times=9)
    world.submit()
    assert world.tick() == {}
    assert world.slot().successor_instance != NO_INSTANCE
    assert world.meter.total(Metric.LAUNCHES) == 1
    assert limits.MARKET_LOOK_S == 3600


def spend_the_hour(world: World) -> None:
    """Every launch that the stack has in this hour has been made."""
    hour = int(world.clock()) // 3600
    made = world.stores.pools.launches_made("us-east-1", hour=hour)
    for number in range(made or 0, SETTINGS.launches_per_hour):
        begun = number > 0
        limit = SETTINGS.launches_per_hour
        world.table.write(world.stores.pools.counting("us-east-1", hour=hour, limit=limit, begun=begun))


@pytest.mark.parametrize("told", [True, False])
def test_what_ec2_takes_comes_back_although_the_hours_launches_are_spent(told: bool) -> None:
    world = World()
    holders = world.started(slots=2)
    spend_the_hour(world)
    ends = notice if told else lambda instance, at: state(instance, at, "terminated")
    world.deliver(*(ends(one, world.clock()) for one in holders))
    for one in holders:
        world.ec2.instances[one].state = "terminated"
    world.tick()
    assert world.head().status is RunStatus.ACTIVE
    assert all(slot.successor_instance not in (None, NO_INSTANCE) for slot in world.slots())
    hour = int(world.clock()) // 3600
    assert world.stores.pools.launches_made("us-east-1", hour=hour) == SETTINGS.launches_per_hour


def test_a_node_that_ends_itself_while_it_boots_spends_the_hours_launches() -> None:
    world = World()
    [holder] = world.started()
    spend_the_hour(world)
    world.deliver(notice(holder, world.clock()))
    successor = str(world.slot().successor_instance)
    world.ec2.instances[successor].state = "terminated"
    world.deliver(state(successor, world.clock(), "terminated"))
    assert (world.head().status, world.head().cause) == (RunStatus.PAUSED, Cause.BUDGET)
    assert world.ec2.count("create_fleet") == 2

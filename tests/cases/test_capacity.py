"""CAP cases of the case book: what CreateFleet answers, through the real pipeline."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from lambdas.decisions.request import token_of
from spotproof.contract.items import NO_INSTANCE
from spotproof.contract.runspec import MarketPolicy, Pools
from spotproof.contract.states import Cause, RunStatus
from tests.fakes.control import World, notice
from tests.fakes.fuse import Fuse, FusedClient, FusedTable, Killed

FIXTURES = Path(__file__).parent / "fixtures"
EVERYWHERE = ("us-east-1a", "us-east-1b", "us-east-1c")


class Scripted:
    """EC2 whose next CreateFleet answers are fixtures; after them the market decides."""

    def __init__(self, world: World, *answers: str) -> None:
        self._world = world
        self._answers = [json.loads((FIXTURES / f"{name}.json").read_text()) for name in answers]
        self.asked: list[dict[str, Any]] = []

    def create_fleet(self, **request: Any) -> Any:
        self.asked.append(request)
        if not self._answers:
            return self._world.ec2.create_fleet(**request)
        answer = self._answers.pop(0)
        for group in answer["Instances"]:
            for instance in group["InstanceIds"]:
                self._world.ec2.tag(instance, tags={"spotproof:stack": "prod", "spotproof:launch": "1"})
        return answer

    def __getattr__(self, name: str) -> Any:
        return getattr(self._world.ec2, name)

    def pools(self, call: int) -> set[tuple[str, str]]:
        """Type and subnet of every override of a call."""
        overrides = self.asked[call]["LaunchTemplateConfigs"][0]["Overrides"]
        return {(one["InstanceType"], one["SubnetId"]) for one in overrides}


def scripted(world: World, *answers: str) -> Scripted:
    ec2 = Scripted(world, *answers)
    world.control = world.make_control(world.table, ec2, world.ssm, world.sqs)
    return ec2


def test_cap_01_no_instance_is_a_failure_of_those_pools_and_others_are_tried() -> None:
    world = World()
    world.submit(types=("p4d.24xlarge", "g5.48xlarge", "g6.48xlarge"))
    ec2 = scripted(world, "fleet-ice-all")
    world.tick()
    assert len(ec2.asked) == 2
    named = {("p4d.24xlarge", "subnet-a"), ("g5.48xlarge", "subnet-b")}
    assert named <= ec2.pools(0)
    assert not named & ec2.pools(1)


def test_cap_01_without_any_capacity_the_run_waits_for_the_pools_and_asks_again() -> None:
    world = World()
    world.submit(types=("g5.xlarge",))
    world.ec2.refused = {f"g5.xlarge#{zone}#spot": "InsufficientInstanceCapacity" for zone in EVERYWHERE}
    for _ in range(9):
        world.tick()
    assert (world.ec2.count("create_fleet"), world.slot().successor_instance) == (1, NO_INSTANCE)
    world.ec2.refused = {}
    for _ in range(3):
        world.tick()
    assert world.ec2.count("create_fleet") == 2
    assert world.slot().successor_instance != NO_INSTANCE


def test_cap_02_errors_beside_an_instance_launch_nothing_more() -> None:
    world = World()
    world.submit(types=("p4d.24xlarge", "g5.48xlarge"))
    ec2 = scripted(world, "fleet-partial-ok")
    world.tick()
    assert (len(ec2.asked), world.slot().successor_instance) == (1, "i-0c0ffee0c0ffee001")
    assert world.member("i-0c0ffee0c0ffee001").zone == "us-east-1c"


def test_cap_03_throttling_inside_the_answer_says_nothing_of_the_pools() -> None:
    world = World()
    world.submit(types=("p4d.24xlarge",))
    ec2 = scripted(world, "fleet-throttled")
    world.tick()
    assert (len(ec2.asked), world.stores.pools.list("us-east-1")) == (1, ())
    world.tick()
    assert ec2.pools(1) == ec2.pools(0)


def test_cap_04_another_attempt_has_another_token_and_a_replay_the_same() -> None:
    world = World()
    world.submit(types=("p4d.24xlarge",), market=MarketPolicy.SPOT_THEN_ON_DEMAND)
    world.ec2.refused = {f"p4d.24xlarge#{zone}#spot": "InsufficientInstanceCapacity" for zone in EVERYWHERE}
    world.tick()
    spot, on_demand = (request for call, request in world.ec2.calls if call == "create_fleet")
    assert spot["ClientToken"] != on_demand["ClientToken"]
    assert on_demand["TargetCapacitySpecification"]["DefaultTargetCapacityType"] == "on-demand"
    launches = world.stores.launches.recent("mini")
    assert [token_of(launch.request) for launch in launches] == [spot["ClientToken"], on_demand["ClientToken"]]
    assert all(len(launch.token) == 64 and launch.token.isascii() for launch in launches)


@pytest.mark.parametrize("market", [MarketPolicy.SPOT, MarketPolicy.SPOT_THEN_ON_DEMAND])
def test_cap_05_a_spent_quota_ends_the_spot_tries(market: MarketPolicy) -> None:
    world = World()
    world.submit(types=("p4d.24xlarge",), market=market)
    ec2 = scripted(world, "fleet-quota-spot")
    for _ in range(5):
        world.tick()
    if market is MarketPolicy.SPOT:
        assert (len(ec2.asked), world.head().status, world.head().cause) == (1, RunStatus.BLOCKED, Cause.QUOTA)
        assert "quota" in world.head().reason
        assert len(world.sns.said) == 1
    else:
        assert [one["TargetCapacitySpecification"]["DefaultTargetCapacityType"] for one in ec2.asked] == [
            "spot",
            "on-demand",
        ]


def test_cap_06_a_pair_that_is_not_sold_is_dropped_for_a_day_and_the_launch_counts() -> None:
    world = World()
    world.submit(types=("p4d.24xlarge",))
    scripted(world, "fleet-az-unsupported")
    world.tick()
    assert world.slot().successor_instance == "i-0c0ffee0c0ffee002"
    [pool] = world.stores.pools.list("us-east-1")
    assert (pool.zone, pool.until) == ("us-east-1e", int(world.clock()) + 86_400)


def test_cap_06_nothing_sold_anywhere_is_a_configuration_error() -> None:
    world = World()
    world.submit(types=("p4d.24xlarge",))
    world.ec2.refused = {f"p4d.24xlarge#{zone}#spot": "InvalidFleetConfiguration" for zone in EVERYWHERE}
    world.tick()
    assert (world.head().status, world.head().cause) == (RunStatus.BLOCKED, Cause.CONFIGURATION)


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("effect", range(1, 25))
def test_cap_07_killed_at_any_effect_exactly_one_replacement_runs(effect: int, after: bool) -> None:
    world = World()
    [lost] = world.started()
    at = world.clock()
    fuse = Fuse(at=effect, after=after)
    victim = world.make_control(
        FusedTable(world.table, fuse), FusedClient(world.ec2, fuse), FusedClient(world.ssm, fuse), world.sqs
    )
    killed = False
    try:
        world.deliver(notice(lost, at), control=victim)
    except Killed:
        killed = True
    assert killed == (fuse.used == effect)
    world.clock.advance(20)
    assert world.deliver(notice(lost, at)) == {}
    assert world.deliver(notice(lost, at)) == {}
    for _ in range(3):
        world.beat("mini", lost)
        world.tick()
    replacements = [one.instance for one in world.ec2.alive() if one.instance != lost]
    assert replacements == [world.slot().successor_instance]
    assert world.member(replacements[0]).incarnation == 2
    assert len(world.ec2.instances) == 2


def test_cap_07_the_last_effects_were_killed_too() -> None:
    world = World()
    [lost] = world.started()
    fuse = Fuse()
    world.control = world.make_control(
        FusedTable(world.table, fuse), FusedClient(world.ec2, fuse), FusedClient(world.ssm, fuse), world.sqs
    )
    world.deliver(notice(lost, world.clock()))
    assert 10 < fuse.used < 25, "the range of the test above must reach past the last effect"


def test_cap_10_no_maximum_price_is_ever_sent() -> None:
    world = World()
    world.submit()
    world.tick()
    [request] = [request for call, request in world.ec2.calls if call == "create_fleet"]
    assert "Price" not in json.dumps(request)


@pytest.mark.parametrize("market", [MarketPolicy.SPOT, MarketPolicy.SPOT_THEN_ON_DEMAND])
def test_cap_10_a_price_that_is_too_low_is_no_shortage_and_not_asked_again(market: MarketPolicy) -> None:
    world = World()
    world.submit(pools=Pools(types=("g5.12xlarge",), zones=("us-east-1a",), market=market))
    ec2 = scripted(world, "fleet-price-low")
    for _ in range(3):
        world.tick()
    asked = [one["TargetCapacitySpecification"]["DefaultTargetCapacityType"] for one in ec2.asked]
    if market is MarketPolicy.SPOT:
        assert (asked, world.head().status) == (["spot"], RunStatus.BLOCKED)
        assert "price" in world.head().reason
    else:
        assert asked == ["spot", "on-demand"], "the run allows it"


def test_cap_11_a_fleet_quota_waits_and_marks_no_pool() -> None:
    world = World()
    world.submit()
    world.ec2.fail("create_fleet", "MaxFleetCountExceeded")
    world.tick()
    assert (world.ec2.count("create_fleet"), world.stores.pools.list("us-east-1")) == (1, ())
    world.tick()
    world.tick()
    assert world.slot().successor_instance != NO_INSTANCE


def test_cap_12_a_type_that_a_policy_forbids_is_dropped_and_the_others_go() -> None:
    world = World()
    world.submit(types=("p5.48xlarge", "g6.48xlarge"))
    world.ec2.refused = {f"p5.48xlarge#{zone}#spot": "UnauthorizedOperation" for zone in EVERYWHERE}
    world.tick()
    assert world.member(str(world.slot().successor_instance)).instance_type == "g6.48xlarge"
    assert {pool.verdict for pool in world.stores.pools.list("us-east-1")} == {"denied"}


def test_cap_12_the_type_is_left_out_of_the_next_request_in_every_zone() -> None:
    world = World()
    world.submit(types=("p5.48xlarge", "g6.48xlarge"))
    ec2 = scripted(world, "fleet-scp")
    world.tick()
    assert {kind for kind, _ in ec2.pools(0)} == {"p5.48xlarge", "g6.48xlarge"}
    assert {kind for kind, _ in ec2.pools(1)} == {"g6.48xlarge"}, "a policy forbids the type, wherever it is"
    assert world.slot().successor_instance != NO_INSTANCE


def test_cap_08_an_id_that_ec2_does_not_show_yet_is_kept_and_not_launched_again() -> None:
    world = World()
    world.ec2.invisible_s = 55
    world.submit()
    world.tick()
    bound = world.slot().successor_instance
    assert world.member(str(bound)).launch == 1, "stored before anything was described"
    world.tick(after_s=50)
    world.tick()
    assert (world.ec2.count("create_fleet"), world.slot().successor_instance) == (1, bound)


def test_cap_09_nothing_asks_for_the_instances_of_an_instant_fleet_later() -> None:
    sources = Path(__file__).parents[2].joinpath("lambdas").rglob("*.py")
    calls = [path.name for path in sources if re.search(r"describe_fleet|delete_fleets", path.read_text())]
    assert calls == []

"""IAM cases of the case book that are about a run; those about the template stand in tests/synth."""

from __future__ import annotations

import pytest

from spotproof.contract.items import NO_INSTANCE
from spotproof.contract.runspec import MarketPolicy
from spotproof.contract.states import Cause, RunStatus
from tests.fakes.control import World, notice

NO_ROLE = "AuthFailure.ServiceLinkedRoleCreationNotPermitted"


@pytest.mark.parametrize("market", [MarketPolicy.SPOT, MarketPolicy.SPOT_THEN_ON_DEMAND])
def test_iam_03_an_account_that_never_used_spot_blocks_the_run_and_names_the_role(market: MarketPolicy) -> None:
    world = World()
    world.submit(market=market)
    world.ec2.fail("create_fleet", NO_ROLE, times=9)
    for _ in range(4):
        world.tick()
    assert (world.head().status, world.head().cause) == (RunStatus.BLOCKED, Cause.CONFIGURATION)
    assert "create-service-linked-role" in world.head().reason
    assert "spot.amazonaws.com" in world.head().reason
    asked = [call for operation, call in world.ec2.calls if operation == "create_fleet"]
    assert [one["TargetCapacitySpecification"]["DefaultTargetCapacityType"] for one in asked] == ["spot"]
    assert len(world.sns.said) == 1
    assert world.slot().successor_instance == NO_INSTANCE


def test_iam_07_a_replacement_boots_the_version_that_the_run_was_submitted_with() -> None:
    world = World()
    pinned = world.submit().placement
    assert pinned is not None
    world.tick()
    first = str(world.slot().successor_instance)
    world.deliver(notice(first, world.clock()))
    asked = [call for operation, call in world.ec2.calls if operation == "create_fleet"]
    assert len(asked) == 2
    for call in asked:
        (config,) = call["LaunchTemplateConfigs"]
        assert config["LaunchTemplateSpecification"] == {
            "LaunchTemplateId": pinned.template,
            "Version": pinned.template_version,
        }

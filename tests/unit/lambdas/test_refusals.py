"""Requests that EC2 refuses as a whole: blocked at once where a person has to act, and never repeated for ever."""

from __future__ import annotations

import pytest

from lambdas.decisions.verdicts import Verdict, verdict_of
from spotproof.contract import limits
from spotproof.contract.items import NO_INSTANCE
from spotproof.contract.states import Cause, RunStatus
from tests.fakes.control import World


@pytest.mark.parametrize(
    "code",
    [
        "UnauthorizedOperation",
        "AuthFailure",
        "AuthFailure.ServiceLinkedRoleCreationNotPermitted",
        "InvalidParameterValue",
        "InvalidBlockDeviceMapping",  # not in the table: it names the request's own words
        "MissingParameter",
        "OptInRequired",
    ],
)
def test_what_no_repetition_changes_blocks_the_run_at_once(code: str) -> None:
    world = World()
    world.submit()
    world.ec2.fail("create_fleet", code, times=99)
    for _ in range(3):
        world.tick()
    head = world.head()
    assert (head.status, head.cause, world.ec2.count("create_fleet")) == (RunStatus.BLOCKED, Cause.CONFIGURATION, 1)
    assert code in head.reason
    assert len(world.sns.said) == 1


def test_a_refusal_that_nobody_knows_is_tried_a_few_times_and_then_blocks_with_its_code() -> None:
    world = World()
    world.submit()
    world.ec2.fail("create_fleet", "OddWeather", times=99)
    for _ in range(20):
        world.tick()
    head = world.head()
    assert (head.status, head.cause) == (RunStatus.BLOCKED, Cause.CONFIGURATION)
    assert (world.ec2.count("create_fleet"), head.refusals) == (limits.IDENTICAL_REFUSALS, limits.IDENTICAL_REFUSALS)
    assert "OddWeather" in head.reason
    assert "resume" in head.reason


def test_refusals_of_different_kinds_are_not_the_same_for_ever() -> None:
    world = World()
    world.submit()
    for number in range(12):
        world.ec2.fail("create_fleet", f"Odd{number % 2}")
        world.tick()
    assert world.head().status is RunStatus.ACTIVE
    world.tick()
    assert world.slot().successor_instance != NO_INSTANCE
    assert world.head().refusals == 0


def test_throttling_never_blocks() -> None:
    world = World()
    world.submit()
    world.ec2.fail("create_fleet", "RequestLimitExceeded", times=30)
    for _ in range(40):
        world.tick()
    assert world.head().status is RunStatus.ACTIVE
    assert world.slot().successor_instance != NO_INSTANCE


def test_a_run_that_is_resumed_tries_again() -> None:
    world = World()
    world.submit()
    world.ec2.fail("create_fleet", "OddWeather", times=limits.IDENTICAL_REFUSALS)
    for _ in range(20):
        world.tick()
    blocked = world.head()
    world.stores.heads.move(blocked, RunStatus.ACTIVE, now=int(world.clock()))
    world.stores.live.hasten("mini", due_at=int(world.clock()))
    world.tick()
    assert world.slot().successor_instance != NO_INSTANCE


def test_one_pool_with_a_fault_of_its_own_rests_and_the_others_go() -> None:
    world = World()
    world.submit(types=("g5.xlarge",))
    world.ec2.refused = {"g5.xlarge#us-east-1a#spot": "InvalidSubnetID.NotFound"}
    world.tick()
    assert world.member(str(world.slot().successor_instance)).zone == "us-east-1b"
    [pool] = [one for one in world.stores.pools.list("us-east-1") if one.verdict]
    assert (pool.verdict, pool.until) == ("configuration", int(world.clock()) + limits.POOL_NOT_OFFERED_S)


@pytest.mark.parametrize(
    ("code", "verdict"),
    [
        ("InvalidKeyPair.NotFound", Verdict.CONFIGURATION),
        ("MalformedQueryString", Verdict.CONFIGURATION),
        ("InvalidFleetConfiguration", Verdict.NOT_OFFERED),
        ("InsufficientMoonlight", Verdict.UNKNOWN),
    ],
)
def test_codes_beyond_the_table(code: str, verdict: Verdict) -> None:
    assert verdict_of(code) is verdict

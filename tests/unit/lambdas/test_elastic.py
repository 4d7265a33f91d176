"""Elastic runs: who is waited for is what EC2's answers say; everybody else is told by HEAD."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from lambdas.decisions import elastic
from lambdas.decisions.actions import Reach
from lambdas.decisions.facts import Facts
from spotproof.contract.items import NO_INSTANCE, Head, Launch, Slot
from spotproof.contract.runspec import Liveness, Pools, RunSpec
from spotproof.contract.states import LaunchState, Market, NodePhase, RunStatus
from tests.fakes.control import SUBNETS, World, state

NOW, PATIENCE_S = 10_000, 100.0
SPEC = RunSpec(
    run="mini",
    image="x@sha256:" + "0" * 64,
    command=("torchrun",),
    pools=Pools(types=("g5.xlarge",)),
    slots=4,
    elastic="2..4",
    elastic_after_s=PATIENCE_S,
)


def held(number: int) -> Slot:
    return Slot(run="mini", slot=number, incarnation=1, holder_instance=f"i-{number}", holder_incarnation=1)


def lost(number: int, *, since_s: float, successor: str = NO_INSTANCE, **fields: Any) -> Slot:
    return replace(
        held(number),
        incarnation=2,
        successor_instance=successor,
        successor_incarnation=2,
        claimed_at=int(NOW - since_s),
        **fields,
    )


def launch(*wants: str, state: LaunchState = LaunchState.CLOSED) -> Launch:
    return Launch(
        run="mini", launch=1, state=state, wants=wants, request="{}", token="t", market=Market.SPOT, made_at=NOW
    )


def reach(*slots: Slot, launches: tuple[Launch, ...] = (), spec: RunSpec = SPEC, **head: Any) -> int | None:
    """What HEAD is told; None: nothing, what stands there is right."""
    found = Head(run="mini", status=RunStatus.ACTIVE, slots=4, least=2, **head)
    facts = Facts(run="mini", stack="s", region="r", now=NOW, head=found, spec=spec, slots=slots, launches=launches)
    actions = elastic.decide(facts, found, {slot.slot: slot for slot in slots})
    said = [action.nodes for action in actions if isinstance(action, Reach)]
    return said[0] if said else None


HELD = (held(1), held(2), held(3))


@pytest.mark.parametrize(
    ("slots", "launches", "head", "said"),
    [
        ((held(0), *HELD), (), {}, None),
        ((lost(0, since_s=999), *HELD), (launch("0:2"),), {}, 3),  # EC2 had nothing, for long
        ((lost(0, since_s=99), *HELD), (launch("0:2"),), {}, None),  # not for long enough
        ((lost(0, since_s=999), *HELD), (), {}, None),  # nobody has asked it yet
        ((lost(0, since_s=999), *HELD), (), {"next_launch_at": NOW + 60}, 3),  # every pool cools down
        ((lost(0, since_s=999), *HELD), (launch("0:2", state=LaunchState.INTENDED),), {}, None),  # it may still come
        ((lost(0, since_s=999, successor="i-9"), *HELD), (launch("0:2"),), {}, None),  # it boots
        ((lost(0, since_s=999, waits_for_notice=True), *HELD), (launch("0:2"),), {}, None),  # its holder works
        ((lost(0, since_s=999), *HELD), (launch("0:2"),), {"reach": 3}, None),  # said already
        ((lost(0, since_s=5, successor="i-9"), *HELD), (), {"reach": 3}, 0),  # one was found: all are waited for
        ((lost(0, since_s=999), lost(1, since_s=5), held(2), held(3)), (launch("0:2"),), {}, 3),  # the other may come
        (tuple(lost(n, since_s=999) for n in range(4)), (launch("0:2", "1:2", "2:2", "3:2"),), {}, 2),  # the least
    ],
)
def test_what_is_within_reach(
    slots: tuple[Slot, ...], launches: tuple[Launch, ...], head: dict[str, Any], said: int | None
) -> None:
    assert reach(*slots, launches=launches, **head) == said


def test_a_run_of_fixed_size_waits_for_ever() -> None:
    fixed = replace(SPEC, elastic="")
    assert reach(lost(0, since_s=999), *HELD, launches=(launch("0:2"),), spec=fixed) is None


def test_a_node_that_stands_by_is_within_reach() -> None:
    spare = replace(SPEC, standby=1)
    beside = replace(held(4), holder_instance=NO_INSTANCE, successor_instance="i-4", successor_incarnation=1)
    assert reach(lost(0, since_s=999), *HELD, beside, launches=(launch("0:2"),), spec=spare) is None


def test_a_run_shrinks_by_the_fleets_answer_and_all_are_waited_for_when_there_is_capacity_again() -> None:
    world = World()
    world.submit(
        slots=3,
        elastic="2..3",
        elastic_after_s=100,
        pools=Pools(types=("g5.xlarge",), cooldown_s=60),
        liveness=Liveness(silence_s=1e6),
    )
    world.tick()
    world.boot()
    world.join()
    world.beat_all(generation=1)
    world.tick()
    gone = str(world.slot().holder_instance)
    for zone in SUBNETS.values():
        world.ec2.room[f"g5.xlarge#{zone}#spot"] = 0
    world.ec2.instances[gone].state = "terminated"
    world.deliver(state(gone, world.clock(), "terminated"))
    world.beat_all(generation=1)
    world.tick()
    assert world.head().reach == 0  # a minute is not long
    for _ in range(2):
        world.beat_all(generation=1)
        world.tick()
    assert world.head().reach == 2
    world.join(beside={0})
    world.beat_all(generation=2)
    world.tick()
    assert world.slot().holder_instance == NO_INSTANCE  # nobody waits for what it could have saved
    world.ec2.room.clear()
    for _ in range(20):
        world.beat_all(generation=2)
        world.tick()
        if world.slot().successor_instance != NO_INSTANCE:
            break
    world.boot()
    world.tick()
    assert world.head().reach == 0
    assert len(world.ec2.instances) == 4


def test_an_elastic_run_is_done_when_its_few_members_are() -> None:
    world = World()
    world.submit(slots=3, elastic="2..3")
    world.tick()
    world.boot()
    world.join(beside={2})
    world.tick()
    for number in (0, 1):
        world.beat("mini", str(world.slot(number=number).holder_instance), NodePhase.DONE, step=9)
    world.tick()
    assert world.head().status is RunStatus.DONE

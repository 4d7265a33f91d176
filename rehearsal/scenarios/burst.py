"""All nodes get their notice in the same moment, every event comes twice: one order, one launch, one node for each."""

from __future__ import annotations

import copy
import dataclasses
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from rehearsal import acts, verdicts
from rehearsal.evidence import DepartureKind, Evidence
from rehearsal.plan import HOME
from rehearsal.plane.bus import Delivery
from rehearsal.scenarios.scenario import PLAN, Scenario, Spoil
from rehearsal.stage import Stage
from rehearsal.verdicts import Verdict

SLOTS: Final = 3
POOL: Final = ("g6.xlarge", "us-east-1b")
SINCE: Final = "notices"
BURST: Final = "burst"
LAUNCHES_MOST: Final = 2  # the first may be on its way before the last notice is heard


def script(stage: Stage) -> None:
    acts.open_pools(stage, HOME)
    stage.region.market.set({HOME: SLOTS})
    stage.submit()
    stage.wait_for_step(20)
    acts.open_pools(stage, POOL)
    # There is room for more than is needed: nothing but order keeps it at that.
    stage.region.market.set({POOL: 3 * SLOTS})
    stage.region.bus.delivery = Delivery(duplicates=1.0, jitter_s=1.0)
    stage.mark(SINCE)
    nodes, pieces = [stage.holder(slot) for slot in range(SLOTS)], stage.pieces()
    stage.say(f"step {stage.step()}: all {SLOTS} nodes get their notice at once, every event comes twice")
    for slot, instance in enumerate(nodes):
        stage.departs(f"burst, slot {slot}", DepartureKind.NOTICE, instance, good_step=0)
        stage.region.hosts.interrupt(instance, notice_s=stage.plan.notice_s)
    stage.wait_for_replacement(pieces)
    stage.region.bus.delivery = Delivery()
    acts.end(stage)


def promises(stage: Stage, evidence: Evidence) -> Iterator[Verdict]:
    del evidence
    since = stage.moments.get(SINCE, float("inf"))
    calls = stage.region.calls
    asked = [a.call.params for a in calls.of("ec2", "CreateFleet") if a.call.at > since and not a.error]
    orders = Counter(str(a.call.params.get("Parameters")) for a in calls.of("ssm", "SendCommand") if a.call.at > since)
    yield few_of_each(asked=[_capacity(params) for params in asked], orders=orders)


def _capacity(params: Mapping[str, Any]) -> int:
    return int(params["TargetCapacitySpecification"]["TotalTargetCapacity"])


def few_of_each(*, asked: Sequence[int], orders: Mapping[str, int]) -> Verdict:
    """No more was asked for than was lost, in few launches; each flush order was sent once."""
    passed = sum(asked) == SLOTS and len(asked) <= LAUNCHES_MOST and bool(orders) and set(orders.values()) == {1}
    says = f"{len(asked)} launches for {sum(asked)} nodes, {len(orders)} flush orders, {sum(orders.values())} commands"
    return Verdict(name=BURST, passed=passed, says=says)


def _twice(stage: Stage) -> None:
    """After the notices every launch asks for twice as many."""

    def doubled(params: dict[str, Any]) -> dict[str, Any]:
        changed = copy.deepcopy(params)
        target = changed["TargetCapacitySpecification"]
        target["TotalTargetCapacity"] = 2 * int(target["TotalTargetCapacity"])
        return changed

    stage.region.faults.rewrite("ec2", "CreateFleet", doubled, when=lambda _: SINCE in stage.moments)


SCENARIO: Final = Scenario(
    name="burst",
    says=f"all {SLOTS} nodes of a run are interrupted at once, every event comes twice",
    plan=dataclasses.replace(
        PLAN,
        notice_s=30.0,
        spec={"slots": SLOTS, "environment": ["GLOO_SOCKET_IFNAME=lo", "OMP_NUM_THREADS=1"]},
    ),
    script=script,
    promises=promises,
    sabotage=Spoil(
        name="launched-twice",
        says="two instances are launched for every slot",
        act=_twice,
        breaks=(verdicts.ONE_REPLACEMENT,),
    ),
)

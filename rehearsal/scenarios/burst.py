"""All nodes get their notice in the same moment, every event comes twice: one order, one launch, one node for each."""

from __future__ import annotations

import copy
import dataclasses
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any, Final

from rehearsal import acts, verdicts
from rehearsal.evidence import DepartureKind, Evidence
from rehearsal.plan import HOME
from rehearsal.plane.bus import Delivery
from rehearsal.plane.calls import Call
from rehearsal.scenarios.scenario import PLAN, Scenario, Spoil
from rehearsal.stage import Stage
from rehearsal.verdicts import Verdict
from spotproof.contract import tags

RUNS: Final = 3
POOL: Final = ("g6.xlarge", "us-east-1b")
SINCE: Final = "burst"
BURST: Final = "burst"


def script(stage: Stage) -> None:
    acts.open_pools(stage, HOME)
    stage.region.market.set({HOME: RUNS})
    for one in stage.runs:
        one.submit()
    for one in stage.runs:
        one.wait_for_step(20)
    acts.open_pools(stage, POOL)
    stage.region.market.set(
        {POOL: 2 * RUNS}
    )  # there is room for more than is needed: nothing but order keeps it at that
    stage.region.bus.delivery = Delivery(duplicates=1.0, jitter_s=1.0)
    stage.mark(SINCE)
    nodes = {one.run: (one.holder(), one.pieces()) for one in stage.runs}
    stage.say(f"every node of {RUNS} runs gets its notice at once, every event comes twice")
    for one in stage.runs:
        instance, _ = nodes[one.run]
        one.departs(f"burst of {one.run}", DepartureKind.NOTICE, instance, good_step=0)
        stage.region.hosts.interrupt(instance, notice_s=stage.plan.notice_s)
    for one in stage.runs:
        one.wait_for_replacement(nodes[one.run][1])
    stage.region.bus.delivery = Delivery()
    acts.end(stage)


def promises(stage: Stage, evidence: Evidence) -> Iterator[Verdict]:
    del evidence
    since = stage.moments.get(SINCE, float("inf"))
    calls = stage.region.calls
    launches = Counter(_run_of(a.call) for a in calls.of("ec2", "CreateFleet") if a.call.at > since)
    orders = Counter(str(a.call.params.get("Parameters")) for a in calls.of("ssm", "SendCommand") if a.call.at > since)
    yield one_each(launches=launches, orders=orders, runs=len(stage.runs))


def _run_of(call: Call) -> str:
    """The run that a launch is for, as its tags say."""
    told = {tag["Key"]: tag["Value"] for spec in call.params.get("TagSpecifications", []) for tag in spec["Tags"]}
    return str(told.get(tags.RUN, ""))


def one_each(*, launches: Mapping[str, int], orders: Mapping[str, int], runs: int) -> Verdict:
    """One CreateFleet for each run, and each flush order sent once."""
    passed = len(launches) == runs and set(launches.values()) == {1} and len(orders) == runs
    passed = passed and set(orders.values()) == {1}
    says = f"{sum(launches.values())} launches and {sum(orders.values())} commands for {runs} runs"
    return Verdict(name=BURST, passed=passed, says=f"{says}, {len(orders)} different orders")


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
    says=f"all nodes of {RUNS} runs are interrupted at once, every event comes twice",
    plan=dataclasses.replace(PLAN, runs=RUNS, patience_s=60.0),
    script=script,
    promises=promises,
    sabotage=Spoil(
        name="launched-twice",
        says="two instances are launched for every slot",
        act=_twice,
        breaks=(verdicts.ONE_REPLACEMENT,),
    ),
)

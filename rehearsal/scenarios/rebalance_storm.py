"""Every node of the stack is advised to leave, four times over. One successor is started ahead; then it is a storm.

Advice is no notice: nobody is ended for it. The node that was started ahead takes over when its holder's notice comes.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterator
from typing import Final

from rehearsal import acts, verdicts
from rehearsal.evidence import DepartureKind, Evidence
from rehearsal.plan import HOME
from rehearsal.sabotage import inside_functions
from rehearsal.scenarios.scenario import PLAN, Scenario, Spoil
from rehearsal.stage import InVain, Stage
from rehearsal.verdicts import Verdict

RUNS: Final = 2
ADVICE: Final = 4  # to each node
POOL: Final = ("g6.xlarge", "us-east-1b")
STORM_AFTER: Final = 1
LISTENS_S: Final = 4.0
STORM: Final = "rebalance storm"
SINCE, NOTICED = "advised", "noticed"


def script(stage: Stage) -> None:
    acts.open_pools(stage, HOME)
    stage.region.market.set({HOME: RUNS})
    for one in stage.runs:
        one.submit()
    for one in stage.runs:
        one.wait_for_step(20)
    acts.open_pools(stage, POOL)
    stage.region.market.set({POOL: 2 * RUNS})
    stage.mark(SINCE)
    stage.say(f"every node of {RUNS} runs is advised to leave, {ADVICE} times")
    for _ in range(ADVICE):
        for one in stage.runs:
            stage.region.hosts.rebalance(one.holder_now())
    stage.wait(lambda: len(stage.region.instances.launched) > RUNS, what="a successor is started ahead")
    stage.region.quiet()
    time.sleep(LISTENS_S)  # looks of the sweep: whoever launches for a storm does it now
    ahead = next((one for one in stage.runs if one.successor()), None)
    if ahead is None:
        raise InVain("no run has a successor ahead")
    stage.mark(NOTICED)
    instance, pieces = ahead.holder_now(), ahead.pieces()
    stage.say(f"    {ahead.run} has a successor ahead; its holder {instance} gets its notice")
    ahead.departs("after the advice", DepartureKind.NOTICE, instance, good_step=0)
    stage.region.hosts.interrupt(instance, notice_s=stage.plan.notice_s)
    ahead.wait_for_replacement(pieces)
    acts.end(stage)


def promises(stage: Stage, evidence: Evidence) -> Iterator[Verdict]:
    del evidence
    since, noticed = stage.moments.get(SINCE), stage.moments.get(NOTICED)
    if since is None or noticed is None:
        yield Verdict(name=STORM, passed=False, says="the storm was not played to its end")
        return
    calls = stage.region.calls
    launched = [a for a in calls.of("ec2", "CreateFleet") if since < a.call.at < noticed]
    later = [a for a in calls.of("ec2", "CreateFleet") if a.call.at >= noticed]
    ended = [a for a in calls.of("ec2", "TerminateInstances") if since < a.call.at < noticed]
    yield weathered(launched=len(launched), ended=len(ended), later=len(later))


def weathered(*, launched: int, ended: int, later: int) -> Verdict:
    """As many successors as the breaker lets through; nobody ended for advice; the notice launches nothing more."""
    passed = launched == STORM_AFTER and ended == 0 and later == 0
    says = f"{RUNS * ADVICE} times advice: {launched} started ahead (limit {STORM_AFTER}), {ended} ended"
    return Verdict(name=STORM, passed=passed, says=f"{says}, {later} launched at the notice")


SCENARIO: Final = Scenario(
    name="rebalance-storm",
    says="every node is advised to leave, several times over",
    plan=dataclasses.replace(PLAN, runs=RUNS, spec={"signals": {"prewarm": True, "storm_after": STORM_AFTER}}),
    script=script,
    promises=promises,
    sabotage=Spoil(
        name="storm-breaker-off",
        says="a storm of advice is not seen as one",
        act=inside_functions("storm-breaker"),
        breaks=(STORM, verdicts.ONE_REPLACEMENT),
    ),
)

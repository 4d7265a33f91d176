"""EC2 launches one instance more than was asked for: one gets the place, the other is ended and never trains."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any, Final

from rehearsal import acts
from rehearsal.evidence import DepartureKind, Evidence
from rehearsal.scenarios.scenario import Scenario, Spoil
from rehearsal.stage import Stage
from rehearsal.verdicts import Verdict

SURPLUS: Final = "surplus"
POOL: Final = ("g6.xlarge", "us-east-1b")
LIMIT_S: Final = 10.0
LAUNCHED: Final = "launched"
PLACED: Final = "placed"


def script(stage: Stage) -> None:
    acts.begin(stage)
    stage.wait_for_step(30)
    instance, pieces = stage.holder(), stage.pieces()
    acts.open_pools(stage, POOL)
    stage.region.market.set({POOL: 2})
    stage.region.faults.rewrite("ec2", "CreateFleet", _one_more, times=1)
    stage.extras.append("surplus")
    stage.say(f"step {stage.step()}: {instance} gets its notice; EC2 launches two for the one that is asked")
    stage.departs("surplus", DepartureKind.NOTICE, instance, good_step=0)
    stage.region.hosts.interrupt(instance, notice_s=stage.plan.notice_s)
    stage.wait(lambda: len(stage.region.instances.launched) == 3, what="two instances are launched")
    stage.mark(LAUNCHED)
    stage.wait_for_replacement(pieces)
    stage.noted[PLACED] = stage.holder()
    acts.end(stage)


def _one_more(params: dict[str, Any]) -> dict[str, Any]:
    changed = copy.deepcopy(params)
    target = changed["TargetCapacitySpecification"]
    target["TotalTargetCapacity"] = int(target["TotalTargetCapacity"]) + 1
    return changed


def promises(stage: Stage, evidence: Evidence) -> Iterator[Verdict]:
    homeless = [m.instance for m in evidence.launched[1:] if m.instance != stage.noted.get(PLACED)]
    # What EC2 did, not what it was asked to do.
    ended = [at for one, at in stage.region.instances.left_at.items() if one in homeless]
    began = stage.moments.get(LAUNCHED)
    after_s = min(ended) - began if ended and began is not None else None
    yield surplus_ended(homeless=len(homeless), after_s=after_s, trainers=len(evidence.pieces()))


def surplus_ended(*, homeless: int, after_s: float | None, trainers: int) -> Verdict:
    """One instance too many, ended within seconds; nobody trained on it."""
    ended = "never ended" if after_s is None else f"ended {max(0.0, after_s):.1f} s after the launch was seen"
    passed = homeless == 1 and after_s is not None and after_s <= LIMIT_S and trainers == 2
    return Verdict(name=SURPLUS, passed=passed, says=f"{homeless} too many, {ended}, {trainers} trainers in all")


def _keep(stage: Stage) -> None:
    """EC2 says that it ends the first that it is asked to end, and does not."""
    stage.region.faults.rewrite("ec2", "TerminateInstances", lambda params: params | {"InstanceIds": []}, times=1)


SCENARIO: Final = Scenario(
    name="surplus",
    says="EC2 launches one instance more than was asked for",
    script=script,
    promises=promises,
    sabotage=Spoil(
        name="surplus-kept",
        says="the surplus instance is not ended when it is found",
        act=_keep,
        breaks=(SURPLUS,),
    ),
)

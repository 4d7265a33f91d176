"""CreateFleet has answered, and the function is killed before it could write what it got. Twice, in two manners.

First EC2 shows the instance at once: it is found by the tag of its launch. Then DescribeInstances does not know it yet:
the same request goes out again with the same token, and EC2 answers the same instance.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterator, Sequence
from typing import Any, Final

from rehearsal import acts, verdicts
from rehearsal.evidence import DepartureKind, Evidence
from rehearsal.plane.calls import Answered, Call
from rehearsal.scenarios.scenario import PLAN, Scenario, Spoil
from rehearsal.stage import Stage
from rehearsal.verdicts import Verdict
from spotproof.contract import keys

LEASE_S: Final = 3  # of the launcher, a minute in the product: the killed one's lease has to run out
HIDDEN_S: Final = 25.0  # as long as DescribeInstances does not know what was launched
ADOPTED: Final = "launch after the kill"
WHY: Final = "the function was killed on purpose"


def script(stage: Stage) -> None:
    acts.begin(stage)
    stage.region.faults.rewrite("dynamodb", "PutItem", _short_lease, when=lambda call: _is_lease(stage, call))
    stage.wait_for_step(15)
    _kill(stage, ("g6.xlarge", "us-east-1b"), "found by its tag")
    stage.wait_for_step(stage.step() + 10)
    stage.region.instances.visible_after_s = HIDDEN_S
    _kill(stage, ("g6e.xlarge", "us-east-1c"), "asked for again")
    acts.end(stage)


def _kill(stage: Stage, pool: acts.Pool, how: str) -> None:
    instance, pieces = stage.holder(), stage.pieces()
    acts.open_pools(stage, pool)
    stage.region.market.set({pool: 3})  # room enough for launching twice
    kill = stage.region.faults.kill_caller("ec2", "CreateFleet")
    stage.say(f"step {stage.step()}: {instance} gets its notice; the function that launches is killed ({how})")
    stage.departs(f"kill, {how}", DepartureKind.NOTICE, instance, good_step=0)
    with stage.expecting(WHY, settles_s=2.0):
        stage.region.hosts.interrupt(instance, notice_s=stage.plan.notice_s)
        stage.wait(lambda: kill.hits, what="CreateFleet is asked, and its function killed")
    stage.wait_for_replacement(pieces)


def _is_lease(stage: Stage, call: Call) -> bool:
    return bool(call.params.get("Item", {}).get("sk") == {"S": keys.launcher(stage.run).sk})


def _short_lease(params: dict[str, Any]) -> dict[str, Any]:
    return params | {"Item": params["Item"] | {"until": {"N": str(int(time.time()) + LEASE_S)}}}


def promises(stage: Stage, evidence: Evidence) -> Iterator[Verdict]:
    del evidence
    yield adopted(stage.region.calls.of("ec2", "CreateFleet"))


def adopted(asked: Sequence[Answered]) -> Verdict:
    """Three launches: the first, one that was asked for once and found by its tag, one that was asked for again."""
    calls: dict[str, int] = {}
    for answered in asked:
        token = str(answered.call.params.get("ClientToken", ""))
        calls[token] = calls.get(token, 0) + 1
    counts = list(calls.values())
    passed = len(counts) == 3 and counts[:2] == [1, 1] and counts[2] >= 2 and "" not in calls
    says = f"CreateFleet was called {', '.join(map(str, counts))} times with one token each"
    return Verdict(name=ADOPTED, passed=passed, says=says)


def _drop_token(stage: Stage) -> None:
    def untold(params: dict[str, Any]) -> dict[str, Any]:
        return {name: value for name, value in params.items() if name != "ClientToken"}

    stage.region.faults.rewrite("ec2", "CreateFleet", untold)


SCENARIO: Final = Scenario(
    name="killed-lambda",
    says="CreateFleet answered, and the function killed before it could write",
    plan=dataclasses.replace(PLAN, notice_s=15.0),
    script=script,
    promises=promises,
    sabotage=Spoil(
        name="token-dropped",
        says="CreateFleet reaches EC2 without its token: what is asked twice is launched twice",
        act=_drop_token,
        breaks=(verdicts.ONE_REPLACEMENT,),
    ),
)

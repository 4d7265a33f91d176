"""DynamoDB is out for twice the time after which a silent node counts as lost. Nothing is launched, nothing is lost.

Two minutes are twice the product's minute of silence. Here heartbeat, silence and the wait for a first heartbeat are
shortened by one factor, and the outage with them; what a run cannot shorten stays as it is in the product.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterator
from typing import Any, Final

from rehearsal import acts, verdicts
from rehearsal.evidence import DepartureKind, Evidence
from rehearsal.permissions import deployed
from rehearsal.permissions.estate import NODE
from rehearsal.plane.faults import ANY, FOREVER
from rehearsal.sabotage import inside_functions
from rehearsal.scenarios.scenario import PLAN, Scenario, Spoil
from rehearsal.stage import InVain, Stage
from rehearsal.verdicts import Verdict
from spotproof.contract import keys, limits

SILENCE_S: Final = 8.0  # a minute in the product
SHORTENED: Final = SILENCE_S / limits.SILENCE_S
OUTAGE_S: Final = 2 * SILENCE_S
SETTLES_S: Final = 2 * SILENCE_S  # looks of repair after it: whoever counts the outage as silence does it now
STEPS: Final = 520  # on a fast machine too the training is still on its way when the outage has settled
OUT, BACK, SETTLED = "out", "back", "settled"
HELD: Final = "table outage"
WHY: Final = "the table was out"
DOWN: Final = "InternalServerError"


def script(stage: Stage) -> None:
    acts.begin(stage)
    stage.wait_for_commit_beyond(0)
    instance = stage.holder()
    stage.say(f"step {stage.step()}: the table is out for {OUTAGE_S:.0f} s, a node is silent after {SILENCE_S:.0f} s")
    stage.mark(OUT)
    with stage.expecting(WHY, settles_s=SILENCE_S):
        failed = _outage(stage)
    stage.mark(BACK)
    stage.say(f"    the table is back at step {stage.step()}; {failed} calls had failed")
    committed = stage.wait_for_commit_beyond(stage.auditor.commits[-1].step)
    time.sleep(max(0.0, stage.moments[BACK] + SETTLES_S - time.time()))
    stage.mark(SETTLED)
    stage.say(f"    step {committed} is committed; now the node is interrupted")
    if stage.status() != "active":
        raise InVain(f"the run is {stage.status()} before the outage has settled: its training is too short")
    if stage.holder() != instance:
        raise InVain(f"{instance} was replaced for an outage of the table")
    acts.open_pools(stage, ("g6.xlarge", "us-east-1b"))
    pieces = stage.pieces()
    stage.departs("after the outage", DepartureKind.NOTICE, instance, good_step=0)
    stage.region.hosts.interrupt(instance, notice_s=stage.plan.notice_s)
    stage.wait_for_replacement(pieces)
    acts.end(stage)


def _outage(stage: Stage) -> int:
    """The table is out; then it is back for the control plane, and for the nodes when the run has been looked at.

    That is the losing order: the first look sees beats that are as old as the outage. Returns how many calls failed.
    """
    faults, began = stage.region.faults, int(time.time())
    actors = deployed.read(stage.region, stage.outputs).actors
    nodes = {role for role, actor in actors.items() if actor == NODE}
    failing: dict[str, Any] = {"status": 500, "times": FOREVER}
    told = faults.add("dynamodb", ANY, DOWN, when=lambda call: call.role in nodes, **failing)
    rest = faults.add("dynamodb", ANY, DOWN, when=lambda call: bool(call.role) and call.role not in nodes, **failing)
    time.sleep(OUTAGE_S)
    faults.remove(rest)
    stage.wait(lambda: _looked_at(stage) > began + OUTAGE_S / 2, what="the control plane looks at the run again")
    faults.remove(told)
    return told.hits + rest.hits


def _looked_at(stage: Stage) -> int:
    return int(stage.item(keys.live(stage.run)).get("looked_at", {"N": "0"})["N"])


def promises(stage: Stage, evidence: Evidence) -> Iterator[Verdict]:
    out, settled = stage.moments.get(OUT), stage.moments.get(SETTLED)
    if out is None or settled is None:
        yield Verdict(name=HELD, passed=False, says="the outage was not played to its end")
        return
    launched = [a for a in stage.region.calls.of("ec2", "CreateFleet") if out < a.call.at < settled]
    ended = [a for a in stage.region.calls.of("ec2", "TerminateInstances") if out < a.call.at < settled]
    again = _trained_twice(evidence)
    yield held(launched=len(launched), ended=len(ended), again=again, lasted_s=stage.moments[BACK] - out)


def _trained_twice(evidence: Evidence) -> int:
    """Steps that more than one process trained."""
    return len(evidence.points) - len({point.step for point in evidence.points})


def held(*, launched: int, ended: int, again: int, lasted_s: float) -> Verdict:
    """The table was out for long enough, and nobody was replaced, ended or sent back for it."""
    passed = launched == ended == again == 0 and lasted_s >= OUTAGE_S
    says = f"{lasted_s:.0f} s without it ({SILENCE_S:.0f} s are silence): {launched} launched, {ended} ended"
    return Verdict(name=HELD, passed=passed, says=f"{says}, {again} steps trained twice")


SCENARIO: Final = Scenario(
    name="table-outage",
    says="DynamoDB is out for twice the time of silence",
    plan=dataclasses.replace(
        PLAN,
        steps=STEPS,
        spec={
            "liveness": {
                "heartbeat_s": limits.HEARTBEAT_S * SHORTENED,
                "silence_s": SILENCE_S,
                "first_heartbeat_s": limits.FIRST_HEARTBEAT_S * SHORTENED,
            }
        },
    ),
    script=script,
    promises=promises,
    sabotage=Spoil(
        name="outage-counts-as-silence",
        says="the time of the outage counts as silence",
        act=inside_functions("silence"),
        breaks=(HELD, verdicts.ONE_REPLACEMENT),
    ),
)

"""No Spot pool has room: the run goes on on-demand. Then one has room again: it goes back, and loses no step by it."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Final

from rehearsal import acts, verdicts
from rehearsal.evidence import DepartureKind, Evidence
from rehearsal.plan import HOME, POOLS
from rehearsal.plane.market import INSUFFICIENT
from rehearsal.sabotage import inside_functions
from rehearsal.scenarios.scenario import PLAN, Scenario, Spoil
from rehearsal.stage import Stage
from rehearsal.verdicts import Verdict

SPOT, ON_DEMAND = "spot", "on-demand"
RESCUE: Final = ("g6.xlarge", "us-east-1b")
RETURN: Final = ("g6e.xlarge", "us-east-1c")
MARKETS: Final = "markets"
BACK: Final = "spot is back"


def script(stage: Stage) -> None:
    market = stage.region.market
    market.set({(*pool, SPOT): 1 if pool == HOME else INSUFFICIENT for pool in POOLS})
    market.set({(*pool, ON_DEMAND): 1 if pool == RESCUE else INSUFFICIENT for pool in POOLS})
    stage.submit()
    stage.wait_for_step(20)
    _to_on_demand(stage)
    stage.wait_for_step(stage.step() + 5)
    _back_to_spot(stage)
    acts.end(stage)


def _to_on_demand(stage: Stage) -> None:
    instance, pieces = stage.holder(), stage.pieces()
    stage.say(f"step {stage.step()}: {instance} gets its notice; no Spot pool has room")
    stage.departs("no spot", DepartureKind.NOTICE, instance, good_step=0)
    stage.region.hosts.interrupt(instance, notice_s=stage.plan.notice_s)
    stage.wait_for_replacement(pieces)


def _back_to_spot(stage: Stage) -> None:
    instance, pieces = stage.holder(), stage.pieces()
    launched = len(stage.region.instances.launched)
    stage.region.market.set({(*RETURN, SPOT): 1})
    stage.mark(BACK)
    stage.say(f"step {stage.step()}: Spot has room again in {RETURN[0]}, {RETURN[1]}")
    stage.wait(lambda: len(stage.region.instances.launched) > launched, what="a Spot node is launched for the way back")
    stage.departs("failback", DepartureKind.NOTICE, instance, good_step=0)
    stage.wait_for_replacement(pieces)


def promises(stage: Stage, evidence: Evidence) -> Iterator[Verdict]:
    lifecycles = [str(stage.region.instances.require(m.instance).lifecycle or ON_DEMAND) for m in evidence.launched]
    back = stage.moments.get(BACK)
    after_s = None if back is None else next((m.launched_at - back for m in evidence.launched[2:]), None)
    yield went_and_came_back(lifecycles, after_s=after_s)


def went_and_came_back(lifecycles: Sequence[str], *, after_s: float | None) -> Verdict:
    """Spot, on-demand while there was none, Spot again; nothing more."""
    passed = list(lifecycles) == [SPOT, ON_DEMAND, SPOT] and after_s is not None
    back = "never back on Spot" if after_s is None else f"back {after_s:.0f} s after it had room"
    return Verdict(name=MARKETS, passed=passed, says=f"nodes came from {', '.join(lifecycles)}; {back}")


SCENARIO: Final = Scenario(
    name="fallback",
    says="no Spot pool has room, so on-demand; then back to Spot",
    plan=dataclasses.replace(
        PLAN,
        steps=240,
        spec={
            "pools": {
                "market": "spot-then-on-demand",
                "fallback_after": 1,
                "cooldown_s": 5,
                "failback_after_s": 5.0,
            }
        },
    ),
    script=script,
    promises=promises,
    sabotage=Spoil(
        name="on-demand-for-ever",
        says="nobody looks whether a run may go back to Spot",
        act=inside_functions("failback"),
        breaks=(MARKETS, verdicts.ONE_REPLACEMENT),
    ),
)

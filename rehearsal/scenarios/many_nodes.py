"""Three nodes, none of them special: rank 0's is interrupted, and during that recovery another one dies silently."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Final

from rehearsal import acts, verdicts
from rehearsal.evidence import DepartureKind, Evidence
from rehearsal.plan import HOME
from rehearsal.sabotage import inside
from rehearsal.scenarios.scenario import PLAN, Scenario, Spoil
from rehearsal.stage import Stage
from rehearsal.verdicts import Verdict
from spotproof.contract import keys

SLOTS: Final = 3
POOL: Final = ("g6.xlarge", "us-east-1b")
SURVIVES: Final = "survivor"
MEMBERSHIPS: Final = "memberships"


def script(stage: Stage) -> None:
    acts.open_pools(stage, HOME)
    stage.region.market.set({HOME: SLOTS})
    stage.submit()
    stage.wait_for_step(25)
    acts.open_pools(stage, POOL)
    stage.region.market.set({POOL: SLOTS})
    first, second, third = (stage.holder(slot) for slot in range(SLOTS))
    stage.noted[SURVIVES] = third
    pieces, committed = stage.pieces(), stage.wait_for_commit_beyond(0)
    stage.say(f"step {stage.step()}: {first}, which has rank 0, gets its notice; step {committed} is committed")
    stage.departs("rank 0", DepartureKind.NOTICE, first, good_step=0)
    stage.region.hosts.interrupt(first, notice_s=stage.plan.notice_s)
    flushed = stage.wait_for_commit_beyond(committed)
    stage.say(f"    all ranks stopped at step {flushed}; now {second} dies silently")
    stage.departs("while recovering", DepartureKind.SILENT, second, good_step=flushed)
    stage.region.hosts.silent_kill(second)
    stage.wait_for_replacement(pieces)
    acts.end(stage)


def promises(stage: Stage, evidence: Evidence) -> Iterator[Verdict]:
    del evidence
    newest = stage.generation()
    found = [stage.item(keys.generation(stage.run, number)) for number in range(1, newest + 1)]
    sealed = [[str(member["S"]) for member in item.get("members", {"L": []})["L"]] for item in found]
    yield memberships(sealed, survivor=stage.noted.get(SURVIVES, ""))


def memberships(sealed: Sequence[Sequence[str]], *, survivor: str) -> Verdict:
    """Every membership had all ranks, and whoever survived kept its rank in each of them."""
    ranks = {rank for members in sealed for rank, member in enumerate(members) if member.endswith(f":{survivor}")}
    passed = len(sealed) > 1 and all(len(members) == SLOTS for members in sealed) and len(ranks) == 1
    says = f"{len(sealed)} memberships of {SLOTS}, the survivor had rank {', '.join(map(str, sorted(ranks)))} in all"
    return Verdict(name=MEMBERSHIPS, passed=passed, says=says)


SCENARIO: Final = Scenario(
    name="many-nodes",
    says=f"{SLOTS} nodes: rank 0's is interrupted, and another one dies silently during that recovery",
    plan=dataclasses.replace(
        PLAN,
        patience_s=180.0,
        notice_s=30.0,
        spec={"slots": SLOTS, "environment": ["GLOO_SOCKET_IFNAME=lo", "OMP_NUM_THREADS=1"]},
    ),
    script=script,
    promises=promises,
    sabotage=Spoil(
        name="no-consensus",
        says="the rank that has its notice saves and stops alone",
        act=inside("consensus"),
        breaks=(verdicts.NOTHING_LOST,),
    ),
)

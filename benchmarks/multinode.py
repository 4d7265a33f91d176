"""From the loss of a node to the first step after it: our rendezvous beside torch's own, in the same lab in one run.

    python benchmarks/multinode.py [--only spotproof] [--times 1]

Three nodes (network namespaces on one bridge) train a small model under DDP. `kill` is SIGKILL of every process of the
node; `blackhole` takes its link down first, so that nothing reaches anybody. Ours gets the control plane's word then,
as an EventBridge rule brings it; the peers have no such ear. The replacement is `warm` (forked at the moment of the
loss from a process that has torch), `cold` (a Python of its own, started at that moment), or `standby` (parked before).
Survivors' workers are forked too, so no cell but `cold` holds the import of torch.

`in-process` is ours without torchrun: survivors keep their processes and their memory.

`never`: no step within the limit, or every launcher has ended. Peers: `dynamic` is torch's DynamicRendezvousHandler on
the same table (store sharing off, without which it takes in no newcomer), `c10d` is plain torchrun, hosted by node 0.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.lab.nodes import Lab, Plan, Zygote, may_make_namespaces

LIMIT_S = 80.0
START_S = 90.0
IN_PROCESS, IN_PROCESS_LIMIT_S = "in-process", 1.5
SPOTPROOF, DYNAMIC, C10D, C10D_DEFAULTS = "spotproof", "dynamic", "c10d", "c10d defaults"
BACKENDS = {
    SPOTPROOF: "spotproof",
    IN_PROCESS: "in-process",
    DYNAMIC: "dynamic-on-table",
    C10D: "c10d",
    C10D_DEFAULTS: "c10d",
}
OURS = (SPOTPROOF, IN_PROCESS)
SHARING_OFF = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """Which rank's node is lost, how, and what replaces it. c10d's host is node 0, whatever its rank: it stands for
    rank 0's there."""

    victim: int
    loss: str = "kill"
    replacement: str = "warm"

    def text(self) -> str:
        """The row's name."""
        return f"{self.loss} rank {self.victim}'s node, {self.replacement} replacement"


WARM = tuple(Case(victim=rank) for rank in range(3))
COLD = Case(victim=0, replacement="cold")
STANDBY = Case(victim=0, replacement="standby")
BLACKHOLES = tuple(Case(victim=rank, loss="blackhole") for rank in range(3))
# What a peer is asked: the rows that its design can answer at all, and those where it is known not to.
ASKED = {
    SPOTPROOF: (*WARM, COLD, STANDBY, *BLACKHOLES),
    IN_PROCESS: (*WARM, STANDBY, *BLACKHOLES),
    DYNAMIC: (WARM[0], WARM[2], COLD, BLACKHOLES[2]),
    C10D: (WARM[0], WARM[2]),
    C10D_DEFAULTS: (WARM[2],),
}


def recovery_s(zygote: Zygote, who: str, case: Case) -> float | None:
    """Seconds from the loss to the first step after it; None: never."""
    plan = Plan(backend=BACKENDS[who], group_timeout_s=300.0)
    environment = SHARING_OFF if who == C10D else {}
    with (
        tempfile.TemporaryDirectory(prefix="lab-") as folder,
        Lab(Path(folder), zygote, namespaces=True, plan=plan) as lab,
    ):
        for node in ("n0", "n1", "n2"):
            lab.start(node, environment=environment)
        lab.until(lambda: lab.newest_step() >= 5, limit_s=START_S, what="start")
        if case.replacement == "standby":
            lab.start("n3", environment=environment)
            lab.until(lambda: lab.has_joined("n3"), limit_s=START_S, what="standby")
        at = lose(lab, who, case)
        if case.replacement != "standby":
            lab.start("n3", cold=case.replacement == "cold", environment=environment)
        try:
            lab.until(lambda: lab.first_step_after(at) or is_dead(lab), limit_s=LIMIT_S)
        except AssertionError:
            return None
        first = lab.first_step_after(at)
        return None if first is None else float(first["at"] - at)


def is_dead(lab: Lab) -> bool:
    """Whether every launcher has ended."""
    return not any(lab.is_alive(node) for node in lab.nodes)


def lose(lab: Lab, who: str, case: Case) -> float:
    """Take the victim away; the control plane's word follows where somebody listens to it."""
    by_rank = {one["rank"]: one["node"] for one in lab.events("group")}
    # c10d's host is node 0, whatever its rank.
    victim = f"n{case.victim}" if who in (C10D, C10D_DEFAULTS) else by_rank[case.victim]
    if case.loss == "kill":
        return lab.kill(victim)
    at = lab.blackhole(victim)
    if who in OURS:
        lab.mark_bad()
    return at


def verdicts(found: dict[tuple[str, str], list[float | None]]) -> list[str]:
    """What was promised and does not hold."""
    medians = {key: statistics.median(known) for key, times in found.items() if (known := [t for t in times if t])}
    broken = [
        f"{who}: {case} is never"
        for (who, case), times in found.items()
        if who in OURS and any(one is None for one in times)
    ]
    cold = medians.get((SPOTPROOF, COLD.text()))
    peer = medians.get((DYNAMIC, COLD.text()))
    standby = medians.get((SPOTPROOF, STANDBY.text()))
    inside = [medians[key] for key in medians if key[0] == IN_PROCESS]
    if inside and statistics.median(inside) > IN_PROCESS_LIMIT_S:
        broken.append(f"in-process takes {statistics.median(inside):.1f} s")
    if cold and peer and cold > peer:
        broken.append(f"a cold replacement takes {cold:.1f} s, the best peer {peer:.1f} s")
    if cold and standby and standby > cold / 3:
        broken.append(f"a standby takes {standby:.1f} s, more than a third of a cold replacement's {cold:.1f} s")
    return broken


def show(who: str, case: Case, times: list[float | None], ours: float | None) -> str:
    """One line: the times, and the ratio to ours where both have one."""
    known = [one for one in times if one is not None]
    text = " ".join("never" if one is None else f"{one:.1f} s" for one in times)
    ratio = f"  {statistics.median(known) / ours:.1f}x ours" if ours and known and who not in OURS else ""
    return f"{who:14} {case.text():48} {text}{ratio}"


def main() -> int:
    """Print the table; 1 if what was promised does not hold."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", nargs="+", choices=list(ASKED), default=list(ASKED))
    parser.add_argument("--times", type=int, default=1)
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    if not may_make_namespaces():
        print("not run: network namespaces are not allowed here")
        return 0
    found: dict[tuple[str, str], list[float | None]] = {}
    with Zygote() as zygote:
        for who in asked.only:
            for case in ASKED[who]:
                times = [recovery_s(zygote, who, case) for _ in range(asked.times)]
                found[who, case.text()] = times
                ours = [one for one in found.get((SPOTPROOF, case.text()), []) if one is not None]
                print(show(who, case, times, statistics.median(ours) if ours else None), flush=True)
    broken = verdicts(found)
    print("as promised" if not broken else f"NOT as promised: {'; '.join(broken)}")
    if asked.json:
        table = [{"who": who, "case": case, "seconds": times} for (who, case), times in found.items()]
        asked.json.write_text(json.dumps({"broken": broken, "cells": table}, indent=2) + "\n")
    return int(bool(broken))


if __name__ == "__main__":
    sys.exit(main())

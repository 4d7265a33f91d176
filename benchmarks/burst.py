"""Ten thousand notices at once: what the control plane makes of them, every count beside its ideal.

    python benchmarks/burst.py [--check] [--notices 10000] [--runs 200] [--large 1000] [--seed N]

The real handlers in virtual time (tests/fakes/virtual.py): batches of ten, Lambda's pollers and the concurrency of the
stack, 8 ms for a call of DynamoDB, and AWS's rate limits where they are known: EC2's mutating calls 50 at once and 5/s,
DescribeInstances 100 and 20/s (EC2 API throttling), without the resource bucket of RunInstances. SendCommand's limit is
not published: 20 at once and 20/s are assumed. Every notice comes three times, in any order; one handler in a hundred
is killed at some call. The nodes die 120 s after the burst began; the sweep looks each minute.
"""

from __future__ import annotations

import argparse
import io
import json
import sys
import time
from collections import Counter
from contextlib import redirect_stdout
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from spotproof.contract import names
from spotproof.contract.items import NO_INSTANCE
from spotproof.contract.orders import DOCUMENT_PARAMETER
from tests.fakes.burst import COPIES, CRASHES, Burst, Size

FLEETS_PER_1000, WRITES_PER_NODE, PARTITION_WRITES, PARTITION_READS, OWN_MS = 5, 4.0, 1000, 3000, 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A count beside its ideal; `most` is the bound that --check holds it to."""

    what: str
    count: float
    ideal: float
    most: float | None = None

    def line(self) -> str:
        bound = "" if self.most is None else f"  {'ok' if self.is_kept() else 'BROKEN'}, bound {self.most:g}"
        return f"{self.what:58} {self.count:12,.2f}  ideal {self.ideal:10,.2f}{bound}"

    def is_kept(self) -> bool:
        return self.most is None or self.count <= self.most


def judged(burst: Burst) -> list[Row]:
    """Every count of a burst that has been played."""
    return [*_launched(burst), *_told(burst), *_stored(burst), *_worked(burst)]


def _launched(burst: Burst) -> list[Row]:
    size = burst.size
    slots = [slot for run in size.slots() for slot in burst.stores_now().slots.list(run)]
    placed = {slot.successor_instance for slot in slots}
    unfilled = sum(slot.successor_instance in (None, NO_INSTANCE) for slot in slots)
    asked, made = burst.fleets.asked(), burst.fleets.launched()
    homeless = sum(one not in placed for one in made)
    doubled = max(Counter(want for run in size.slots() for want in burst.wants(run)).values(), default=0)
    most_of_large = FLEETS_PER_1000 * max(1, size.large / 1000)
    return [
        Row(what="slots lost", count=size.notices, ideal=size.notices),
        Row(what="unfilled slots after two sweeps", count=unfilled, ideal=0, most=0),
        Row(what="instances launched", count=len(made), ideal=size.notices, most=size.notices),
        Row(what="duplicate launches (instances in no slot)", count=homeless, ideal=0, most=0),
        Row(what="launches of one (slot, incarnation)", count=doubled, ideal=1, most=1),
        Row(what="CreateFleet, all runs", count=asked.total(), ideal=size.runs),
        Row(what="CreateFleet of the large run", count=asked["large"], ideal=1, most=most_of_large),
        Row(what="CreateFleet throttled", count=burst.ec2.throttled["create_fleet"], ideal=0),
    ]


def _told(burst: Burst) -> list[Row]:
    sent = burst.ssm.client.sent
    orders = Counter(one["Parameters"][DOCUMENT_PARAMETER][0] for one in sent)
    of_run = Counter(one["Targets"][1]["Values"][0] for one in sent)
    return [
        Row(what="SendCommand of one order, most", count=max(orders.values(), default=0), ideal=1, most=1),
        Row(what="orders of a run, most", count=max(of_run.values(), default=0), ideal=1),
        Row(what="SendCommand, all runs", count=len(sent), ideal=burst.size.runs),
        Row(what="SendCommand throttled", count=burst.ssm.throttled["send_command"], ideal=0),
    ]


def _stored(burst: Burst) -> list[Row]:
    table, nodes = burst.table, burst.size.notices
    writes = (table.writes.total() - table.writes["HIST"]) / nodes
    busiest = {
        (kind, of_items): table.busiest(kind, of_items=of_items) for kind in ("w", "r") for of_items in (False, True)
    }
    requests = table.requests.total() / (COPIES * nodes)
    return [
        Row(what="item writes for each node, without history", count=writes, ideal=3, most=WRITES_PER_NODE),
        Row(what="conditional writes lost", count=table.lost, ideal=0),
        Row(what="busiest partition, write units/s", count=busiest["w", False], ideal=0, most=PARTITION_WRITES),
        Row(what="busiest item, write units/s", count=busiest["w", True], ideal=0, most=PARTITION_WRITES),
        Row(what="busiest partition, read units/s", count=busiest["r", False], ideal=0, most=PARTITION_READS),
        Row(what="busiest item, read units/s", count=busiest["r", True], ideal=0, most=PARTITION_READS),
        Row(what="requests to DynamoDB for each event", count=requests, ideal=1.2),
        Row(what="timeline entries for each node", count=table.writes["HIST"] / nodes, ideal=3),
    ]


def _worked(burst: Burst) -> list[Row]:
    events = COPIES * burst.size.notices
    own_ms = 1000 * burst.region.cpu_s / events
    killed = CRASHES * events / names.BATCH_SIZE
    return [
        Row(what="handlers killed", count=burst.invoked["killed"], ideal=killed),
        Row(what="looks put off to the repair queue", count=burst.invoked["put off to repair"], ideal=burst.size.runs),
        Row(what="seconds until every notice was heard", count=burst.heard_by_s, ideal=0),
        Row(what="own CPU for each event, ms", count=own_ms, ideal=0, most=OWN_MS),
    ]


def main() -> None:
    """Play the burst, print every count beside its ideal, and one JSON line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--notices", type=int, default=10_000)
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--large", type=int, default=1_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--check", action="store_true", help="exit 1 when a bound is broken")
    given = parser.parse_args()
    burst = Burst(Size(notices=given.notices, runs=given.runs, large=given.large, seed=given.seed))
    began_at = time.monotonic()
    with redirect_stdout(io.StringIO()):
        burst.play()
    rows = judged(burst)
    print("\n".join(row.line() for row in rows))
    took_s = time.monotonic() - began_at
    print(f"invoked: {dict(burst.invoked)}; writes: {dict(burst.table.writes)}; {took_s:.0f} s on one core")
    print(json.dumps({row.what: round(row.count, 3) for row in rows}))
    if given.check and not all(row.is_kept() for row in rows):
        sys.exit(1)


if __name__ == "__main__":
    main()

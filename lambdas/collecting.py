"""The collection: run by run, what its retention drops and what nothing needs any more is deleted.

It may end anywhere, twice be at work, or be late: what a run still needs never depends on it. Its composition is its
own: it reads the bucket and the runs' items, deletes, and imports nothing that decides for nodes.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Final

from aws_lambda_powertools import Logger

from lambdas.effects.log import Log
from spotproof.contract.limits import COLLECT_PERIOD_S
from spotproof.contract.runspec import CheckpointPolicy
from spotproof.contract.settings import ControlSettings
from spotproof.errors import SpotproofError
from spotproof.store import collecting
from spotproof.store.checkpoints import Checkpoints
from spotproof.store.clients import Clients
from spotproof.store.dynamo import DynamoTable
from spotproof.store.erase import Eraser, S3Eraser
from spotproof.store.members import Memberships
from spotproof.store.pointer import Pointers
from spotproof.store.s3 import Checksum, S3Objects
from spotproof.store.s3runs import runs_in
from spotproof.store.spec import Specs
from spotproof.store.starts import Stores

RESERVE_S: Final = 120  # a run is not begun when less is left: a large one's listing takes a minute


@dataclass(frozen=True, slots=True, kw_only=True)
class Collector:
    """What a collection is made of. `runs` lists every run that has objects, those that are over too."""

    runs: Callable[[], Iterable[str]]
    stores: Stores
    specs: Specs
    eraser: Eraser
    log: Log
    clock: Callable[[], float]

    def collect(self, *, until: float) -> dict[str, int]:
        """Collect every run that there is time for, and say how many, and what went.

        A run that cannot be read costs only itself. Raises the first such trouble at the end.
        """
        runs, troubles = in_turn(sorted(self.runs()), now=self.clock()), list[SpotproofError]()
        done = {"runs": 0, "objects": 0, "bytes": 0}
        for run in runs:
            if self.clock() > until - RESERVE_S:
                self.log.warning("no time left, the next collection begins elsewhere", extra={"run": run})
                break
            try:
                planned = self._collect(run)
            except SpotproofError as error:
                self.log.error("not collected", extra={"run": run, "why": str(error)})  # noqa: TRY400 -- it is in why
                troubles.append(error)
                continue
            done = {
                "runs": done["runs"] + 1,
                "objects": done["objects"] + len(planned.keys),
                "bytes": done["bytes"] + planned.bytes,
            }
        self.log.info("collected", extra={**done, "failed": len(troubles)})
        if troubles:
            raise troubles[0]
        return done

    def _collect(self, run: str) -> collecting.Plan:
        spec = self.specs.read(run)
        keep = (CheckpointPolicy() if spec is None else spec.checkpoint).keep
        planned = collecting.plan(self.stores, run, keep=keep, now=self.clock())
        collecting.collect(planned, self.stores.objects, self.eraser)
        if planned.keys:
            dropped = [f"{generation}-{step}" for generation, step in sorted(planned.verdict.dropped)]
            said = {"run": run, "dropped": dropped[:100], "objects": len(planned.keys), "bytes": planned.bytes}
            self.log.info("deleted", extra=said)
        return planned


def in_turn(runs: Sequence[str], *, now: float) -> tuple[str, ...]:
    """The runs in this hour's order: each hour begins with the next one, so that none waits for ever for the time."""
    first = int(now // COLLECT_PERIOD_S) % max(1, len(runs))
    return (*runs[first:], *runs[:first])


@cache
def collector() -> Collector:
    """The collection that the environment describes. Raises BadSettings, naming every variable that is wrong."""
    settings = ControlSettings.from_env(os.environ)
    clients = Clients(region=settings.region)
    table = DynamoTable(clients.dynamodb, settings.table)
    stores = Stores(
        objects=S3Objects(clients.s3, settings.bucket, checksum=Checksum.CRC32),
        checkpoints=Checkpoints(table),
        pointers=Pointers(table),
        memberships=Memberships(table),
    )
    return Collector(
        runs=lambda: runs_in(clients.s3, settings.bucket),
        stores=stores,
        specs=Specs(table),
        eraser=S3Eraser(clients.s3, settings.bucket),
        log=Logger(service="spotproof"),
        clock=time.time,
    )

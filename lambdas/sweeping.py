"""The sweep: every run that is due goes to the repair queue. Small on purpose, for it runs each minute for ever.

Its composition is its own: it needs the index, the queue and the meter, and imports nothing that decides.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

from aws_lambda_powertools import Logger

from lambdas.effects.log import Log
from lambdas.effects.meter import Meter
from lambdas.effects.queue import RepairQueue
from spotproof.contract.metrics import Metric
from spotproof.contract.settings import ControlSettings
from spotproof.store.clients import Clients
from spotproof.store.dynamo import DynamoTable
from spotproof.store.live import LiveIndex


@dataclass(frozen=True, slots=True, kw_only=True)
class Sweeper:
    """What a sweep is made of."""

    live: LiveIndex
    queue: RepairQueue
    meter: Meter
    log: Log
    clock: Callable[[], float]

    def sweep(self) -> int:
        """Enqueue every run that is due and return how many were: watched ones, and a fifth of those that rest."""
        now = int(self.clock())
        entries = self.live.watched()
        watched = [entry.run for entry in entries if entry.due_at <= now]
        due = list(dict.fromkeys((*watched, *(entry.run for entry in self.live.resting(now=now)))))
        self.queue.put(due)
        self.meter.add(Metric.RUNS_LIVE, len(entries))
        self.meter.flush()
        self.log.info("swept", extra={"live": len(entries), "due": len(due)})
        return len(due)


@cache
def sweeper() -> Sweeper:
    """The sweep that the environment describes. Raises BadSettings, naming every variable that is wrong."""
    settings = ControlSettings.from_env(os.environ)
    clients = Clients(region=settings.region)
    return Sweeper(
        live=LiveIndex(DynamoTable(clients.dynamodb, settings.table)),
        queue=RepairQueue(clients.sqs, settings.repair_queue),
        meter=Meter(settings.stack),
        log=Logger(service="spotproof"),
        clock=time.time,
    )

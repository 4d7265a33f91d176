"""Names that the template, the functions, the nodes and the rehearsal share."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from spotproof.contract.events import Queue
from spotproof.contract.limits import COLLECT_PERIOD_S, SWEEP_PERIOD_S

BATCH_SIZE: Final = 10


class Function(StrEnum):
    """The functions of a stack."""

    INTERRUPTION = "interruption"
    SIGNALS = "signals"
    SWEEP = "sweep"
    REPAIR = "repair"
    COLLECT = "collect"
    GUARD = "guard"
    WIDGET = "widget"


@dataclass(frozen=True, slots=True, kw_only=True)
class FunctionRow:
    """A function: its handler, what feeds it, its limits. One without queue and period is called by an AWS service."""

    function: Function
    handler: str
    queue: Queue | None
    timeout_s: int
    memory_mib: int
    max_concurrency: int
    batch_size: int = BATCH_SIZE
    every_s: int = 0  # a schedule's period


FUNCTIONS: Final[tuple[FunctionRow, ...]] = (
    FunctionRow(
        function=Function.INTERRUPTION,
        handler="lambdas.handlers.interruption.handler",
        queue=Queue.URGENT,
        timeout_s=60,
        memory_mib=512,
        max_concurrency=50,
    ),
    FunctionRow(
        function=Function.SIGNALS,
        handler="lambdas.handlers.signals.handler",
        queue=Queue.SIGNALS,
        timeout_s=60,
        memory_mib=512,
        max_concurrency=20,
    ),
    FunctionRow(
        function=Function.SWEEP,
        handler="lambdas.handlers.sweep.handler",
        queue=None,
        timeout_s=50,
        memory_mib=512,
        max_concurrency=1,
        every_s=SWEEP_PERIOD_S,
    ),
    FunctionRow(
        function=Function.REPAIR,
        handler="lambdas.handlers.repair.handler",
        queue=Queue.REPAIR,
        timeout_s=60,
        memory_mib=512,
        max_concurrency=50,
        batch_size=2,  # a fleet may take half a minute, one run after the other
    ),
    FunctionRow(
        function=Function.COLLECT,
        handler="lambdas.handlers.collect.handler",
        queue=None,
        timeout_s=900,  # all that Lambda gives; what it does not come to is the next hour's
        memory_mib=1024,  # the listing of a million chunks, and digests of manifests without a compiled library
        max_concurrency=1,
        every_s=COLLECT_PERIOD_S,
    ),
    FunctionRow(
        function=Function.GUARD,
        handler="lambdas.handlers.guard.handler",
        queue=None,
        timeout_s=60,
        memory_mib=512,
        max_concurrency=1,
    ),
    FunctionRow(
        function=Function.WIDGET,
        handler="lambdas.handlers.widget.handler",
        queue=None,
        timeout_s=20,
        memory_mib=1024,  # twice the processor of the others: somebody waits and looks
        max_concurrency=1,
    ),
)

VISIBILITY_FACTOR: Final = 6  # queue visibility >= 6 x function timeout
MAX_RECEIVES: Final = 5  # deliveries before the dead-letter queue

LOCAL_TABLE: Final = "table.sqlite"  # in a local run's folder
LOCAL_OBJECTS: Final = "objects"

OUTPUT_TABLE: Final = "Table"
OUTPUT_BUCKET: Final = "Bucket"
OUTPUT_TEMPLATE_ID: Final = "LaunchTemplateId"
OUTPUT_TEMPLATE_VERSION: Final = "LaunchTemplateVersion"
OUTPUT_SUBNETS: Final = "Subnets"  # `subnet-id=zone,...`
OUTPUT_TOPIC: Final = "Topic"
OUTPUT_DASHBOARD: Final = "Dashboard"
OUTPUT_REGION: Final = "Region"
OUTPUT_QUEUES: Final = "QueueUrls"  # `name=url,...`: each queue by its name, its dead letters, what was not delivered
OUTPUTS: Final = (
    OUTPUT_TABLE,
    OUTPUT_BUCKET,
    OUTPUT_TEMPLATE_ID,
    OUTPUT_TEMPLATE_VERSION,
    OUTPUT_SUBNETS,
    OUTPUT_TOPIC,
    OUTPUT_DASHBOARD,
    OUTPUT_REGION,
    OUTPUT_QUEUES,
)


UNDELIVERED: Final = "undelivered"  # what EventBridge, the schedule or an asynchronous call could not hand over
REPLAYS: Final = "spotproof-replays"  # message attribute: how often an operator has sent this letter back


DEAD: Final = "-dead"


def dead_letters_of(queue: Queue) -> str:
    """Name of a queue's dead letters in the output."""
    return f"{queue.value}{DEAD}"


GUARD_RESOURCE: Final = "Custom::SpotproofGuard"  # refuses that a stack with live runs is destroyed
GUARD_ATTACHED: Final = "Attached"  # property: what the stack did not make itself, to be checked when it is attached
ATTACHED_TABLE: Final = "Table"
ATTACHED_BUCKET: Final = "Bucket"


def function_of(function: Function) -> FunctionRow:
    """The row of `function`."""
    return next(row for row in FUNCTIONS if row.function is function)

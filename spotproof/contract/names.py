"""Names that the template, the functions, the nodes and the rehearsal share."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from spotproof.contract.events import Queue


class Function(StrEnum):
    """The functions of a stack."""

    INTERRUPTION = "interruption"
    SIGNALS = "signals"
    SWEEP = "sweep"
    REPAIR = "repair"


@dataclass(frozen=True, slots=True, kw_only=True)
class FunctionRow:
    """A function: its handler, what feeds it, its limits. `queue` None: a schedule."""

    function: Function
    handler: str
    queue: Queue | None
    timeout_s: int
    memory_mib: int
    max_concurrency: int


FUNCTIONS: Final[tuple[FunctionRow, ...]] = (
    FunctionRow(
        function=Function.INTERRUPTION,
        handler="lambdas.handlers.interruption.handler",
        queue=Queue.URGENT,
        timeout_s=60,
        memory_mib=512,
        max_concurrency=10,
    ),
    FunctionRow(
        function=Function.SIGNALS,
        handler="lambdas.handlers.signals.handler",
        queue=Queue.SIGNALS,
        timeout_s=60,
        memory_mib=512,
        max_concurrency=5,
    ),
    FunctionRow(
        function=Function.SWEEP,
        handler="lambdas.handlers.sweep.handler",
        queue=None,
        timeout_s=50,
        memory_mib=512,
        max_concurrency=1,
    ),
    FunctionRow(
        function=Function.REPAIR,
        handler="lambdas.handlers.repair.handler",
        queue=Queue.REPAIR,
        timeout_s=60,
        memory_mib=512,
        max_concurrency=10,
    ),
)

VISIBILITY_FACTOR: Final = 6  # queue visibility >= 6 x function timeout
BATCH_SIZE: Final = 10
MAX_RECEIVES: Final = 5  # deliveries before the dead-letter queue

OUTPUT_TABLE: Final = "Table"
OUTPUT_BUCKET: Final = "Bucket"
OUTPUT_TEMPLATE_ID: Final = "LaunchTemplateId"
OUTPUT_TEMPLATE_VERSION: Final = "LaunchTemplateVersion"
OUTPUT_SUBNETS: Final = "Subnets"  # `subnet-id=zone,...`
OUTPUT_TOPIC: Final = "Topic"
OUTPUT_DASHBOARD: Final = "Dashboard"
OUTPUT_REGION: Final = "Region"
OUTPUTS: Final = (
    OUTPUT_TABLE,
    OUTPUT_BUCKET,
    OUTPUT_TEMPLATE_ID,
    OUTPUT_TEMPLATE_VERSION,
    OUTPUT_SUBNETS,
    OUTPUT_TOPIC,
    OUTPUT_DASHBOARD,
    OUTPUT_REGION,
)


def function_of(function: Function) -> FunctionRow:
    """The row of `function`."""
    return next(row for row in FUNCTIONS if row.function is function)

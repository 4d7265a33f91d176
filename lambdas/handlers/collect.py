"""The schedule, every hour: old checkpoints of every run go, with a role of its own, since nobody else can delete."""

from __future__ import annotations

import time
from typing import Any

from lambdas import collecting


def handler(event: dict[str, Any], context: Any) -> dict[str, int]:  # noqa: ARG001 - a schedule says nothing
    """Lambda's entry. Raises where a run could not be collected, after all the others: that is a dead letter."""
    until = time.time() + context.get_remaining_time_in_millis() / 1000
    return collecting.collector().collect(until=until)

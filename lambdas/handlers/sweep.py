"""The schedule, every minute: the runs that are due go to the repair queue."""

from __future__ import annotations

from typing import Any

from lambdas import sweeping


def handler(event: dict[str, Any], context: Any) -> dict[str, int]:  # noqa: ARG001 - a schedule says nothing
    """Lambda's entry."""
    return {"due": sweeping.sweeper().sweep()}

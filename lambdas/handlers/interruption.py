"""The urgent queue: interruption warnings."""

from __future__ import annotations

from typing import Any

from lambdas.handlers.batch import respond


def handler(event: dict[str, Any], context: Any) -> Any:
    """Lambda's entry."""
    return respond(event, context)

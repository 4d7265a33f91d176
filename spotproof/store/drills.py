"""EventBridge: events of our own source, by which an operator rehearses an interruption."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from spotproof.contract.events import DRILL_SOURCE, DRILL_TYPE
from spotproof.errors import Unavailable
from spotproof.store.awserrors import aws_failures, error_for

__all__ = ["Drills"]

_ENTRIES: Final = 10  # the API's limit for one call


class Drills:
    """The account's default bus, where the stack's rules listen."""

    def __init__(self, client: Any) -> None:
        self._client = client

    def put(self, details: Sequence[Mapping[str, Any]]) -> None:
        """Put one event for each detail. Raises Unavailable if the bus took not all of them: some may be under way."""
        refused: list[str] = []
        for first in range(0, len(details), _ENTRIES):
            entries = [
                {"Source": DRILL_SOURCE, "DetailType": DRILL_TYPE, "Detail": json.dumps(detail)}
                for detail in details[first : first + _ENTRIES]
            ]
            try:
                answer = self._client.put_events(Entries=entries)
            except aws_failures() as failure:
                raise error_for(failure, doing="put the drill's events") from failure
            refused += [str(one["ErrorCode"]) for one in answer.get("Entries", ()) if one.get("ErrorCode")]
        if refused:
            raise Unavailable(
                f"EventBridge refused {len(refused)} of {len(details)} events: {', '.join(sorted(set(refused)))}",
                next_step="look at `spotproof status`, then drill the slots that have not moved",
            )

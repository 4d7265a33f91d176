"""What one invocation has told and entered.

No claim and no launch waits for the timeline: notes are written when the work is done, and a page at a time while a
large launch is bound, which keeps a thousand of them from falling on one partition in one second. A handler that dies
before loses the notes of its batch, and nothing else.
"""

from __future__ import annotations

from typing import Final

from lambdas.effects.log import Log
from lambdas.effects.meter import Meter
from spotproof.contract.items import History, Member
from spotproof.contract.metrics import Metric
from spotproof.errors import StoreError
from spotproof.store.many import Many

PAGE: Final = 25  # of one request


class Journal:
    """Best effort: what is told is behind us, and a message that came again would not tell it again. Losses count."""

    def __init__(self, many: Many, log: Log, meter: Meter) -> None:
        self._many = many
        self._log = log
        self._meter = meter
        self._notes: list[tuple[History, str]] = []
        self.entered: set[Member] = set()  # a launch that is settled in two steps enters its members once

    def tell(self, entry: History, entry_id: str) -> None:
        """Take down an entry of a timeline, and the id that tells it from others of its moment."""
        self._notes.append((entry, entry_id))

    def write_pages(self) -> None:
        """Write what fills a page."""
        while len(self._notes) >= PAGE:
            page, self._notes = self._notes[:PAGE], self._notes[PAGE:]
            self._write(page)

    def write(self) -> None:
        """Write everything."""
        page, self._notes = self._notes, []
        if page:
            self._write(page)

    def _write(self, notes: list[tuple[History, str]]) -> None:
        try:
            self._many.tell(notes)
        except StoreError as error:
            self._meter.add(Metric.NOTES_LOST, len(notes))
            self._log.error("timeline not written", extra={"entries": len(notes), "why": str(error)})

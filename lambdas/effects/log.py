"""What the pipeline needs of a logger: Powertools' on Lambda, the standard library's in tests."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol


class Log(Protocol):
    """Structured: what happened is in `extra` (run, slot, incarnation, cause), never in the text alone."""

    def info(self, msg: object, *args: object, extra: Mapping[str, object] | None = None) -> None:
        """Something happened."""

    def warning(self, msg: object, *args: object, extra: Mapping[str, object] | None = None) -> None:
        """A best-effort step failed."""

    def error(
        self, msg: object, *args: object, exc_info: bool = False, extra: Mapping[str, object] | None = None
    ) -> None:
        """A message failed and comes again."""

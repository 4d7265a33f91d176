"""What the pipeline needs of a logger: Powertools' on Lambda, the standard library's in tests."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Protocol

from spotproof.contract.items import Head, Launch, Live, Member, Slot


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


class ContextLog:
    """A log whose lines say also what is being worked on."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._context: dict[str, object] = {}

    @contextmanager
    def about(self, **context: object) -> Iterator[None]:
        """Every line inside the with block has these fields, where it does not say them itself."""
        before, self._context = self._context, {**self._context, **context}
        try:
            yield
        finally:
            self._context = before

    def info(self, msg: object, *args: object, extra: Mapping[str, object] | None = None) -> None:
        """Something happened."""
        self._log.info(msg, *args, extra={**self._context, **(extra or {})})

    def warning(self, msg: object, *args: object, extra: Mapping[str, object] | None = None) -> None:
        """A best-effort step failed."""
        self._log.warning(msg, *args, extra={**self._context, **(extra or {})})

    def error(
        self, msg: object, *args: object, exc_info: bool = False, extra: Mapping[str, object] | None = None
    ) -> None:
        """A message failed and comes again."""
        self._log.error(msg, *args, exc_info=exc_info, extra={**self._context, **(extra or {})})


def about(action: object) -> dict[str, object]:
    """What an action is about, for a line of the log: run, slot, incarnation, instance, cause, as far as it says them.

    Never its request, token or spec.
    """
    said: dict[str, object] = {}
    for name in ("seen", "slot", "launch", "member"):
        said |= _of(getattr(action, name, None))
    for name in ("run", "slot", "incarnation", "instance", "cause"):
        value = getattr(action, name, None)
        if isinstance(value, str | int):
            said[name] = str(value) if isinstance(value, str) else value
    return said


def _of(value: object) -> dict[str, object]:
    match value:
        case Slot():
            return {"run": value.run, "slot": value.slot, "incarnation": value.incarnation}
        case Launch():
            return {"run": value.run, "launch": value.launch}
        case Member():
            return {"run": value.run, "slot": value.slot, "incarnation": value.incarnation, "instance": value.instance}
        case Head() | Live():
            return {"run": value.run}
        case _:
            return {}

"""Wire-level faults: a table of what goes wrong with the next calls of an operation, before or after its effect."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from rehearsal.plane.calls import Call

FOREVER = 1_000_000_000
ANY = "*"  # as an operation: every operation of the service

Rewrite = Callable[[dict[str, Any]], dict[str, Any]]
When = Callable[[Call], bool]


class Kind(StrEnum):
    """What a fault does to a call."""

    ERROR = "error"  # answered with an error, no effect
    DROP = "drop"  # the connection ends, no effect
    LOSE_ANSWER = "lose-answer"  # the call takes effect, then the connection ends
    KILL_CALLER = "kill-caller"  # the call takes effect, then the function that made it is killed
    DELAY = "delay"  # the call waits, then goes on
    REWRITE = "rewrite"  # the call goes on with other parameters


@dataclass(kw_only=True)
class Fault:
    """One row of the table. `hits` counts the calls it met; `skip` matching calls pass first, `times` are then met."""

    kind: Kind
    service: str
    operation: str
    times: int = 1
    skip: int = 0
    when: When | None = None
    code: str = ""
    status: int = 400
    seconds: float = 0.0
    rewrite: Rewrite | None = None
    hits: int = 0

    def meets(self, call: Call) -> bool:
        """Whether this row applies to `call`; counts it if so."""
        if self.service != call.service or self.operation not in (call.operation, ANY):
            return False
        if self.hits >= self.times or (self.when is not None and not self.when(call)):
            return False
        if self.skip > 0:
            self.skip -= 1
            return False
        self.hits += 1
        return True


class FaultTable:
    """Faults in order of arrival; each call takes the first row that meets it, except rewrites, which all apply."""

    def __init__(self) -> None:
        self.rows: list[Fault] = []
        self._lock = threading.Lock()

    def add(self, service: str, operation: str, code: str, **options: Any) -> Fault:
        """The next `times` (1) calls are answered with `code` and HTTP `status` (400) before they have any effect.

        `operation` may be ANY. Options of every method here: `times`, `skip` (matching calls that pass first), `when`
        (a test on the call).
        """
        return self._put(Fault(kind=Kind.ERROR, service=service, operation=operation, code=code, **options))

    def drop(self, service: str, operation: str, **options: Any) -> Fault:
        """The connection closes before the call has any effect."""
        return self._put(Fault(kind=Kind.DROP, service=service, operation=operation, **options))

    def lose_answer(self, service: str, operation: str, **options: Any) -> Fault:
        """The call takes effect and its answer is lost: the client cannot tell this from `drop`."""
        return self._put(Fault(kind=Kind.LOSE_ANSWER, service=service, operation=operation, **options))

    def kill_caller(self, service: str, operation: str, **options: Any) -> Fault:
        """The call takes effect, and the function that made it dies before it hears so: it could write nothing."""
        return self._put(Fault(kind=Kind.KILL_CALLER, service=service, operation=operation, **options))

    def delay(self, service: str, operation: str, seconds: float, **options: Any) -> Fault:
        """The call waits `seconds` outside the lock, then goes on."""
        return self._put(Fault(kind=Kind.DELAY, service=service, operation=operation, seconds=seconds, **options))

    def rewrite(self, service: str, operation: str, change: Rewrite, **options: Any) -> Fault:
        """Every call (or `times` of them) goes on with what `change` makes of its parameters.

        Works for JSON services (dynamodb, ssm, sqs, events) and for operations that the plane replaces. This is how
        a sabotage strips a condition or a tag without touching the product.
        """
        options.setdefault("times", FOREVER)
        return self._put(Fault(kind=Kind.REWRITE, service=service, operation=operation, rewrite=change, **options))

    def _put(self, fault: Fault) -> Fault:
        with self._lock:
            self.rows.append(fault)
        return fault

    def meet(self, call: Call) -> tuple[Fault | None, list[Fault]]:
        """The fault that this call meets, if any, and the rewrites that apply to it."""
        with self._lock:
            rewrites = [row for row in self.rows if row.kind is Kind.REWRITE and row.meets(call)]
            fault = next((row for row in self.rows if row.kind is not Kind.REWRITE and row.meets(call)), None)
            return fault, rewrites

    def remove(self, *rows: Fault) -> None:
        """These faults are over; runs any number of times."""
        with self._lock:
            self.rows = [row for row in self.rows if not any(row is gone for gone in rows)]

    def clear(self) -> None:
        with self._lock:
            self.rows.clear()

"""What can go wrong with an object's transfer, and which transfer it happens to."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum


class ObjectKind(StrEnum):
    """What a fault does to a request."""

    ERROR = "error"  # an S3 error code, nothing stored
    DROP = "drop"  # the connection ends before anything is stored
    LOSE_ANSWER = "lose-answer"  # stored, then the connection ends
    DELAY = "delay"  # waits, then goes on
    SWALLOW = "swallow"  # answered 200, never stored: a server that lies
    ALTER = "alter"  # the body of a PUT (before it is stored) or of a GET (before it is returned) changes


@dataclass(kw_only=True)
class ObjectFault:
    """One row. It meets requests of `method` whose key matches the regular expression `key`."""

    kind: ObjectKind
    method: str
    key: str
    times: int = 1
    skip: int = 0
    code: str = "SlowDown"
    status: int = 503
    seconds: float = 0.0
    alter: Callable[[bytes], bytes] | None = None
    hits: int = 0

    def meets(self, method: str, key: str) -> bool:
        if method != self.method or self.hits >= self.times or not re.search(self.key, key):
            return False
        if self.skip > 0:
            self.skip -= 1
            return False
        self.hits += 1
        return True


class ObjectFaults:
    """Rows in order of arrival; a request meets the first that applies. `skip=k` spares the first k matches."""

    def __init__(self) -> None:
        self.rows: list[ObjectFault] = []
        self._lock = threading.Lock()

    def add(self, fault: ObjectFault) -> ObjectFault:
        with self._lock:
            self.rows.append(fault)
        return fault

    def meet(self, method: str, key: str) -> ObjectFault | None:
        with self._lock:
            return next((row for row in self.rows if row.meets(method, key)), None)

    def clear(self) -> None:
        with self._lock:
            self.rows.clear()

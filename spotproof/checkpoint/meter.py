"""How far a restore is: a bar where a person looks, plain lines elsewhere, nothing where there is no stream."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, TextIO

__all__ = ["Meter"]

_BAR_EVERY_S: Final = 0.1
_LINE_EVERY_S: Final = 10.0  # a large image takes minutes; a log needs no more
_CELLS: Final = 30
_MB: Final = 1e6


@dataclass(slots=True, kw_only=True)
class Meter:
    """Told from several threads. The last line says bytes, elapsed seconds and the rate."""

    stream: TextIO | None = None
    clock: Callable[[], float] = time.monotonic
    _what: str = ""
    _total: int = 0
    _moved: int = 0
    _began_at: float = 0.0
    _said_at: float = 0.0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def begin(self, what: str, total: int) -> None:
        """`total` bytes are to come."""
        self._what, self._total, self._moved = what, total, 0
        self._began_at = self._said_at = self.clock()

    def moved(self, count: int) -> None:
        """So many more have come."""
        with self._lock:
            self._moved += count
            if self.stream is None:
                return
            now = self.clock()
            if now >= self._said_at + (_BAR_EVERY_S if self.stream.isatty() else _LINE_EVERY_S):
                self._said_at = now
                self._say(self._state(now), is_last=False)

    def end(self, *, kept_bytes: int = 0) -> None:
        """All have come; `kept_bytes` beside them were there already."""
        if self.stream is not None:
            kept = f", {kept_bytes / _MB:.1f} MB were here already" if kept_bytes else ""
            self._say(f"{self._state(self.clock())}{kept}", is_last=True)

    def _state(self, now: float) -> str:
        elapsed_s = max(now - self._began_at, 1e-6)
        rate = self._moved / elapsed_s / _MB
        return (
            f"{self._what}: {self._moved / _MB:.1f} of {self._total / _MB:.1f} MB in {elapsed_s:.1f} s, {rate:.0f} MB/s"
        )

    def _say(self, text: str, *, is_last: bool) -> None:
        stream = self.stream
        if stream is None:
            return
        if stream.isatty():
            done = _CELLS * self._moved // max(1, self._total) if self._total else _CELLS
            stream.write(f"\r\x1b[K[{'#' * done}{' ' * (_CELLS - done)}] {text}{chr(10) if is_last else ''}")
        else:
            stream.write(f"{text}\n")
        stream.flush()

"""Metrics as EMF: collected while a batch is worked on, written to the log at its end, one set of labels a line."""

from __future__ import annotations

import time
from collections.abc import Callable

from spotproof.contract import emf
from spotproof.contract.emf import Sample
from spotproof.contract.metrics import Metric


class Meter:
    """Every metric has the stack's dimension, and those of its row (contract.emf). A value never fails a handler."""

    def __init__(
        self, stack: str, *, write: Callable[[str], object] = print, clock: Callable[[], float] = time.time
    ) -> None:
        self._stack, self._write, self._clock = stack, write, clock
        self._samples: list[Sample] = []

    def add(self, metric: Metric, value: float, *, cause: str = "", family: str = "", zone: str = "") -> None:
        """Take note of a value. A label counts where the metric's row has that dimension."""
        self._samples.append(Sample(metric=metric, value=value, cause=cause, family=family, zone=zone))

    def flush(self) -> None:
        """Write what was collected to the log and forget it; writes nothing when there is nothing."""
        samples, self._samples = self._samples, []
        for line in emf.lines(self._stack, samples, now_ms=int(self._clock() * 1000)):
            self._write(line)

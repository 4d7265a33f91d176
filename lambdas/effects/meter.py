"""Metrics as EMF, through Powertools: collected while a batch is worked on, written once at its end."""

from __future__ import annotations

from collections import defaultdict
from typing import Any, Final

from spotproof.contract.metrics import NAMESPACE, Dimension, Metric, row_of

VALUES: Final = 100  # of one metric in one EMF object


class Meter:
    """Every metric has the stack's dimension, and those of its row; each set of dimensions is one EMF object."""

    def __init__(self, stack: str) -> None:
        self._stack = stack
        self._values: dict[tuple[Metric, str], list[float]] = defaultdict(list)

    def add(self, metric: Metric, value: float, *, cause: str = "") -> None:
        """Take note of a value. `cause` is used where the metric's row has that dimension."""
        has_cause = Dimension.CAUSE in row_of(metric).dimensions
        self._values[metric, (cause or "none") if has_cause else ""].append(value)

    def flush(self) -> None:
        """Write what was collected to the log and forget it; writes nothing when there is nothing."""
        causes = sorted({cause for _, cause in self._values})
        for cause in causes:
            group = {metric: values for (metric, of), values in self._values.items() if of == cause}
            self._write(group, cause)
        self._values.clear()

    def _write(self, group: dict[Metric, list[float]], cause: str) -> None:
        from aws_lambda_powertools.metrics import EphemeralMetrics

        emf: Any = EphemeralMetrics(namespace=NAMESPACE)
        emf.add_dimension(name=Dimension.STACK.value, value=self._stack)
        if cause:
            emf.add_dimension(name=Dimension.CAUSE.value, value=cause)
        for metric, values in group.items():
            unit = row_of(metric).unit.value
            for value in values[:VALUES]:
                emf.add_metric(name=metric.value, unit=unit, value=value)
        emf.flush_metrics()

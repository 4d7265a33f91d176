"""Metrics as CloudWatch reads them out of a log: embedded metric format, one JSON object a line, always valid.

Source: CloudWatch User Guide, "Specification: Embedded metric format". Functions and agents write it; a value that is
no finite number is dropped and counted, a dimension is never empty, and a metric's set of dimensions never changes
(OBS-01, OBS-05). Each metric is published for the stack as a whole, which alarms watch, and once for each further
dimension of its row: dimensions are never crossed, so their series add up instead of multiplying.
"""

from __future__ import annotations

import json
import math
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from spotproof.contract.metrics import NAMESPACE, Dimension, Metric, Unit, row_of

VALUES: Final = 100  # CloudWatch takes no longer array
NOBODY: Final = "none"  # stands where a dimension has no value: the series keeps its identity
STRANGE: Final = "other"  # stands for what is no short plain word: a series for each would be without bound
_WORD: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One value. A label counts where the metric's row has that dimension."""

    metric: Metric
    value: float
    cause: str = ""
    family: str = ""
    zone: str = ""

    def labels(self) -> dict[Dimension, str]:
        """The further dimensions of the metric's row, each with a value that CloudWatch takes."""
        given = {Dimension.CAUSE: self.cause, Dimension.FAMILY: self.family, Dimension.ZONE: self.zone}
        return {one: label(given[one]) for one in row_of(self.metric).dimensions}


def label(value: str) -> str:
    """A dimension's value: never empty, never strange."""
    if not value:
        return NOBODY
    return value if _WORD.fullmatch(value) else STRANGE


def family_of(instance_type: str) -> str:
    """`g5` of `g5.xlarge`; '' of ''."""
    return instance_type.partition(".")[0]


def lines(
    stack: str, samples: Iterable[Sample], *, now_ms: int, about: Mapping[str, str | float] | None = None
) -> tuple[str, ...]:
    """The samples as log lines, at most one array of VALUES for each metric in a line; () for no samples.

    Counts are summed before. `about` stands beside the values in each line, for people who search the log: it becomes
    no dimension; numbers in it that are not finite are left out.
    """
    finite, dropped = _checked(samples)
    if dropped:
        finite.append(Sample(metric=Metric.NONFINITE_VALUES, value=dropped))
    groups: dict[tuple[str, ...], dict[Metric, list[float]]] = defaultdict(lambda: defaultdict(list))
    for sample in finite:
        labels = sample.labels()
        groups[tuple(labels.get(one, "") for one in Dimension)][sample.metric].append(sample.value)
    beside = {key: value for key, value in (about or {}).items() if _is_sound(value)}
    return tuple(
        line
        for key in sorted(groups)
        for chunk in _chunks(groups[key])
        for line in [_line(stack, dict(zip(Dimension, key, strict=True)), chunk, now_ms=now_ms, beside=beside)]
    )


def _checked(samples: Iterable[Sample]) -> tuple[list[Sample], int]:
    given = list(samples)
    finite = [sample for sample in given if math.isfinite(sample.value)]
    return finite, len(given) - len(finite)


def _is_sound(value: str | float) -> bool:
    return isinstance(value, str) or math.isfinite(value)


def _chunks(group: Mapping[Metric, list[float]]) -> list[dict[Metric, list[float]]]:
    """Pieces of at most VALUES values of each metric; a count is one value, its sum."""
    whole = {metric: [sum(of)] if row_of(metric).unit is not Unit.SECONDS else of for metric, of in group.items()}
    longest = max(len(of) for of in whole.values())
    return [
        {metric: of[first : first + VALUES] for metric, of in whole.items() if of[first : first + VALUES]}
        for first in range(0, longest, VALUES)
    ]


def _line(
    stack: str,
    labels: Mapping[Dimension, str],
    group: Mapping[Metric, list[float]],
    *,
    now_ms: int,
    beside: Mapping[str, str | float],
) -> str:
    directives: dict[tuple[Dimension, ...], list[dict[str, str]]] = defaultdict(list)
    for metric in group:
        row = row_of(metric)
        directives[row.dimensions].append({"Name": metric.value, "Unit": row.unit.value})
    metrics = [
        {"Namespace": NAMESPACE, "Dimensions": _sets(further), "Metrics": named}
        for further, named in directives.items()
    ]
    document: dict[str, Any] = {
        **beside,
        "_aws": {"Timestamp": now_ms, "CloudWatchMetrics": metrics},
        Dimension.STACK.value: label(stack),
        **{one.value: value for one, value in labels.items() if value},
        **{metric.value: values for metric, values in group.items()},
    }
    return json.dumps(document, allow_nan=False, separators=(",", ":"))


def _sets(further: tuple[Dimension, ...]) -> list[list[str]]:
    return [[Dimension.STACK.value], *([Dimension.STACK.value, one.value] for one in further)]

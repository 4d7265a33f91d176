"""All recoveries in one drawing: for each stage the middle (p50) and the slow end (p95) of what was measured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from spotproof.report.markup import NOTHING, Markup, tag, text
from spotproof.report.model import Recovery, Stage
from spotproof.report.scales import Scale, duration_ticks, length

WIDTH: Final = 1120.0
LEFT: Final = 92.0
RIGHT: Final = 150.0
ROW: Final = 22.0


@dataclass(frozen=True, slots=True, kw_only=True)
class StageSummary:
    """How long a stage took over several recoveries."""

    stage: Stage
    count: int
    p50_s: float
    p95_s: float


def quantile(values: Sequence[float], share: float) -> float:
    """The smallest value that at least `share` of the values do not exceed. Raises ValueError for no values."""
    if not values:
        raise ValueError("there is no value")
    ordered = sorted(values)
    return ordered[max(0, -int(-share * len(ordered) // 1) - 1)]


def summaries(recoveries: Sequence[Recovery]) -> tuple[StageSummary, ...]:
    """One for each stage that was measured at all, in the order of the stages."""
    seconds = {
        stage: [span.seconds for one in recoveries for span in one.stages if span.stage is stage] for stage in Stage
    }
    return tuple(
        StageSummary(stage=stage, count=len(of), p50_s=quantile(of, 0.5), p95_s=quantile(of, 0.95))
        for stage, of in seconds.items()
        if of
    )


def stage_summary(recoveries: Sequence[Recovery]) -> Markup:
    """The drawing; nothing for less than two recoveries, which are drawn each by itself."""
    found = summaries(recoveries)
    if len(recoveries) < 2 or not found:
        return NOTHING
    reach = max(1.0, *(one.p95_s for one in found))
    across = Scale(low=0.0, high=reach, start=LEFT, end=WIDTH - RIGHT)
    bottom = 20 + ROW * len(found)
    grid = [
        tag(
            "g",
            tag("line", x1=across(at), x2=across(at), y1=16, y2=bottom, class_="grid"),
            tag("text", text(length(at) if at else "0"), x=across(at), y=10, class_="tick middle"),
        )
        for at in duration_ticks(reach, at_most=8)
    ]
    return tag(
        "svg",
        tag(
            "title", text(f"Stages of all {len(recoveries)} recoveries: p50 as a bar, p95 as a line"), id="stages-title"
        ),
        *grid,
        *(_row(one, across, 20 + ROW * index) for index, one in enumerate(found)),
        viewBox=f"0 0 {WIDTH:.0f} {bottom + 6:.0f}",
        role="img",
        aria_labelledby="stages-title",
        class_="drawing",
    )


def _row(one: StageSummary, across: Scale, y: float) -> Markup:
    middle, slow = across(one.p50_s), across(one.p95_s)
    says = f"{one.stage.value}: p50 {length(one.p50_s)}, p95 {length(one.p95_s)}, measured {one.count} times"
    class_ = one.stage.value.replace(" ", "-")
    return tag(
        "g",
        tag("title", text(says)),
        tag("text", text(one.stage.value), x=LEFT - 12, y=y + 14, class_="small end"),
        tag("line", x1=LEFT, x2=slow, y1=y + 10, y2=y + 10, class_="rule"),
        tag("rect", x=LEFT, y=y + 3, width=max(2.0, middle - LEFT), height=ROW - 8, rx=3, class_=f"stage {class_}"),
        tag("line", x1=slow, x2=slow, y1=y + 3, y2=y + ROW - 5, class_="slow"),
        tag("text", text(f"{length(one.p50_s)} / {length(one.p95_s)}"), x=slow + 6, y=y + 14, class_="tick"),
    )

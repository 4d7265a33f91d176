"""The loss curve across the interruptions: each node's steps in its colour, the uninterrupted run under them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from spotproof.report.markup import NOTHING, Markup, join, tag, text
from spotproof.report.model import Point, Segment, Story
from spotproof.report.scales import Scale, number_ticks

WIDTH: Final = 1120.0
HEIGHT: Final = 360.0
LEFT: Final = 56.0
RIGHT: Final = 24.0
RIBBON: Final = 26.0  # the band above the plot that tells who trained which steps
TOP: Final = 40.0
BOTTOM: Final = HEIGHT - 44.0
COLOURS: Final = 6
POINTS_AT_MOST: Final = 1500
LETTER: Final = 6.6


@dataclass(frozen=True, slots=True, kw_only=True)
class _Plot:
    x: Scale
    y: Scale


def curve(story: Story) -> Markup:
    """The drawing, as one accessible SVG; a sentence instead of it where no loss was recorded."""
    finite = [p for p in _points(story) if math.isfinite(p.loss)]
    if not finite:
        return tag("p", text("No loss was recorded."), class_="quiet")
    steps, losses = [p.step for p in finite], [p.loss for p in finite]
    low, high = min(losses), max(losses)
    room = (high - low) * 0.06 or 0.5
    plot = _Plot(
        x=Scale(low=min(steps), high=max(steps), start=LEFT, end=WIDTH - RIGHT),
        y=Scale(low=low - room, high=high + room, start=BOTTOM, end=TOP + RIBBON),
    )
    says = f"Loss from {losses[0]:.3f} to {losses[-1]:.3f} over steps {min(steps)} to {max(steps)}."
    reference = _line(story.reference, plot, "reference") if story.reference else NOTHING
    return tag(
        "svg",
        tag("title", text("Loss by optimizer step"), id="curve-title"),
        tag("desc", text(says), id="curve-desc"),
        _axes(plot),
        *(_again(one, two, plot) for one, two in pairwise(story.segments)),
        reference,
        *(_segment(segment, plot, index) for index, segment in enumerate(story.segments)),
        viewBox=f"0 0 {WIDTH:.0f} {HEIGHT:.0f}",
        role="img",
        aria_labelledby="curve-title curve-desc",
        class_="drawing",
    )


def _points(story: Story) -> Iterable[Point]:
    yield from story.reference
    for segment in story.segments:
        yield from segment.points


def _axes(plot: _Plot) -> Markup:
    marks = []
    for value in number_ticks(plot.y.low, plot.y.high, at_most=6):
        y = plot.y(value)
        marks.append(tag("line", x1=LEFT, x2=WIDTH - RIGHT, y1=y, y2=y, class_="grid"))
        marks.append(tag("text", text(f"{value:g}"), x=LEFT - 8, y=y + 4, class_="tick end"))
    marks += [
        tag("text", text(f"{value:.0f}"), x=plot.x(value), y=BOTTOM + 18, class_="tick middle")
        for value in number_ticks(plot.x.low, plot.x.high, at_most=12)
        if value == int(value)
    ]
    marks.append(tag("text", text("optimizer step"), x=WIDTH - RIGHT, y=HEIGHT - 6, class_="small end"))
    marks.append(tag("text", text("loss"), x=LEFT - 8, y=TOP + RIBBON - 10, class_="small end"))
    return tag("g", *marks)


def _segment(segment: Segment, plot: _Plot, index: int) -> Markup:
    if not segment.points:
        return NOTHING
    first, last = segment.points[0].step, segment.points[-1].step
    x, end = plot.x(first), plot.x(last)
    # Ribbons of neighbours stand on two levels, so that steps which were done again are seen twice.
    y = TOP - 30 + (index % 2) * 17
    name = f"node {segment.incarnation}" if segment.slot == 0 else f"slot {segment.slot}, node {segment.incarnation}"
    label = f"{name}: steps {first} to {last}"
    width = max(3.0, end - x)
    shown = next((words for words in (label, name) if len(words) * LETTER + 8 < width), "")
    colour = f"node-{index % COLOURS}"
    handover = tag("line", x1=x, x2=x, y1=y, y2=BOTTOM, class_="handover") if index else NOTHING
    return tag(
        "g",
        tag("title", text(label)),
        handover,
        tag("rect", x=x, y=y, width=width, height=15, rx=3, class_=f"ribbon {colour}"),
        tag("text", text(shown), x=x + 5, y=y + 11.5, class_="ribbon-word"),
        _line(segment.points, plot, f"loss {colour}"),
    )


def _again(one: Segment, two: Segment, plot: _Plot) -> Markup:
    """A band over the steps that the second node had to do again."""
    if one.slot != two.slot or not one.points or not two.points or two.points[0].step > one.points[-1].step:
        return NOTHING
    x, end = plot.x(two.points[0].step), plot.x(one.points[-1].step)
    says = f"steps {two.points[0].step} to {one.points[-1].step} were done again"
    rect = tag("rect", x=x, y=TOP + RIBBON, width=max(3.0, end - x), height=BOTTOM - TOP - RIBBON, class_="again")
    return tag("g", tag("title", text(says)), rect)


def _line(points: Sequence[Point], plot: _Plot, class_: str) -> Markup:
    """The line through the points; one that is not finite interrupts it."""
    pieces: list[list[str]] = [[]]
    for point in _thinned(points):
        if math.isfinite(point.loss):
            pieces[-1].append(f"{plot.x(point.step):.1f},{plot.y(point.loss):.1f}")
        elif pieces[-1]:
            pieces.append([])
    return join(*(tag("polyline", points=" ".join(piece), class_=class_) for piece in pieces if piece))


def _thinned(points: Sequence[Point]) -> list[Point]:
    stride = math.ceil(len(points) / POINTS_AT_MOST) or 1
    kept = [*points[::stride]]
    return kept if not points or kept[-1] is points[-1] else [*kept, points[-1]]

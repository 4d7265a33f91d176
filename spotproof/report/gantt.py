"""The timeline: one row per node, its phases as coloured bars, what happened to it as marks, commits underneath."""

from __future__ import annotations

from typing import Final

from spotproof.report.markup import Markup, join, tag, text
from spotproof.report.model import Mark, MarkKind, NodeLine, Phase, Span, Story
from spotproof.report.scales import Scale, clock, duration_ticks, length

WIDTH: Final = 1120.0
LEFT: Final = 196.0
RIGHT: Final = 24.0
TOP: Final = 34.0
ROW: Final = 52.0
ROWS_AT_MOST: Final = 40
BAR: Final = 22.0
LANE: Final = 40.0
WORD_AFTER: Final = {Phase.FROZEN: 14}  # there the sign stands first
ABOVE: Final = {
    MarkKind.NOTICE: 16,
    MarkKind.ADVICE: 16,
    MarkKind.LOST: 17,
}  # these signs stand above the bar by so much
LETTER: Final = 6.6  # width of a letter in a bar, about: words that do not fit are left to the legend

PHASES: Final[dict[Phase, str]] = {
    Phase.BOOTING: "the instance starts",
    Phase.PREPARING: "image, imports, read-ahead",
    Phase.PARKED: "ready, waits for its turn",
    Phase.RESTORING: "loads the checkpoint",
    Phase.TRAINING: "optimizer steps",
    Phase.FLUSHING: "emergency checkpoint",
    Phase.DRAINING: "has saved, waits for its end",
    Phase.FROZEN: "alive but silent",
}
MARKS: Final[dict[MarkKind, str]] = {
    MarkKind.NOTICE: "notice: it will go",
    MarkKind.ADVICE: "advice: it is at risk",
    MarkKind.KILLED: "gone",
    MarkKind.LOST: "found missing",
    MarkKind.FROZEN: "stops answering",
    MarkKind.WOKEN: "wakes up",
    MarkKind.SUPERSEDED: "finds itself replaced, stops",
    MarkKind.DAMAGED: "damaged checkpoint passed over",
    MarkKind.ENDED: "ended",
    MarkKind.DONE: "done",
}


# Kind -> where the shape begins beside and below the middle of the bar, its outline from there, its look.
SHAPES: Final[dict[MarkKind, tuple[float, float, str, str]]] = {
    MarkKind.NOTICE: (-7, -21, "h14 l-7 10 z", "warn"),
    MarkKind.ADVICE: (-6, -20, "h12 l-6 9 z", "hollow warn"),
    MarkKind.KILLED: (-6, -6, "l12 12 m0 -12 l-12 12", "stroke bad"),
    MarkKind.LOST: (-7, -17, "a7 7 0 1 0 14 0 a7 7 0 1 0 -14 0", "halo bad"),
    MarkKind.FROZEN: (-4, -7, "v14 m8 -14 v14", "stroke cold"),
    MarkKind.WOKEN: (-4, -7, "l11 7 l-11 7 z", "cold"),
    MarkKind.SUPERSEDED: (-6, -6, "h12 v12 h-12 z", "stroke calm"),
    MarkKind.DAMAGED: (0, -9, "l8 9 l-8 9 l-8 -9 z", "bad"),
    MarkKind.ENDED: (-5, 0, "a5 5 0 1 0 10 0 a5 5 0 1 0 -10 0", "stroke calm"),
    MarkKind.DONE: (-7, 0, "l5 6 l9 -12", "stroke good"),
}


def gantt(story: Story) -> Markup:
    """The drawing, as one accessible SVG."""
    nodes = shown(story)
    bottom = TOP + ROW * len(nodes)
    across = Scale(low=story.begin_at, high=max(story.end_at, story.begin_at + 1), start=LEFT, end=WIDTH - RIGHT)
    height = bottom + LANE + 8
    says = f"{len(story.nodes)} nodes over {length(story.end_at - story.begin_at)}; {len(story.commits)} checkpoints."
    return tag(
        "svg",
        tag("title", text("Timeline of the nodes"), id="gantt-title"),
        tag("desc", text(says), id="gantt-desc"),
        _grid(story, across, bottom + LANE),
        *(_row(story, node, across, TOP + ROW * index) for index, node in enumerate(nodes)),
        _commits(story, across, bottom + LANE / 2),
        viewBox=f"0 0 {WIDTH:.0f} {height:.0f}",
        role="img",
        aria_labelledby="gantt-title gantt-desc",
        class_="drawing",
    )


def shown(story: Story) -> tuple[NodeLine, ...]:
    """The nodes that get a row: all of a few; of many whole slots, those in which most happened, in order."""
    if len(story.nodes) <= ROWS_AT_MOST:
        return story.nodes
    by_slot: dict[int, list[NodeLine]] = {}
    for node in story.nodes:
        by_slot.setdefault(node.slot, []).append(node)
    eventful = sorted(by_slot.values(), key=lambda of: sum(len(node.marks) for node in of), reverse=True)
    kept: set[int] = set()
    room = ROWS_AT_MOST
    for of in eventful:
        if len(of) <= room:
            kept.add(of[0].slot)
            room -= len(of)
    return tuple(node for node in story.nodes if node.slot in kept) or story.nodes[-ROWS_AT_MOST:]


def _grid(story: Story, across: Scale, bottom: float) -> Markup:
    lines = []
    for seconds in duration_ticks(max(1.0, story.end_at - story.begin_at), at_most=12):
        x = across(story.begin_at + seconds)
        lines.append(tag("line", x1=x, x2=x, y1=TOP - 8, y2=bottom, class_="grid"))
        lines.append(tag("text", text(clock(seconds)), x=x, y=TOP - 16, class_="tick middle"))
    return tag("g", *lines)


def _row(story: Story, node: NodeLine, across: Scale, top: float) -> Markup:
    middle = top + ROW / 2
    name = f"slot {node.slot}, node {node.incarnation}"
    notices = [mark.at for mark in node.marks if mark.kind is MarkKind.NOTICE]
    return tag(
        "g",
        tag("line", x1=0, x2=WIDTH, y1=top, y2=top, class_="rule"),
        tag("text", text(name), x=0, y=middle - 3, class_="name"),
        tag("text", text(node.place or node.instance), x=0, y=middle + 13, class_="small"),
        *(_bar(story, node, span, across, middle - BAR / 2) for span in node.spans),
        *(
            tag("line", x1=across(at), x2=across(at), y1=top + 6, y2=top + ROW - 6, class_="notice-line")
            for at in notices
        ),
        *(_mark(story, mark, across, middle) for mark in node.marks),
    )


def _bar(story: Story, node: NodeLine, span: Span, across: Scale, y: float) -> Markup:
    x, end = across(span.begin_at), across(span.end_at)
    width = max(1.5, end - x)
    begin, seconds = clock(span.begin_at - story.begin_at), length(span.end_at - span.begin_at)
    word = span.phase.value if span.phase is not Phase.TRAINING else f"training {seconds}"
    shown = word if len(word) * LETTER + 8 < width else span.phase.value
    fits = len(shown) * LETTER + 8 < width
    return tag(
        "g",
        tag("title", text(f"{node.instance}: {span.phase.value} for {seconds}, from {begin}")),
        tag("rect", x=x, y=y, width=width, height=BAR, rx=3, class_=f"phase {span.phase.value}"),
        *(
            (
                tag(
                    "text",
                    text(shown),
                    x=x + WORD_AFTER.get(span.phase, 5),
                    y=y + BAR / 2 + 4,
                    class_=f"word on-{span.phase.value}",
                ),
            )
            if fits
            else ()
        ),
    )


def _mark(story: Story, mark: Mark, across: Scale, middle: float) -> Markup:
    says = f"{MARKS[mark.kind]} at {clock(mark.at - story.begin_at)}" + (f": {mark.says}" if mark.says else "")
    return tag("g", tag("title", text(says)), glyph(mark.kind, across(mark.at), middle))


def glyph(kind: MarkKind, x: float, y: float) -> Markup:
    """The sign of a kind of mark; each has a shape of its own, so that colour is never the only difference."""
    right, down, path, class_ = SHAPES[kind]
    drawn = tag("path", d=f"M{x + right:.1f} {y + down:.1f} {path}", class_=f"mark {class_}")
    if kind is not MarkKind.LOST:
        return drawn
    return join(drawn, tag("text", text("?"), x=x, y=y + down + 4, class_="sign middle"))


def _commits(story: Story, across: Scale, y: float) -> Markup:
    ticks = [
        tag(
            "g",
            tag("title", text(f"step {commit.step} durable at {clock(commit.at - story.begin_at)}")),
            tag("line", x1=across(commit.at), x2=across(commit.at), y1=y - 7, y2=y + 7, class_="commit"),
        )
        for commit in story.commits
    ]
    labels = []
    free_from = LEFT
    for commit in story.commits:
        x, label = across(commit.at), str(commit.step)
        half = len(label) * LETTER / 2 + 3
        if x - half >= free_from:
            labels.append(tag("text", text(label), x=x, y=y + 20, class_="tick middle"))
            free_from = x + half
    return tag(
        "g",
        tag("line", x1=0, x2=WIDTH, y1=y - LANE / 2, y2=y - LANE / 2, class_="rule"),
        tag("text", text("checkpoints"), x=0, y=y - 1, class_="name"),
        tag("text", text("durable at this step"), x=0, y=y + 14, class_="small"),
        *ticks,
        *labels,
    )


def legend() -> Markup:
    """What the colours and signs mean."""
    swatches = [
        tag("li", tag("span", class_=f"swatch {phase.value}"), tag("b", text(phase.value)), text(f" {says}"))
        for phase, says in PHASES.items()
    ]
    signs = [
        tag(
            "li",
            tag("svg", glyph(kind, 12, 12 + ABOVE.get(kind, 0)), viewBox="0 0 24 24", class_="sign-box"),
            text(says),
        )
        for kind, says in MARKS.items()
    ]
    return join(tag("ul", *swatches, class_="legend"), tag("ul", *signs, class_="legend"))

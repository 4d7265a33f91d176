"""Recoveries: a sentence and a waterfall for each, and all of them in one table with the measured seconds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from spotproof.report.markup import NOTHING, Markup, join, tag, text
from spotproof.report.model import Recovery, Stage, StageSpan, Story
from spotproof.report.scales import Scale, clock, duration_ticks, length
from spotproof.report.stagesummary import stage_summary

STAGES: Final[dict[Stage, str]] = {
    Stage.NOTICE: "until the loss is known and acted on",
    Stage.FLUSH: "the leaving node saves its last step",
    Stage.REQUEST: "the slot is claimed and EC2 asked for a node",
    Stage.BOOT: "the new node starts and prepares",
    Stage.PARK: "it waits until the leaver's outcome is final",
    Stage.RESTORE: "it joins and loads the checkpoint",
    Stage.FIRST_STEP: "its first optimizer step",
}
CAUSES: Final[dict[str, str]] = {
    "interruption": "EC2 took it back, with a notice",
    "silence": "it fell silent without a notice",
    "disappeared": "it disappeared without a notice",
    "never-joined": "it never came up",
    "rebalance": "it was at risk and moved away",
    "drill": "an operator rehearsed an interruption",
    "maintenance": "AWS had planned its end, and it was moved before",
    "block-expiry": "its capacity block ended",
    "failback": "it moved back to Spot",
    "capacity": "its gang moved to another zone",
    "user": "a person took it out of the run",
}
WIDTH: Final = 1120.0
LEFT: Final = 92.0
RIGHT: Final = 70.0
ROW: Final = 22.0
CARDS_AT_MOST: Final = 12
ROWS_AT_MOST: Final = 100


def recoveries(story: Story) -> Markup:
    """All recoveries; a sentence where there was none."""
    if not story.recoveries:
        return tag("p", text("Nothing was lost, so nothing had to recover."), class_="quiet")
    worst = _worst(story.recoveries)
    reach = max((span.end_at - one.origin_at for _, one in worst for span in one.stages), default=1.0)
    left = len(story.recoveries) - len(worst)
    said = f"The {len(worst)} recoveries that took longest; {left} more are not drawn." if left else ""
    summary = stage_summary(story.recoveries)
    of_all = "All recoveries together: the bar is the middle (p50) of each stage, the line its slow end (p95)."
    return join(
        tag("p", text(of_all), class_="quiet") if summary else NOTHING,
        summary,
        tag("p", text(said), class_="quiet") if said else NOTHING,
        *(_card(one, number, reach) for number, one in worst),
        _table(story),
    )


def _worst(found: Sequence[Recovery]) -> list[tuple[int, Recovery]]:
    """With their numbers, in order: all of a few, of many those without an end and with the longest standstill."""
    numbered = list(enumerate(found, start=1))
    if len(numbered) <= CARDS_AT_MOST:
        return numbered
    longest = sorted(numbered, key=lambda one: (one[1].standstill_s is None, one[1].standstill_s or 0.0), reverse=True)
    return sorted(longest[:CARDS_AT_MOST], key=lambda one: one[0])


def sentence(recovery: Recovery) -> str:
    """What happened, in one sentence."""
    why = CAUSES.get(recovery.cause, recovery.cause or "cause not recorded")
    node = f"Node {recovery.incarnation - 1} of slot {recovery.slot} had to be replaced ({why})"
    if recovery.end_at is None:
        return f"{node}; its replacement did not reach a step."
    return f"{node}; {lost_steps(recovery)}, nobody trained for {length(recovery.standstill_s or 0.0)}."


def lost_steps(recovery: Recovery) -> str:
    """How many steps had to be done again, in words."""
    match recovery.steps_lost:
        case None:
            return "steps lost are not known"
        case 0:
            return "no step was lost"
        case 1:
            return "1 step was done again"
        case many:
            return f"{many} steps were done again"


def _card(recovery: Recovery, number: int, reach: float) -> Markup:
    facts = [f"{recovery.lost or '?'} replaced by {recovery.replacement or 'nobody yet'}"]
    if recovery.last_step is not None and recovery.resumed_step is not None:
        facts.append(f"stopped after step {recovery.last_step}, went on from step {recovery.resumed_step}")
    facts.extend(recovery.remarks)
    return tag(
        "article",
        tag("h3", text(f"{number}. {sentence(recovery)}")),
        tag("p", text("; ".join(facts)), class_="quiet"),
        _waterfall(recovery, number, reach) if recovery.stages else NOTHING,
        class_="card",
    )


def _waterfall(recovery: Recovery, number: int, reach: float) -> Markup:
    across = Scale(low=0.0, high=max(reach, 1.0), start=LEFT, end=WIDTH - RIGHT)
    bottom = 20 + ROW * len(recovery.stages)
    grid = [
        join(
            tag("line", x1=across(at), x2=across(at), y1=16, y2=bottom, class_="grid"),
            tag(
                "text",
                text("0" if at == 0 else f"+{clock(at)}" if at >= 60 else f"+{at:.0f} s"),
                x=across(at),
                y=10,
                class_="tick middle",
            ),
        )
        for at in duration_ticks(max(reach, 1.0), at_most=8)
    ]
    name = f"recovery-{number}"
    return tag(
        "svg",
        tag("title", text(f"Stages of recovery {number}"), id=name),
        *grid,
        *(_stage(span, recovery, across, 20 + ROW * row) for row, span in enumerate(recovery.stages)),
        viewBox=f"0 0 {WIDTH:.0f} {bottom + 6:.0f}",
        role="img",
        aria_labelledby=name,
        class_="drawing",
    )


def _stage(span: StageSpan, recovery: Recovery, across: Scale, y: float) -> Markup:
    x, end = across(span.begin_at - recovery.origin_at), across(span.end_at - recovery.origin_at)
    return tag(
        "g",
        tag("title", text(f"{span.stage.value}: {STAGES[span.stage]}, {length(span.seconds)}")),
        tag("text", text(span.stage.value), x=LEFT - 12, y=y + 14, class_="small end"),
        tag("rect", x=x, y=y + 3, width=max(2.0, end - x), height=ROW - 8, rx=3, class_=f"stage {_class(span.stage)}"),
        tag("text", text(length(span.seconds)), x=max(end, x + 2) + 6, y=y + 14, class_="tick"),
    )


def _class(stage: Stage) -> str:
    return stage.value.replace(" ", "-")


def _table(story: Story) -> Markup:
    heads = ["", "cause", *(stage.value for stage in Stage), "standstill", "steps lost"]
    found = list(enumerate(story.recoveries, start=1))
    rows = [_table_row(one, number) for number, one in found[-ROWS_AT_MOST:]]
    more = f" The newest {ROWS_AT_MOST} of {len(found)}." if len(found) > ROWS_AT_MOST else ""
    return tag(
        "div",
        tag(
            "table",
            tag("caption", text(f"Measured seconds of each stage. Flush runs while the replacement comes.{more}")),
            tag("thead", tag("tr", *(tag("th", text(head), scope="col") for head in heads))),
            tag("tbody", *rows),
        ),
        class_="scroll",
    )


def _table_row(recovery: Recovery, number: int) -> Markup:
    seconds = {span.stage: f"{span.seconds:.1f}" for span in recovery.stages}
    standstill = "" if recovery.standstill_s is None else f"{recovery.standstill_s:.1f}"
    lost = "" if recovery.steps_lost is None else str(recovery.steps_lost)
    cells = [*(seconds.get(stage, "–") for stage in Stage), standstill or "–", lost or "–"]  # noqa: RUF001 -- a dash
    return tag(
        "tr",
        tag("th", text(number), scope="row"),
        tag("td", text(recovery.cause)),
        *(tag("td", text(cell), class_="number") for cell in cells),
    )

"""The story for a terminal: plain lines, no colour, no control characters whatever the input holds."""

from __future__ import annotations

from spotproof.report.losses import compare
from spotproof.report.model import Recovery, Stage, Story
from spotproof.report.recoveries import sentence
from spotproof.report.scales import clock, length


def summary(story: Story) -> str:
    """What happened and whether the promises were kept; ends with a line end."""
    lines = [
        f"{story.title}: run {story.run}, {length(story.end_at - story.begin_at)}, {len(story.nodes)} nodes, "
        f"{len(story.commits)} checkpoints"
    ]
    for number, recovery in enumerate(story.recoveries, start=1):
        lines.append(f"  {number}. {clock(recovery.begin_at - story.begin_at)}  {sentence(recovery)}")
        if stages := _stages(recovery):
            lines.append(f"        {stages}")
    lines += _curve(story)
    lines += [
        f"  [{'kept' if one.kept else 'BROKEN'}] {one.promise}: {one.measured}"
        for one in sorted(story.verdicts, key=lambda one: one.kept)
    ]
    if story.verdicts:
        broken = len(story.broken)
        lines.append(f"{broken} of {len(story.verdicts)} promises broken" if broken else "all promises kept")
    return "".join(_printable(line) + "\n" for line in lines)


def _stages(recovery: Recovery) -> str:
    seconds = {span.stage: span.seconds for span in recovery.stages}
    return ", ".join(f"{stage.value} {length(seconds[stage])}" for stage in Stage if stage in seconds)


def _curve(story: Story) -> list[str]:
    if not story.reference:
        return []
    found = compare(story.segments, story.reference)
    if found.is_equal:
        return [f"  loss: {len(story.reference)} steps bit-equal to the uninterrupted run"]
    differ, missing, extra = len(found.different), len(found.missing), len(found.extra)
    return [f"  loss: {differ} steps differ, {missing} are missing, {extra} are too many"]


def _printable(line: str) -> str:
    return "".join(letter if letter.isprintable() else "?" for letter in line)

"""The whole page: one file that needs nothing from elsewhere, no script, and follows the reader's light or dark."""

from __future__ import annotations

from importlib import resources

from spotproof.report.curve import curve
from spotproof.report.gantt import gantt, legend, shown
from spotproof.report.losses import compare
from spotproof.report.markup import NOTHING, Markup, join, tag, text
from spotproof.report.model import Story, Verdict
from spotproof.report.recoveries import recoveries
from spotproof.report.scales import length

# Shown to a browser even where the page is opened from a bucket or a mail: nothing may be loaded, nothing may run.
POLICY = "default-src 'none'; style-src 'unsafe-inline'"

WORDS = (
    ("slot", "a place in the run; node after node works in it"),
    ("node", "one EC2 instance; the nodes of a slot are numbered"),
    ("notice", "EC2 says, usually two minutes ahead, that it takes the instance back"),
    ("flush", "the emergency checkpoint between a notice and the end"),
    ("committed, durable", "the checkpoint's manifest is in S3: whatever dies now, training goes on from that step"),
    ("parked", "the replacement is ready and waits until the old node can no longer add a step"),
    ("standstill", "from the last step of the old node to the first step of the new one"),
    ("bit-equal", "the losses are not close to each other: they are the same number, to the last bit"),
)


def page(story: Story) -> str:
    """The story as one HTML document."""
    body = tag(
        "main",
        _head(story),
        _tiles(story),
        _section("What was promised, and what was measured", _verdicts(story.verdicts)) if story.verdicts else NOTHING,
        _section("The life of each node", gantt(story), legend(), says=_timeline_words(story)),
        _section("Loss across the interruptions", curve(story), says=_comparison_words(story)),
        _section("Recoveries", recoveries(story)),
        _section("Words", tag("dl", *_words(), class_="words")),
    )
    head = join(
        tag("meta", charset="utf-8"),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", http_equiv="Content-Security-Policy", content=POLICY),
        tag("title", text(f"{story.title}: {story.run}")),
        tag("style", Markup(stylesheet())),
    )
    return f"<!doctype html>\n{tag('html', tag('head', head), tag('body', body), lang='en')}\n"


def stylesheet() -> str:
    """The page's style sheet."""
    return resources.files("spotproof.report").joinpath("style.css").read_text()


def sections(story: Story) -> Markup:
    """What a dashboard shows of the story: the page without its head, its words and what was never recorded."""
    losses = _section("Loss across the interruptions", curve(story), says=_comparison_words(story))
    return join(
        _tiles(story),
        _section("The life of each node", gantt(story), legend(), says=_timeline_words(story)),
        losses if story.segments else NOTHING,
        _section("Recoveries", recoveries(story)),
    )


def _section(title: str, *content: Markup, says: str = "") -> Markup:
    under = tag("p", text(says), class_="quiet") if says else NOTHING
    return tag("section", tag("h2", text(title)), under, *content)


def _head(story: Story) -> Markup:
    lead = tag("p", text(story.lead), class_="quiet") if story.lead else NOTHING
    title = tag("div", tag("h1", text(story.title)), tag("p", text("run "), tag("code", text(story.run))), lead)
    return tag("header", title, _badge(story), class_="head")


def _badge(story: Story) -> Markup:
    if not story.verdicts:
        return NOTHING
    if story.broken:
        return tag("div", text(f"✗ {len(story.broken)} of {len(story.verdicts)} promises broken"), class_="badge bad")
    return tag("div", text(f"✓ all {len(story.verdicts)} promises kept"), class_="badge good")


def _tiles(story: Story) -> Markup:
    over = [one for one in story.recoveries if one.end_at is not None]
    known = [one.steps_lost for one in over if one.steps_lost is not None]
    total_s = story.end_at - story.begin_at
    tiles = [
        _tile("nodes lost", str(len(story.recoveries)), f"{len(over)} replaced"),
        _tile("steps done again", str(sum(known)) if len(known) == len(over) else "unknown", ""),
        _tile("nobody trained for", length(_standstill_s(story)), f"of {length(total_s)}"),
        _tile("checkpoints made durable", str(len(story.commits)), ""),
    ]
    if story.money is not None:
        saved = 1 - story.money.spent_usd / story.money.on_demand_usd if story.money.on_demand_usd else 0.0
        tiles.append(_tile("spent", f"${story.money.spent_usd:.2f}", f"{saved:.0%} less than on demand"))
    return tag("dl", *tiles, class_="tiles")


def _standstill_s(story: Story) -> float:
    """Seconds without training: recoveries of several slots at the same time are one standstill."""
    gaps = sorted(
        (one.begin_at if one.stopped_at is None else one.stopped_at, one.end_at)
        for one in story.recoveries
        if one.end_at is not None
    )
    total_s, until = 0.0, 0.0
    for begin_at, end_at in gaps:
        total_s += max(0.0, end_at - max(begin_at, until))
        until = max(until, end_at)
    return total_s


def _tile(name: str, value: str, remark: str) -> Markup:
    after = tag("small", text(f" {remark}")) if remark else NOTHING
    return tag("div", tag("dt", text(name)), tag("dd", text(value), after), class_="tile")


def _verdicts(verdicts: tuple[Verdict, ...]) -> Markup:
    rows = [
        tag(
            "li",
            tag("span", text("✓ kept"), class_="kept") if one.kept else tag("span", text("✗ broken"), class_="broken"),
            tag("span", text(one.promise)),
            tag("span", text(one.measured), class_="quiet"),
        )
        for one in sorted(verdicts, key=lambda one: one.kept)
    ]
    return tag("ul", *rows, class_="verdicts")


def _timeline_words(story: Story) -> str:
    if not story.nodes:
        return "No node ever came."
    rows, of = len(shown(story)), len(story.nodes)
    which = (
        "Each row is one instance."
        if rows == of
        else f"Each row is one instance: those {rows} of {of} with most to tell."
    )
    return f"{which} Minutes and seconds count from the beginning; hold the pointer over a bar or sign."


def _comparison_words(story: Story) -> str:
    if not story.reference:
        return "Each node's steps have a colour of their own. No uninterrupted run was made to compare with."
    found = compare(story.segments, story.reference)
    under = "The wide grey line is the same training without any interruption."
    if found.is_equal:
        return f"{under} All {len(story.reference)} steps are bit-equal to it{_again(story)}."
    parts = [
        f"{len(found.different)} steps differ (first: {found.different[0]})" if found.different else "",
        f"{len(found.missing)} steps are missing (first: {found.missing[0]})" if found.missing else "",
        f"{len(found.extra)} steps are too many (first: {found.extra[0]})" if found.extra else "",
    ]
    return (
        f"{under} " + ", ".join(part for part in parts if part) + "." if any(parts) else f"{under} Nothing to compare."
    )


def _again(story: Story) -> str:
    again = sum(one.steps_lost or 0 for one in story.recoveries)
    return f", also those {again} that were done again (shaded)" if again else ""


def _words() -> list[Markup]:
    return [join(tag("dt", text(word)), tag("dd", text(meaning))) for word, meaning in WORDS]

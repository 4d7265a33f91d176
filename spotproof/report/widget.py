"""The story for a CloudWatch dashboard: a fragment of HTML that a custom widget may return.

What CloudWatch does with it (User Guide, "Custom widgets"): scripts, iframes and <use> are taken out, styles and SVG
are shown, and a <cwdb-action> makes the element before it call a function. Every rule of the style sheet is narrowed
to the fragment, so that it changes nothing else on the dashboard, and light or dark is the console's.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from spotproof.report.html import sections, stylesheet
from spotproof.report.markup import NOTHING, Markup, join, tag, text
from spotproof.report.model import Story

ROOT: Final = "spotproof-story"
RUNS_AT_MOST: Final = 100
_DARK: Final = re.compile(r"@media \(prefers-color-scheme: dark\) \{\s*:root \{([^}]*)\}\s*\}")
_RULE: Final = re.compile(r"([^{}]+)\{")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunLine:
    """A run in the list. `says` is its cause and reason, or ''."""

    run: str
    status: str
    slots: int
    step: int | None = None
    says: str = ""


def story_fragment(story: Story, *, theme: str, note: str = "", back: str = "") -> str:
    """The run's story. `back` is the function that shows the list of runs again; '' for no way back."""
    head = tag(
        "div",
        tag("h1", text(f"Run {story.run}")),
        tag("p", text(note), class_="quiet") if note else NOTHING,
        _call("All runs", back, {}) if back else NOTHING,
    )
    return _fragment(join(head, sections(story)), theme=theme)


def list_fragment(runs: Sequence[RunLine], *, theme: str, function: str) -> str:
    """The live runs; a click on one calls `function` with it."""
    if not runs:
        return _fragment(tag("p", text("No run is live."), class_="quiet"), theme=theme)
    heads = ("run", "status", "slots", "durable step", "")
    rows = [_row(one, function) for one in runs[:RUNS_AT_MOST]]
    more = f"{len(runs) - RUNS_AT_MOST} more runs are live." if len(runs) > RUNS_AT_MOST else ""
    table = tag(
        "table",
        tag("thead", tag("tr", *(tag("th", text(head), scope="col") for head in heads))),
        tag("tbody", *rows),
    )
    return _fragment(join(table, tag("p", text(more), class_="quiet") if more else NOTHING), theme=theme)


def word_fragment(word: str, *, theme: str) -> str:
    """One sentence, where there is nothing to draw."""
    return _fragment(tag("p", text(word), class_="quiet"), theme=theme)


def _row(one: RunLine, function: str) -> Markup:
    return tag(
        "tr",
        tag("td", _call(one.run, function, {"run": one.run})),
        tag("td", text(one.status)),
        tag("td", text(one.slots)),
        tag("td", text("none yet" if one.step is None else one.step)),
        tag("td", text(one.says)),
    )


def _call(word: str, function: str, parameters: dict[str, str]) -> Markup:
    """A button that calls a function in place of the widget's content."""
    action = tag(
        "cwdb-action", text(json.dumps(parameters)), action="call", display="widget", endpoint=function, event="click"
    )
    return join(tag("a", text(word), class_="btn"), action)


def _fragment(content: Markup, *, theme: str) -> str:
    look = "dark" if theme == "dark" else "light"
    style = tag("style", Markup(scoped(stylesheet())))
    return str(tag("div", style, content, class_=f"{ROOT} {look} cwdb-no-default-styles"))


def scoped(css: str) -> str:
    """The style sheet for the fragment alone: each selector under its class, dark by class instead of by browser."""
    themed = _DARK.sub(lambda found: f".dark-root {{{found.group(1)}}}", css)
    return _RULE.sub(lambda found: f"{_narrowed(found.group(1))}{{", themed)


def _narrowed(selectors: str) -> str:
    if selectors.strip().startswith("@"):
        return selectors
    return "\n" + ", ".join(_one(selector.strip()) for selector in selectors.split(","))


def _one(selector: str) -> str:
    if selector == ".dark-root":
        return f".{ROOT}.dark"
    return f".{ROOT}" if selector in (":root", "body", "main") else f".{ROOT} {selector}"

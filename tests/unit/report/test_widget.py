"""The dashboard's fragment: narrowed to itself, nothing in it runs, and no text of a run becomes markup."""

from __future__ import annotations

import dataclasses
import json
import re
from typing import Any

import pytest

from spotproof.contract.history import HistoryKind as K
from spotproof.contract.items import History
from spotproof.contract.states import Cause
from spotproof.report.gantt import shown
from spotproof.report.html import stylesheet
from spotproof.report.model import Story
from spotproof.report.story import Sources, tell
from spotproof.report.widget import ROOT, RunLine, list_fragment, scoped, story_fragment, word_fragment
from tests.unit.report.stories import story
from tests.unit.report.test_page import EVIL, Reader

FUNCTION = "arn:aws:lambda:us-east-1:111122223333:function:spotproof-widget"
THOUSAND = 1000


def read(fragment: str) -> Reader:
    reader = Reader()
    reader.feed(fragment)
    reader.close()
    assert not reader.open
    return reader


def evil_story() -> Story:
    told = story()
    nodes = tuple(dataclasses.replace(node, place=EVIL, instance=EVIL) for node in told.nodes)
    found = tuple(dataclasses.replace(one, remarks=(EVIL,), cause=EVIL, lost=EVIL) for one in told.recoveries)
    return dataclasses.replace(told, run=EVIL, title=EVIL, nodes=nodes, recoveries=found)


def burst() -> Story:
    """A thousand nodes that were all lost once."""

    def of(slot: int) -> list[History]:
        first, second = f"i-{slot:017x}", f"i-{slot + THOUSAND:017x}"

        def entry(at_ms: int, what: K, incarnation: int, instance: str, **rest: Any) -> History:
            base = History(
                run="big", at_ms=at_ms, what=what.value, slot=slot, incarnation=incarnation, instance=instance
            )
            return dataclasses.replace(base, **rest)

        return [
            entry(1_000, K.BOUND, 1, first, detail="g5.xlarge#us-east-1a#spot"),
            entry(9_000, K.FIRST_STEP, 1, first, step=1),
            entry(60_000, K.NOTICE, 1, first, cause=Cause.INTERRUPTION),
            entry(61_000, K.CLAIMED, 2, first, cause=Cause.INTERRUPTION),
            entry(63_000, K.BOUND, 2, second),
            entry(90_000, K.FIRST_STEP, 2, second, step=40),
        ]

    return tell([entry for slot in range(THOUSAND) for entry in of(slot)], Sources(), run="big", title="Big")


def test_a_story_is_one_element_and_needs_nothing_that_a_dashboard_takes_out() -> None:
    fragment = story_fragment(story(), theme="light", back=FUNCTION)
    reader = read(fragment)
    assert reader.tags[0] == ("div", {"class": f"{ROOT} light cwdb-no-default-styles"})
    names = {name for name, _ in reader.tags}
    assert not names & {"script", "iframe", "use", "html", "head", "body", "meta", "link", "img", "object", "form"}
    assert not [name for _, attributes in reader.tags for name in attributes if name.startswith("on")]
    assert not re.search(r"https?:|javascript:|url\(", fragment)
    assert "svg" in names


def test_nothing_of_the_style_sheet_reaches_beyond_the_fragment() -> None:
    css = scoped(stylesheet())
    selectors = [found.strip() for found in re.findall(r"([^{}]+)\{", css) if not found.strip().startswith("@")]
    assert len(selectors) > 50
    assert all(one.strip().startswith(f".{ROOT}") for selector in selectors for one in selector.split(","))
    assert "prefers-color-scheme" not in css


@pytest.mark.parametrize(("theme", "look"), [("dark", "dark"), ("light", "light"), ("<b>", "light"), ("", "light")])
def test_light_or_dark_is_the_consoles(theme: str, look: str) -> None:
    assert read(word_fragment("A word.", theme=theme)).tags[0][1]["class"] == f"{ROOT} {look} cwdb-no-default-styles"


def test_no_text_of_a_run_becomes_markup() -> None:
    lines = [RunLine(run=EVIL, status=EVIL, slots=1, says=EVIL)]
    for fragment in (
        story_fragment(evil_story(), theme="light", note=EVIL, back=FUNCTION),
        list_fragment(lines, theme="light", function=FUNCTION),
        word_fragment(EVIL, theme="light"),
    ):
        assert "<script" not in fragment
        assert EVIL.partition("\x1b")[0] in "".join(read(fragment).words)


def test_a_click_on_a_run_calls_the_function_with_it_and_one_on_all_runs_without() -> None:
    lines = [RunLine(run="mini", status="active", slots=2, step=7), RunLine(run="other", status="blocked", slots=1)]
    listed = read(list_fragment(lines, theme="light", function=FUNCTION))
    actions = [attributes for name, attributes in listed.tags if name == "cwdb-action"]
    wanted = {"action": "call", "display": "widget", "endpoint": FUNCTION, "event": "click"}
    assert actions == [wanted, wanted]
    assert [json.loads(word) for word in listed.words if word.startswith("{")] == [{"run": "mini"}, {"run": "other"}]
    back = read(story_fragment(story(), theme="light", back=FUNCTION))
    assert [json.loads(word) for word in back.words if word.startswith("{")] == [{}]


def test_a_list_of_runs_is_bounded() -> None:
    lines = [RunLine(run=f"run-{number}", status="active", slots=1) for number in range(150)]
    reader = read(list_fragment(lines, theme="light", function=FUNCTION))
    assert len([name for name, _ in reader.tags if name == "cwdb-action"]) == 100
    assert "50 more runs are live." in reader.words


def test_no_live_run_is_a_sentence() -> None:
    assert "No run is live." in read(list_fragment([], theme="light", function=FUNCTION)).words


def test_a_burst_of_a_thousand_nodes_is_told_in_a_bounded_fragment() -> None:
    told = burst()
    assert len(told.recoveries) == THOUSAND
    fragment = story_fragment(told, theme="light")
    assert len(fragment) < 500_000
    assert "those 40 of 2000 with most to tell" in fragment
    assert "988 more are not drawn" in fragment


def test_recoveries_at_the_same_time_are_one_standstill() -> None:
    fragment = story_fragment(burst(), theme="light")
    assert "<dt>nobody trained for</dt><dd>30 s<small> of 1 min 29 s</small></dd>" in fragment


def test_the_rows_of_a_large_run_are_whole_slots() -> None:
    rows = shown(burst())
    assert len(rows) == 40
    assert [(node.slot, node.incarnation) for node in rows[:4]] == [(0, 1), (0, 2), (1, 1), (1, 2)]


def test_one_slot_with_more_nodes_than_rows_shows_the_newest() -> None:
    told = story()
    node = told.nodes[0]
    many = dataclasses.replace(
        told, nodes=tuple(dataclasses.replace(node, incarnation=number) for number in range(1, 100))
    )
    assert [one.incarnation for one in shown(many)] == list(range(60, 100))

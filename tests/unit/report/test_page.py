"""The page: well-formed, self-contained, escaped, told in words too."""

from __future__ import annotations

import dataclasses
import math
import re
from html.parser import HTMLParser
from importlib import resources

import pytest

from spotproof.report import html, text
from spotproof.report.gantt import MARKS, PHASES, SHAPES
from spotproof.report.markup import Markup, tag
from spotproof.report.model import MarkKind, Money, Phase, Point, Segment, Stage, Story, Verdict
from spotproof.report.recoveries import STAGES
from tests.unit.report.stories import points, story

EMPTY = Story(title="Nothing", run="none", begin_at=0, end_at=0)
EVIL = "<script>alert(1)</script>\"'&\x1b[31m"
VOID = {"meta", "br", "hr"}


class Reader(HTMLParser):
    """Fails on a tag that is not closed in order; collects what tests ask for."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []

    def handle_starttag(self, name: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((name, dict(attrs)))
        if name not in VOID:
            self.open.append(name)

    def handle_endtag(self, name: str) -> None:
        assert self.open.pop() == name

    def handle_data(self, data: str) -> None:
        self.words.append(data)


def read(told: Story) -> Reader:
    reader = Reader()
    reader.feed(html.page(told))
    reader.close()
    assert not reader.open
    return reader


def broken() -> Story:
    verdict = Verdict(promise="Nothing is left running", kept=False, measured="2 instances")
    return dataclasses.replace(story(), verdicts=(*story().verdicts, verdict))


def not_finite() -> Story:
    losses = [1.0, math.inf, math.nan, 2.0, -math.inf, 3.0]
    line = tuple(Point(step=step, loss=loss) for step, loss in enumerate(losses))
    return dataclasses.replace(EMPTY, segments=(Segment(slot=0, incarnation=1, points=line),))


def one_point() -> Story:
    return dataclasses.replace(EMPTY, segments=(Segment(slot=0, incarnation=1, points=(Point(step=1, loss=2.0),)),))


STORIES = {"whole": story(), "empty": EMPTY, "broken": broken(), "not finite": not_finite(), "one point": one_point()}


@pytest.mark.parametrize("name", STORIES)
def test_a_page_is_well_formed_and_its_ids_are_unique(name: str) -> None:
    reader = read(STORIES[name])
    ids = [attributes["id"] for _, attributes in reader.tags if "id" in attributes]
    assert len(ids) == len(set(ids))


@pytest.mark.parametrize("name", STORIES)
def test_a_page_needs_nothing_from_elsewhere_and_runs_nothing(name: str) -> None:
    page = html.page(STORIES[name])
    reader = read(STORIES[name])
    assert not {tag for tag, _ in reader.tags} & {"script", "link", "img", "iframe", "object", "a"}
    assert not [attribute for _, attributes in reader.tags for attribute in attributes if attribute in ("src", "href")]
    assert not re.search(r"url\(|@import|https?:| on\w+=", page)
    assert [
        attributes for _, attributes in reader.tags if (attributes.get("content") or "").startswith("default-src 'n")
    ]


@pytest.mark.parametrize("name", STORIES)
def test_no_coordinate_is_missing_or_not_a_number(name: str) -> None:
    for _, attributes in read(STORIES[name]).tags:
        for key in ("x", "y", "x1", "x2", "y1", "y2", "width", "height", "points", "d", "cx", "cy"):
            value = attributes.get(key)
            assert value is None or not re.search(r"nan|inf", value), (key, value)


def evil() -> Story:
    told = story()
    node = dataclasses.replace(
        told.nodes[0],
        instance=EVIL,
        place=EVIL,
        marks=tuple(dataclasses.replace(mark, says=EVIL) for mark in told.nodes[0].marks),
    )
    recovery = dataclasses.replace(told.recoveries[0], cause=EVIL, lost=EVIL, replacement=EVIL, remarks=(EVIL,))
    return dataclasses.replace(
        told,
        title=EVIL,
        run=EVIL,
        lead=EVIL,
        nodes=(node,),
        recoveries=(recovery,),
        verdicts=(Verdict(promise=EVIL, kept=False, measured=EVIL),),
    )


def test_nothing_that_is_told_becomes_markup() -> None:
    page = html.page(evil())
    assert "<script" not in page
    assert page.count("&lt;script&gt;alert(1)&lt;/script&gt;") > 10
    read(evil())


def test_attributes_are_escaped() -> None:
    assert tag("p", class_='"><script>') == Markup('<p class="&quot;&gt;&lt;script&gt;"></p>')


def test_a_terminal_gets_no_control_characters() -> None:
    lines = text.summary(evil()).split("\n")
    assert all(letter.isprintable() for line in lines for letter in line)


def test_every_drawing_is_told_in_words() -> None:
    reader = read(story())
    ids = {attributes["id"] for _, attributes in reader.tags if "id" in attributes}
    drawings = [attributes for name, attributes in reader.tags if name == "svg" and attributes.get("role") == "img"]
    assert len(drawings) == 3 + len(story().recoveries)  # timeline, curve, all stages, and one for each
    assert all(set((drawing["aria-labelledby"] or "").split()) <= ids for drawing in drawings)


def test_every_phase_mark_and_stage_has_words_and_a_look() -> None:
    style = resources.files("spotproof.report").joinpath("style.css").read_text()
    assert set(PHASES) == set(Phase)
    assert set(MARKS) == set(SHAPES) == set(MarkKind)
    assert set(STAGES) == set(Stage)
    assert not [phase for phase in Phase if f".{phase.value} {{" not in style]
    assert not [stage for stage in Stage if f".stage.{stage.value.replace(' ', '-')} {{" not in style]


def test_every_colour_has_a_dark_twin() -> None:
    style = resources.files("spotproof.report").joinpath("style.css").read_text()
    light, dark = style.split("@media (prefers-color-scheme: dark)")
    names = [re.findall(r"(--[\w-]+):", part) for part in (light, dark)]
    assert names[0] == names[1]
    assert set(re.findall(r"var\((--[\w-]+)\)", style)) == set(names[0])


def test_the_same_story_gives_the_same_bytes() -> None:
    assert html.page(story()) == html.page(story())


def words_of(told: Story) -> str:
    return " ".join(read(told).words)


def test_a_page_says_what_was_measured() -> None:
    said = words_of(story())
    assert "all 5 promises kept" in said
    assert "All 480 steps are bit-equal to it, also those 35 that were done again" in said
    assert "11 steps were done again" in said
    assert re.search(r"nodes lost 3\s+3 replaced", said)
    assert "two pools had no capacity, the third gave a node" in said


def test_a_broken_promise_is_on_top_and_in_the_badge() -> None:
    said = words_of(broken())
    assert "1 of 6 promises broken" in said
    assert said.index("✗ broken") < said.index("✓ kept")
    assert text.summary(broken()).splitlines()[-1] == "1 of 6 promises broken"


def test_a_difference_from_the_uninterrupted_run_is_said() -> None:
    wrong = dataclasses.replace(story(), reference=points(2, 481, begin=0, seconds=0.1)[:-2])
    said = words_of(dataclasses.replace(wrong, reference=wrong.reference[1:]))
    assert "bit-equal to it" not in said
    assert "too many" in said


def test_a_node_that_nobody_replaced_is_not_counted_as_replaced() -> None:
    last = dataclasses.replace(story().recoveries[2], end_at=None, resumed_step=None)
    said = words_of(dataclasses.replace(story(), recoveries=(*story().recoveries[:2], last)))
    assert re.search(r"nodes lost 3\s+2 replaced", said)
    assert "its replacement did not reach a step" in said
    assert re.search(r"steps done again 11\b", said)


def test_a_page_without_a_reference_does_not_claim_equality() -> None:
    said = words_of(dataclasses.replace(story(), reference=()))
    assert "No uninterrupted run was made to compare with" in said


def test_money_is_told_where_it_is_known() -> None:
    said = words_of(dataclasses.replace(story(), money=Money(spent_usd=3.0, on_demand_usd=10.0)))
    assert "$3.00" in said
    assert "70% less than on demand" in said
    assert "$" not in words_of(story())


def test_a_long_training_does_not_make_a_heavy_page() -> None:
    line = tuple(Point(step=step, loss=1 / (step + 1)) for step in range(200_000))
    long = dataclasses.replace(EMPTY, segments=(Segment(slot=0, incarnation=1, points=line),), reference=line)
    assert len(html.page(long)) < 200_000


def test_a_summary_is_read_top_down() -> None:
    lines = text.summary(story()).splitlines()
    assert lines[0] == "A rehearsal of three interruptions: run mini-gpt, 2 min 00 s, 4 nodes, 25 checkpoints"
    assert lines[1].endswith("no step was lost, nobody trained for 8.3 s.")
    assert "restore 1.1 s" in lines[2]
    assert lines[-1] == "all promises kept"

"""The dashboard's widget, called as CloudWatch calls it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from lambdas.handlers.widget import answer
from spotproof.contract.history import HistoryKind
from spotproof.contract.items import History
from spotproof.contract.states import Cause, RunStatus
from spotproof.errors import Unavailable
from spotproof.store.table import Item
from tests.fakes.control import World, notice
from tests.unit.report.test_page import EVIL
from tests.unit.report.test_widget import FUNCTION, read

CONTEXT = {
    "dashboardName": "Board",
    "widgetId": "widget-16",
    "accountId": "111122223333",
    "locale": "en",
    "timezone": {"label": "UTC", "offsetISO": "+00:00", "offsetInMinutes": 0},
    "period": 300,
    "isAutoPeriod": True,
    "timeRange": {"mode": "relative", "start": 1, "end": 2, "relativeStart": 86400012},
    "theme": "dark",
    "linkCharts": True,
    "title": "Runs",
    "forms": {"all": {}},
    "params": {"original": "param"},
    "width": 588,
    "height": 369,
}


@pytest.fixture
def world() -> World:
    """A run that has just recovered."""
    made = World()
    [lost] = made.started()
    made.beat("mini", lost)
    made.commit("mini", 40)
    made.deliver(notice(lost, made.clock()))
    made.boot()
    made.join()
    made.tick()
    return made


def ask(world: World, **event: Any) -> str:
    return answer({"widgetContext": CONTEXT, **event}, world.table, function=FUNCTION, now=world.clock())


def test_a_describe_call_is_answered_with_markdown(world: World) -> None:
    said = ask(world, describe=True)
    assert said.startswith("## ")
    assert "**run**" in said


def test_without_a_run_the_live_runs_are_listed_each_with_its_call(world: World) -> None:
    world.submit("other")
    reader = read(ask(world))
    assert [json.loads(word)["run"] for word in reader.words if word.startswith("{")] == ["mini", "other"]
    assert {"active", "40", "none yet"} <= set(reader.words)


def test_a_runs_story_shows_its_recovery_and_its_nodes(world: World) -> None:
    reader = read(ask(world, run="mini"))
    words = " ".join(reader.words)
    assert "Run mini" in reader.words
    assert "had to be replaced (EC2 took it back, with a notice)" in words
    assert "g5.xlarge, us-east-1a, spot" in words or "g6.xlarge" in words
    assert "spotproof-story dark" in str(reader.tags[0])


def test_a_run_whose_history_has_expired_still_has_a_story(world: World) -> None:
    world.submit("quiet")
    assert "Run quiet" in read(ask(world, run="quiet")).words


@pytest.mark.parametrize("run", [EVIL, 7, ["mini"], {"a": 1}, "Mini", "x" * 64, "mini\n"])
def test_what_is_no_run_id_is_said_and_not_shown(world: World, run: object) -> None:
    said = ask(world, run=run)
    assert "The parameter `run` is not a run id." in read(said).words
    assert "<script" not in said


def test_a_run_that_nobody_knows_is_said(world: World) -> None:
    assert "There is no run ghost in this stack." in read(ask(world, run="ghost")).words


def test_a_runs_own_text_becomes_no_markup(world: World) -> None:
    evil = History(
        run="mini",
        at_ms=int(world.clock() * 1000),
        what=HistoryKind.QUARANTINED.value,
        slot=0,
        incarnation=2,
        instance=str(world.slot().holder_instance),
        detail=EVIL,
    )
    world.stores.histories.add(evil)
    world.stores.heads.move(world.head(), RunStatus.BLOCKED, cause=Cause.QUOTA, reason=EVIL, now=1)
    for said in (ask(world), ask(world, run="mini")):
        assert "<script" not in said
        read(said)


@pytest.mark.parametrize("event", [{"widgetContext": "none"}, {"widgetContext": {}}, {}])
def test_a_call_without_its_context_is_answered_all_the_same(world: World, event: dict[str, Any]) -> None:
    read(answer(event, world.table, function=FUNCTION, now=world.clock()))


class Silent:
    """A table that does not answer."""

    def get(self, key: object) -> Item | None:
        raise Unavailable(f"no answer for {key}")

    def query(self, pk: str, **_: object) -> list[Item]:
        raise Unavailable(f"no answer for {pk}")


def test_a_table_that_does_not_answer_is_a_sentence() -> None:
    for event in ({}, {"run": "mini"}):
        said = answer(event, Silent(), function=FUNCTION, now=0)  # type: ignore[arg-type]
        assert "The table could not be read" in " ".join(read(said).words)

"""Scenarios: each has a sabotage that names a real verdict, and each verdict of its own can fail."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rehearsal import verdicts
from rehearsal.plane.calls import Answered, Call
from rehearsal.scenarios import (
    adoption,
    agent_alone,
    burst,
    catalogue,
    fallback,
    killed_lambda,
    rebalance_storm,
    surplus,
    table_outage,
    upgrade,
)
from rehearsal.scenarios.perform import Result, joined, line
from rehearsal.verdicts import Verdict

GENERAL = {value for name, value in vars(verdicts).items() if name.isupper() and isinstance(value, str)}


def test_every_scenario_has_a_name_and_a_sabotage_of_its_own() -> None:
    assert len({scenario.name for scenario in catalogue.ALL}) == len(catalogue.ALL)
    assert len({scenario.sabotage.name for scenario in catalogue.ALL}) == len(catalogue.ALL)
    assert all(scenario.sabotage.breaks for scenario in catalogue.ALL)


def test_a_sabotage_breaks_a_general_verdict_or_one_of_its_own_scenario() -> None:
    own = {value for s in catalogue.ALL for value in vars(_module(s.name)).values() if isinstance(value, str)}
    assert all(set(scenario.sabotage.breaks) <= GENERAL | own for scenario in catalogue.ALL)


def _module(name: str) -> Any:
    import importlib

    return importlib.import_module(f"rehearsal.scenarios.{name.replace('-', '_')}")


def test_an_unknown_scenario_is_answered_with_the_known_ones() -> None:
    with pytest.raises(FileNotFoundError, match="killed-lambda"):
        catalogue.find("nothing")


# -------------------------------------------------------------------------------------------------- own verdicts
def asked(*tokens: str) -> list[Answered]:
    return [
        Answered(call=Call(service="ec2", operation="CreateFleet", params={"ClientToken": t}), status=200)
        for t in tokens
    ]


@pytest.mark.parametrize(
    ("tokens", "passed"),
    [
        (("a", "b", "c", "c"), True),
        (("a", "b", "c", "c", "c"), True),
        (("a", "b", "c"), False),  # the hidden instance was never asked for again
        (("a", "b", "b", "c", "c"), False),  # what its tag shows was asked for again
        (("a", "b", "c", "d"), False),  # another token: another instance
        (("", "", "", ""), False),
        ((), False),
    ],
)
def test_a_launch_after_a_kill_is_found_or_repeated(tokens: tuple[str, ...], passed: bool) -> None:
    assert killed_lambda.adopted(asked(*tokens)).passed is passed


@pytest.mark.parametrize(("told", "left", "passed"), [(0, [8.0], True), (1, [8.0], False), (0, [], False)])
def test_alone_is_without_word_and_with_a_commit(told: int, left: list[float], passed: bool) -> None:
    assert agent_alone.alone(told=told, left_s=left).passed is passed


@pytest.mark.parametrize(
    ("homeless", "after_s", "trainers", "passed"),
    [(1, 2.0, 2, True), (0, None, 2, False), (1, None, 2, False), (1, 60.0, 2, False), (1, 2.0, 3, False)],
)
def test_a_surplus_is_ended_at_once(homeless: int, after_s: float | None, trainers: int, passed: bool) -> None:
    assert surplus.surplus_ended(homeless=homeless, after_s=after_s, trainers=trainers).passed is passed


@pytest.mark.parametrize(
    ("changes", "passed"),
    [({}, True), ({"launched": 1}, False), ({"ended": 1}, False), ({"again": 1}, False), ({"lasted_s": 1.0}, False)],
)
def test_an_outage_that_holds_changes_nothing(changes: dict[str, Any], passed: bool) -> None:
    good = {"launched": 0, "ended": 0, "again": 0, "lasted_s": table_outage.OUTAGE_S}
    assert table_outage.held(**(good | changes)).passed is passed


@pytest.mark.parametrize(
    ("changes", "passed"),
    [
        ({}, True),
        ({"sent": set()}, False),
        ({"sent": {"of version 1"}}, False),
        ({"versions": []}, False),
        ({"versions": ["1", "2"]}, False),
        ({"newest": "1"}, False),
    ],
)
def test_an_upgrade_sends_the_new_document_and_launches_the_old_template(changes: dict[str, Any], passed: bool) -> None:
    good: dict[str, Any] = {"sent": {"two"}, "documents": {"two"}, "versions": ["1"], "newest": "2"}
    assert upgrade.upgraded(**(good | changes)).passed is passed


@pytest.mark.parametrize(
    ("asked", "orders", "passed"),
    [
        ([burst.SLOTS], {"x": 1}, True),
        ([1, burst.SLOTS - 1], {"x": 1, "y": 1}, True),
        ([burst.SLOTS + 1], {"x": 1}, False),
        ([1] * burst.SLOTS, {"x": 1}, False),
        ([burst.SLOTS], {"x": 2}, False),
        ([burst.SLOTS], {}, False),
        ([], {"x": 1}, False),
    ],
)
def test_a_burst_is_few_launches_and_each_order_once(asked: list[int], orders: dict[str, int], passed: bool) -> None:
    assert burst.few_of_each(asked=asked, orders=orders).passed is passed


@pytest.mark.parametrize(
    ("lifecycles", "after_s", "passed"),
    [
        (["spot", "on-demand", "spot"], 7.0, True),
        (["spot", "on-demand"], None, False),
        (["spot", "spot", "spot"], 7.0, False),
        (["spot", "on-demand", "on-demand", "spot"], 7.0, False),
    ],
)
def test_a_fallback_goes_to_on_demand_and_back(lifecycles: list[str], after_s: float | None, passed: bool) -> None:
    assert fallback.went_and_came_back(lifecycles, after_s=after_s).passed is passed


@pytest.mark.parametrize(
    ("launched", "ended", "later", "passed"),
    [(1, 0, 0, True), (2, 0, 0, False), (0, 0, 1, False), (1, 1, 0, False), (1, 0, 1, False)],
)
def test_a_storm_starts_few_and_ends_nobody(launched: int, ended: int, later: int, passed: bool) -> None:
    assert rebalance_storm.weathered(launched=launched, ended=ended, later=later).passed is passed


@pytest.mark.parametrize(
    ("changes", "passed"),
    [
        ({}, True),
        ({"held": ""}, False),
        ({"held": "i-other"}, False),
        ({"stranger_known": True}, False),
        ({"ended": 1}, False),
    ],
)
def test_only_what_is_tagged_is_adopted_and_nothing_of_theirs_is_ended(changes: dict[str, Any], passed: bool) -> None:
    good: dict[str, Any] = {"held": "i-mine", "mine": "i-mine", "stranger_known": False, "ended": 0}
    assert adoption.adopted(**(good | changes)).passed is passed


# ------------------------------------------------------------------------------------------------ the next version
def synthesized(folder: Path) -> Path:
    """A folder as `cdk synth` leaves it, as far as an upgrade changes it."""
    old, own = "a" * 64, "b" * 64
    (folder / f"asset.{old}").mkdir(parents=True)
    resources = {
        "DocumentFlush0123abcd0123ABCD": {"description": "Ask the spotproof agent to flush"},
        "Function": {"Code": f"{old}.zip", "Ref": "DocumentFlush0123abcd0123ABCD"},
        "Variables": {"SPOTPROOF_LAUNCHES_PER_HOUR": "200"},
        "Template": "agent and trainer started",
    }
    (folder / upgrade.TEMPLATE).write_text(json.dumps(resources))
    files = {
        old: {"source": {"path": f"asset.{old}", "packaging": "zip"}},
        own: {"source": {"path": upgrade.TEMPLATE, "packaging": "file"}},
    }
    (folder / upgrade.ASSETS).write_text(json.dumps({"files": files}))
    (folder / "manifest.json").write_text(json.dumps({"url": f"s3://assets/{own}.json"}))
    return folder


def test_the_next_version_has_other_code_another_document_and_another_boot_script(tmp_path: Path) -> None:
    target = upgrade.next_version(synthesized(tmp_path / "v1"), tmp_path / "v2")
    resources = json.loads((target / upgrade.TEMPLATE).read_text())
    files = json.loads((target / upgrade.ASSETS).read_text())["files"]
    code = resources["Function"]["Code"].removesuffix(".zip")
    assert "a" * 64 not in (target / upgrade.TEMPLATE).read_text()
    assert files[code]["source"]["path"] == f"asset.{code}"
    assert (target / f"asset.{code}" / "version").exists()
    assert resources["Function"]["Ref"] in resources
    assert "DocumentFlush0123abcd0123ABCD" not in resources
    own = next(key for key, asset in files.items() if asset["source"]["packaging"] == "file")
    assert own in (target / "manifest.json").read_text()
    assert own != "b" * 64


def test_a_stack_that_is_not_as_it_was_is_told(tmp_path: Path) -> None:
    folder = synthesized(tmp_path / "v1")
    (folder / upgrade.TEMPLATE).write_text("{}")
    with pytest.raises(upgrade.NoSuchStack):
        upgrade.next_version(folder, tmp_path / "v2")


# ---------------------------------------------------------------------------------------------------- telling
GOOD, BAD = Verdict(name="a", passed=True, says="fine"), Verdict(name="a", passed=False, says="broken")


def test_the_verdicts_of_several_runs_are_one_each() -> None:
    assert joined([[GOOD], [GOOD]]) == (GOOD,)
    (both,) = joined([[GOOD], [BAD]])
    assert (both.passed, both.says) == (False, "fine; broken")


def test_a_sabotage_is_noticed_only_by_the_verdict_that_it_must_break() -> None:
    result = Result(scenario="s", seconds=1.0, verdicts=(BAD,), sabotage="x", breaks=("a",))
    assert result.as_it_should
    assert line(result).startswith("s: noticed (1 s)")
    other = Result(scenario="s", seconds=1.0, verdicts=(BAD,), sabotage="x", breaks=("b",))
    assert not other.as_it_should
    assert "NOT NOTICED" in line(other)


def test_a_scenario_is_as_it_should_when_nothing_is_broken() -> None:
    good = Result(scenario="s", seconds=1.0, verdicts=(GOOD,))
    assert good.as_it_should
    assert line(good).startswith("s: passed (1 s)")
    assert "FAILED" in line(Result(scenario="s", seconds=1.0, verdicts=(GOOD, BAD)))

"""Trouble on purpose: what falls into its time is explained, everything else surprises."""

from __future__ import annotations

from pathlib import Path

from rehearsal.plan import Plan, run_spec
from rehearsal.trouble import Expected, Failed, sort

OUT = Expected(why="the table is out", begin=100.0, end=120.0)


def test_a_failure_that_touches_the_time_of_the_trouble_is_explained() -> None:
    failed = [Failed(name="sweep", begin=95.0, end=101.0), Failed(name="sweep", begin=119.0, end=140.0)]
    found = sort(failed, [OUT])
    assert found.surprising == {}
    assert found.explained == {"the table is out": 2}


def test_a_failure_before_or_after_is_a_surprise() -> None:
    failed = [Failed(name="sweep", begin=90.0, end=99.0), Failed(name="repair", begin=121.0, end=122.0)]
    assert sort(failed, [OUT]).surprising == {"sweep": 1, "repair": 1}
    assert sort(failed, []).explained == {}


def test_a_plan_lays_its_own_words_over_the_run_spec() -> None:
    plan = Plan(spec={"liveness": {"silence_s": 6.0}, "slots": 2, "pools": {"market": "spot-then-on-demand"}})
    spec = run_spec(plan, run="one", loss_log=Path("x"))
    assert spec["liveness"] == {"heartbeat_s": 1.0, "silence_s": 6.0}
    assert spec["slots"] == 2
    assert spec["pools"]["market"] == "spot-then-on-demand"
    assert spec["pools"]["types"]
    assert spec["run"] == "one"

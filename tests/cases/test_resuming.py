"""DP and CR cases of the case book through `Run`: a local agent, real torch, real interruptions."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from spotproof import Run
from spotproof.run import Preempted
from tests.fakes.toy import Plan, Toy, drop_order, hold, read_log, train

pytestmark = pytest.mark.torch


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


class Folder:
    """A run's folder and its log; each `go` is a node's life up to `until`, when a notice ends it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.log = path / "log.jsonl"

    def environ(self, **more: str) -> dict[str, str]:
        base = {"SPOTPROOF_LOCAL_DIR": str(self.path / "run"), "SPOTPROOF_CHECKPOINT_EVERY_S": "3600"}
        return {**os.environ, **base, **more}

    def run(self, **more: str) -> Run:
        return Run.from_env(self.environ(**more))

    def go(self, plan: dict[str, Any], *, until: int | None = None) -> Toy:
        """Train on; at step `until` the node is told to go and saves. Returns the objects as they were then."""
        made: list[Toy] = []
        whole = Plan(log=str(self.log), **plan)

        def before(run: Run, step: int) -> None:
            if step == until and not run.notice:
                drop_order(self.path / "run" / "run", f"order-{step}")
                hold(run)

        if until is None:
            return train(whole, opened=self.run(), before=before)
        with pytest.raises(Preempted) as end:
            made.append(train(whole, opened=self.run(), before=before))
        assert end.value.code == 75
        return Toy(whole)

    def ids(self) -> list[list[int]]:
        return [line["ids"] for line in read_log(self.log)]

    def steps(self) -> list[int]:
        return [line["step"] for line in read_log(self.log)]


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(tmp_path)


def reference(tmp_path: Path, plan: dict[str, Any]) -> tuple[Toy, list[dict[str, Any]]]:
    log = tmp_path / "reference.jsonl"
    toy = train(Plan(log=str(log), tracked=False, **plan))
    return toy, read_log(log)


def test_dp_01_a_second_interruption_in_one_epoch(folder: Folder, tmp_path: Path) -> None:
    plan = {"steps": 70, "samples": 280}  # 70 batches: one epoch
    for until in (30, 40, 55):
        folder.go(plan, until=until)
        assert folder.steps()[-1] == until
    folder.go(plan)
    assert read_log(folder.log) == reference(tmp_path, plan)[1]


def test_dp_02_the_second_epoch_has_an_order_of_its_own(folder: Folder, tmp_path: Path) -> None:
    plan = {"steps": 375, "samples": 125, "batch": 1}
    folder.go(plan, until=200)
    folder.go(plan)
    ids = [one for [one] in folder.ids()]
    assert ids == [one for line in reference(tmp_path, plan)[1] for one in line["ids"]]
    epochs = [ids[start : start + 125] for start in (0, 125, 250)]
    assert all(sorted(epoch) == list(range(125)) for epoch in epochs)
    assert epochs[0] != epochs[1] != epochs[2]


def test_dp_03_a_stop_at_the_end_of_an_epoch(folder: Folder, tmp_path: Path) -> None:
    plan = {"steps": 30, "samples": 40}  # ten batches
    folder.go(plan, until=10)
    folder.go(plan, until=20)
    folder.go(plan)
    assert read_log(folder.log) == reference(tmp_path, plan)[1]


def test_dp_06_a_stop_inside_an_accumulation_repeats_it_whole(folder: Folder, tmp_path: Path) -> None:
    plan = {"steps": 9, "samples": 100, "accumulate": 8}  # 25 batches: groups of 8, 8, 8 and 1
    seen = 0

    def stop(run: Run, step: int) -> None:
        nonlocal seen
        seen += step == 3
        if seen == 5:
            raise KeyboardInterrupt  # after micro-batch 5 of the third group

    with pytest.raises(KeyboardInterrupt):
        train(
            Plan(log=str(folder.log), **plan),  # type: ignore[arg-type]
            opened=folder.run(SPOTPROOF_CHECKPOINT_EVERY_STEPS="1"),
            before=stop,
        )
    cut_off = read_log(folder.log)[-5:]
    toy = folder.go(plan)
    expected, lines = reference(tmp_path, plan)
    told = read_log(folder.log)
    del told[16:21]  # the five that were in vain
    assert told == lines
    assert cut_off == lines[16:21]
    assert_same(toy, expected)
    again = folder.go(plan)  # there is nothing left to do, and it is the same
    assert_same(again, expected)


def assert_same(toy: Toy, expected: Toy) -> None:
    for mine, theirs in zip(toy.model.parameters(), expected.model.parameters(), strict=True):
        assert torch.equal(mine, theirs)
    for one, other in zip(toy.optimizer.state.values(), expected.optimizer.state.values(), strict=True):
        assert all(torch.equal(one[key], other[key]) for key in other)
    assert toy.scheduler.state_dict() == expected.scheduler.state_dict()


def test_cr_05_counters_come_back_twice(folder: Folder) -> None:
    plan = {"steps": 50}
    folder.go(plan, until=25)
    folder.go(plan, until=45)
    before = len(read_log(folder.log))
    toy = folder.go(plan)
    assert folder.steps()[before] == 46
    assert folder.steps() == list(range(1, 51))
    assert {int(state["step"]) for state in toy.optimizer.state.values()} == {50}
    assert toy.scheduler.last_epoch == 50


def test_cr_08_weights_optimizer_and_rates_are_those_of_the_uninterrupted_run(folder: Folder, tmp_path: Path) -> None:
    plan = {"steps": 100}
    folder.go(plan, until=37)
    toy = folder.go(plan)
    expected, lines = reference(tmp_path, plan)
    assert read_log(folder.log) == lines
    assert toy.rates == expected.rates[37:]
    assert_same(toy, expected)


def test_cr_10_the_first_start_has_nothing_to_restore(folder: Folder, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", logger="spotproof")
    folder.go({"steps": 3})
    assert folder.steps() == [1, 2, 3]
    assert "training starts at step 0" in caplog.text


def test_cr_10_a_run_that_had_a_checkpoint_never_starts_from_zero(
    folder: Folder, capfd: pytest.CaptureFixture[str]
) -> None:
    folder.go({"steps": 5})
    shutil.rmtree(folder.path / "run" / "objects" / "runs")
    shutil.rmtree(folder.path / "run" / "scratch")
    with pytest.raises(Exception, match="the agent ended before"):
        folder.run()
    assert "none can be loaded" in capfd.readouterr().err

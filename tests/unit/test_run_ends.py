"""`spotproof run` on a laptop, whole: processes are killed, told to go, or fail, and the run goes on bit-equal."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from spotproof.contract import s3keys
from tests.fakes.toy import Plan, as_argument, drop_order, read_log

pytestmark = [pytest.mark.torch, pytest.mark.slow]
LIMIT_S = 180.0


class Laptop:
    """A folder with a run in it; `start` is `spotproof run -- toy`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.log = path / "log.jsonl"
        self.root = path / "run"
        self.started: list[subprocess.Popen[str]] = []

    def start(
        self, *words: str, every_steps: int = 5, wrap: tuple[str, ...] = (), **plan: Any
    ) -> subprocess.Popen[str]:
        toy = [sys.executable, "-m", "tests.fakes.toy", as_argument(Plan(log=str(self.log), **plan))]
        command = [
            *wrap, sys.executable, "-m", "spotproof.cli.main", "run", "--local", str(self.root),
            "--every-steps", str(every_steps), "--", *(words or toy),
        ]  # fmt: skip
        process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, start_new_session=True)
        self.started.append(process)
        return process

    def end(self, process: subprocess.Popen[str]) -> tuple[int, str]:
        _, told = process.communicate(timeout=LIMIT_S)
        return process.returncode, told

    def go(self, *words: str, **plan: Any) -> tuple[int, str]:
        return self.end(self.start(*words, **plan))

    def reach(self, step: int) -> None:
        self.wait_for(lambda: self.log.exists() and len(read_log(self.log)) >= step)

    def wait_for(self, holds: Callable[[], object]) -> None:
        until = time.monotonic() + LIMIT_S
        while not holds():
            assert time.monotonic() < until, "it does not happen"
            time.sleep(0.02)

    def pids(self, words: str) -> list[int]:
        """Processes of this run whose command line has these words; the agent's children carry no folder."""
        found = []
        for folder in Path("/proc").iterdir():
            try:
                line = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode()
                environ = (folder / "environ").read_bytes().decode(errors="replace")
            except (OSError, NotADirectoryError):
                continue
            if words in line and (str(self.root) in environ or str(self.root) in line):
                found.append(int(folder.name))
        return found

    def committed(self) -> list[int]:
        keys = [path.relative_to(self.root / "objects").as_posix() for path in self.root.rglob("manifest.json")]
        return sorted(s3keys.order_of_manifest(key)[1] for key in keys)


@pytest.fixture
def laptop(tmp_path: Path) -> Iterator[Laptop]:
    laptop = Laptop(tmp_path)
    yield laptop
    for process in laptop.started:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
    for pid in laptop.pids(""):  # agent and trainer have groups of their own: a failed test leaves none behind
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def reference(tmp_path: Path, **plan: Any) -> list[dict[str, Any]]:
    log = tmp_path / "reference.jsonl"
    argument = as_argument(Plan(log=str(log), tracked=False, **plan))
    subprocess.run([sys.executable, "-m", "tests.fakes.toy", argument], check=True, timeout=LIMIT_S)
    return read_log(log)


def last_of_each_step(log: Path) -> list[dict[str, Any]]:
    """The curve as it counts: a step that was repeated, in its last form."""
    return list({line["step"]: line for line in read_log(log)}.values())


def test_a_killed_trainer_goes_on_and_its_curve_is_that_of_the_untracked_one(laptop: Laptop, tmp_path: Path) -> None:
    code, told = laptop.go(kill_at=23, delay_s=0.1)
    assert code == 137, told
    committed = laptop.committed()[-1]
    assert 20 <= committed < 23  # a save that found no free arena came a step later
    code, told = laptop.go(kill_at=23)
    assert code == 0, told
    assert f"goes on from step {committed}" in told
    assert last_of_each_step(laptop.log) == reference(tmp_path)
    assert len(read_log(laptop.log)) == 40 + 23 - committed  # those steps were repeated, none was lost


def test_an_upload_survives_its_trainer(laptop: Laptop) -> None:
    # Killed right behind the boundary that handed step 22 over: nobody waits for its commit.
    code, told = laptop.go(every_steps=22, kill_at=23)
    assert code == 137, told
    assert laptop.committed() == [22]


def test_a_notice_is_flushed_and_ends_the_run_with_75(laptop: Laptop, tmp_path: Path) -> None:
    process = laptop.start(every_steps=1000, hold_at=14)
    laptop.reach(14)
    drop_order(laptop.root / "run", "o-1")
    code, told = laptop.end(process)
    assert code == 75, told
    assert laptop.committed() == [14]
    code, told = laptop.go(every_steps=1000)
    assert code == 0, told
    assert read_log(laptop.log) == reference(tmp_path)  # no step twice, none lost


def test_a_rebalance_recommendation_saves_and_training_goes_on(laptop: Laptop) -> None:
    process = laptop.start(every_steps=1000, delay_s=0.05)
    laptop.reach(5)
    drop_order(laptop.root / "run", "r-1", leaves=False)
    code, told = laptop.end(process)
    assert code == 0, told
    extra, final = laptop.committed()
    assert 5 <= extra < final == 40


def test_a_flush_that_cannot_be_committed_ends_with_76(laptop: Laptop) -> None:
    process = laptop.start(every_steps=5, hold_at=14)
    laptop.reach(14)
    for part in ("blobs", "checkpoints"):  # the bucket breaks: nothing can be stored any more
        folder = laptop.root / "objects" / "runs" / "local" / part
        laptop.wait_for(lambda: laptop.committed() == [5, 10])
        folder.rename(folder.with_name(f"{part}.gone"))
        folder.touch()
    drop_order(laptop.root / "run", "o-1", in_s=12)
    code, told = laptop.end(process)
    assert code == 76, told
    assert "preempted without a flush" in told


def test_cw_12_a_signal_to_the_whole_group_saves_the_last_finished_step(laptop: Laptop, tmp_path: Path) -> None:
    process = laptop.start(every_steps=1000, workers=2, delay_s=0.05)
    laptop.reach(7)
    os.killpg(process.pid, signal.SIGTERM)
    code, told = laptop.end(process)
    assert code == 75, told
    assert laptop.committed() == [len(read_log(laptop.log))]
    code, told = laptop.go(every_steps=1000, workers=2)
    assert code == 0, told
    assert read_log(laptop.log) == reference(tmp_path, workers=2)


def test_cw_09_a_last_save_that_fails_is_not_done(laptop: Laptop) -> None:
    process = laptop.start(every_steps=1000, steps=10, delay_s=0.1)
    laptop.reach(3)
    (laptop.root / "objects" / "runs").write_text("this is no folder")
    code, told = laptop.end(process)
    assert code not in (0, 75), told
    assert "step 10 is not durable" in told


def test_cw_09_a_save_that_fails_in_the_middle_is_told_and_tried_again(laptop: Laptop) -> None:
    process = laptop.start(every_steps=5, delay_s=0.1)
    blocked = laptop.root / "objects" / "runs"
    laptop.reach(1)
    blocked.write_text("this is no folder")
    told: list[str] = []
    assert process.stderr is not None
    while not any("was not committed" in line for line in told):
        told.append(process.stderr.readline())
    blocked.unlink()
    code, rest = laptop.end(process)
    assert code == 0, rest
    assert "is tried again" in rest
    assert laptop.committed()[-1] == 40


@pytest.mark.parametrize("victim", ["spotproof.checkpoint.uploader", "spotproof.cli.main agent"])
def test_a_killed_agent_or_uploader_is_started_again_and_loses_nothing(
    laptop: Laptop, tmp_path: Path, victim: str
) -> None:
    process = laptop.start(every_steps=5, delay_s=0.2)
    laptop.reach(12)
    [pid] = laptop.pids(victim)
    os.kill(pid, signal.SIGKILL)
    code, told = laptop.end(process)
    assert code == 0, told
    assert laptop.committed()[-1] == 40
    assert read_log(laptop.log) == reference(tmp_path)
    assert laptop.pids("spotproof") == []


def test_a_command_without_a_run_gets_the_plain_signal_and_its_own_exit_code(laptop: Laptop) -> None:
    assert laptop.go("true")[0] == 0
    assert laptop.go("sh", "-c", "exit 3")[0] == 3
    process = laptop.start("sh", "-c", f"trap 'exit 9' TERM; touch {laptop.log}; while :; do sleep 0.1; done")
    laptop.wait_for(laptop.log.exists)
    drop_order(laptop.root / "run", "o-1")
    code, told = laptop.end(process)
    assert code == 76, told


def test_a_second_run_in_the_same_folder_is_refused_and_harms_nothing(laptop: Laptop, tmp_path: Path) -> None:
    process = laptop.start(delay_s=0.3)
    laptop.reach(2)
    code, told = laptop.go()
    assert code == 78, told
    assert "another `spotproof run` trains here" in told
    code, told = laptop.end(process)
    assert code == 0, told
    assert read_log(laptop.log) == reference(tmp_path)

"""Nothing that a rehearsal starts outlives it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from rehearsal.nodes.node import REPOSITORY
from rehearsal.processes import Processes, poll_until

# A child that detaches, a grandchild that was orphaned on purpose, and the command itself.
TREE = "setsid sleep 300 & (setsid sh -c 'sleep 301 & sleep 302' &); sleep 303"
ENV = {"PATH": os.defpath}


def gone(pids: list[int]) -> bool:
    return not any(Path(f"/proc/{pid}").exists() for pid in pids)


def state_of(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]


def test_detached_and_orphaned_descendants_end_with_their_owner(tmp_path: Path) -> None:
    with Processes() as processes:
        child = processes.start(["sh", "-c", TREE], env=ENV, cwd=tmp_path, log=tmp_path / "log")
        poll_until(lambda: len(child.pids()) >= 6, what="the tree grows")
        pids = child.pids()
    assert gone(pids)


def test_a_machine_outlives_its_boot_script_and_ends_when_nothing_is_left(tmp_path: Path) -> None:
    with Processes() as processes:
        child = processes.start(["sh", "-c", "sleep 0.3 & exit 7"], env=ENV, cwd=tmp_path, log=tmp_path / "log")
        assert child.wait(5) == 7


def test_freezing_stops_all_of_them_and_waking_lets_them_go_on(tmp_path: Path) -> None:
    with Processes() as processes:
        child = processes.start(["sh", "-c", TREE], env=ENV, cwd=tmp_path, log=tmp_path / "log")
        poll_until(lambda: len(child.pids()) >= 6, what="the tree grows")
        child.stop()
        # One that had ended and whose parent was stopped before it could reap it stays a zombie: it does nothing.
        poll_until(lambda: {state_of(pid) for pid in child.pids()} - {"Z"} == {"T"}, what="all are stopped")
        child.go_on()
        poll_until(lambda: "T" not in {state_of(pid) for pid in child.pids()}, what="all go on")


def test_frozen_processes_are_killed_too(tmp_path: Path) -> None:
    with Processes() as processes:
        child = processes.start(["sh", "-c", TREE], env=ENV, cwd=tmp_path, log=tmp_path / "log")
        poll_until(lambda: len(child.pids()) >= 6, what="the tree grows")
        pids = child.pids()
        child.stop()
        child.kill()
        assert gone(pids)


OWNER = """
import sys, time
from pathlib import Path
from rehearsal.processes import Processes, terminated_like_ctrl_c, poll_until
with terminated_like_ctrl_c(), Processes() as processes:
    folder = Path(sys.argv[1])
    child = processes.start(["sh", "-c", sys.argv[2]], env={"PATH": "/usr/bin:/bin"}, cwd=folder, log=folder / "log")
    poll_until(lambda: len(child.pids()) >= 6, what="the tree grows")
    print(*child.pids(), child.warden.pid, flush=True)
    time.sleep(60)
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_however_the_rehearsal_ends_its_processes_end(tmp_path: Path, number: signal.Signals) -> None:
    command = [sys.executable, "-c", OWNER, str(tmp_path), TREE]
    owner = subprocess.Popen(command, cwd=REPOSITORY, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    with owner:
        assert owner.stdout is not None
        pids = [int(word) for word in owner.stdout.readline().split()]
        owner.send_signal(number)
        owner.wait(10)
    poll_until(lambda: gone(pids), what="everything is gone", timeout_s=10)


REGION = """
import sys
from pathlib import Path
from rehearsal.region import Region
with Region(Path(sys.argv[1])) as region:
    print(*[pid for child in region.processes._children for pid in (child.warden.pid, *child.pids())], flush=True)
    region.wait(lambda: False, what="the end", timeout_s=60)
"""


@pytest.mark.emulator
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_region_that_is_told_to_end_leaves_no_process(tmp_path: Path, number: signal.Signals) -> None:
    command = [sys.executable, "-c", REGION, str(tmp_path / "region")]
    owner = subprocess.Popen(command, cwd=REPOSITORY, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    with owner:
        assert owner.stdout is not None
        pids = [int(word) for word in owner.stdout.readline().split()]
        assert len(pids) >= 2
        owner.send_signal(number)
        owner.wait(30)
    poll_until(lambda: gone(pids), what="everything is gone", timeout_s=10)


def test_nothing_can_be_started_once_it_is_over(tmp_path: Path) -> None:
    processes = Processes()
    processes.close()
    with pytest.raises(RuntimeError, match="ending"):
        processes.start(["true"], env=ENV, cwd=tmp_path, log=tmp_path / "log")

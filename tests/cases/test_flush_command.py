"""SSM cases of the case book: the flush order by Run Command."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from spotproof.contract.items import NO_INSTANCE
from spotproof.contract.orders import FlushOrder, parse_request, request_line, request_script
from spotproof.contract.states import NoticeKind
from tests.fakes.control import World, notice

ORDER = FlushOrder(order="0a1b2c", kind=NoticeKind.INTERRUPTION, deadline_at=1_777_888_920, leavers=frozenset({0}))
SHELLS = [shell for shell in ("dash", "sh", "bash") if shutil.which(shell)]


def test_ssm_01_a_refused_command_stops_no_recovery_and_is_told() -> None:
    world = World()
    [lost] = world.started()
    world.ssm.faults = ["InvalidInstanceId"]
    assert world.deliver(notice(lost, world.clock())) == {}
    assert world.slot().successor_instance not in (None, NO_INSTANCE)
    told = " ".join(entry.detail for entry in world.told())
    assert all(word in told for word in ("InvalidInstanceId", "SSM agent", "instance profile", "instance state"))
    assert world.head().order_leavers == "1"


def test_ssm_03_delivery_time_is_the_shortest_that_ssm_allows() -> None:
    world = World()
    [lost] = world.started()
    world.deliver(notice(lost, world.clock()))
    [command] = world.ssm.sent
    assert (command["TimeoutSeconds"], command["MaxErrors"], command["MaxConcurrency"]) == (30, "100%", "100%")
    assert "executionTimeout" not in command["Parameters"], "it stands in the document, at most 100 s"


@pytest.mark.parametrize("shell", SHELLS)
def test_ssm_06_the_script_is_right_under_every_shell(shell: str, tmp_path: Path) -> None:
    script = "\n".join(request_script())
    assert subprocess.run([shell, "-n"], input=script, text=True, check=False).returncode == 0
    environment = {"SPOTPROOF_RUNTIME_DIR": str(tmp_path), "SSM_Request": request_line(ORDER), "PATH": "/usr/bin:/bin"}
    subprocess.run([shell], input=script, text=True, check=True, env=environment)
    [request] = (tmp_path / "requests").iterdir()
    assert (request.name, parse_request(request.read_text())) == ("flush-0a1b2c", ORDER)


def test_ssm_08_forty_notices_at_once_are_one_command_for_each_batch() -> None:
    world = World()
    holders = world.started(slots=40)
    at = world.clock()
    for first in range(0, 40, 10):
        world.deliver(*(notice(holder, at) for holder in holders[first : first + 10]))
    assert len(world.ssm.sent) == 4
    assert parse_request(world.ssm.sent[-1]["Parameters"]["Request"][0]).leavers == frozenset(range(40))
    assert all(slot.successor_instance not in (None, NO_INSTANCE) for slot in world.slots())

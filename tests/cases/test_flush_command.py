"""SSM cases of the case book: the flush order by Run Command."""

from __future__ import annotations

import random
import shutil
import subprocess
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import ClientError

from lambdas import wiring
from lambdas.effects.ssm import PATIENCE, Commands
from spotproof.contract.items import NO_INSTANCE
from spotproof.contract.orders import FlushOrder, parse_request, request_line, request_script
from spotproof.contract.states import NoticeKind
from tests.fakes.control import Clock, World, notice

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


def test_ssm_08_forty_notices_at_once_are_one_command_and_then_one_for_the_others() -> None:
    world = World()
    holders = world.started(slots=40)
    at = world.clock()
    for first in range(0, 40, 10):
        world.deliver(*(notice(holder, at) for holder in holders[first : first + 10]))
    assert len(world.ssm.sent) == 1, "everybody saves by the first; who else leaves is said by the next"
    assert world.head().order_leavers == f"{2**10 - 1:x}"
    [later] = world.sqs.take()
    world.clock.advance(world.sqs.delays[0])
    assert world.sqs.delays[0] < 30
    assert world.control.handle({"later": later}, until=world.clock() + 60) == {}
    assert len(world.ssm.sent) == 2
    named = [parse_request(sent["Parameters"]["Request"][0]).leavers for sent in world.ssm.sent]
    assert named == [frozenset(range(10)), frozenset(range(10, 40))]
    assert all(slot.successor_instance not in (None, NO_INSTANCE) for slot in world.slots())
    assert world.ec2.count("create_fleet") == 2  # the first nodes of the run, and their replacements


@dataclass(slots=True)
class BusySsm:
    """Refuses 70 % of the calls, as it does when it is throttled."""

    chance: random.Random
    calls: int = 0
    sent: int = 0

    def send_command(self, **_: Any) -> dict[str, Any]:
        self.calls += 1
        if self.chance.random() < 0.7:
            raise ClientError({"Error": {"Code": "ThrottlingException", "Message": "slow down"}}, "SendCommand")
        self.sent += 1
        return {}


def test_ssm_08_a_throttled_command_is_sent_or_told_unsent_within_30_s() -> None:
    clock, chance = Clock(now=0.0), random.Random(8)
    ssm = BusySsm(chance)
    patience = replace(PATIENCE, clock=clock, sleep=clock.advance, chance=chance.random)
    commands = Commands(ssm, stack="prod", document="flush", version="3", patience=patience)
    outcomes = []
    for run in range(40):
        clock.now = 0.0  # each run's handler on its own
        outcomes.append(commands.flush(f"run-{run}", ORDER))
        assert clock.now < 30
    assert set(outcomes) <= {"", "ThrottlingException"}
    assert outcomes.count("") == ssm.sent >= 38
    assert ssm.calls < 40 * 20, "no storm of retries"


def product() -> list[str]:
    return [path.read_text() for path in Path(wiring.__file__).parent.rglob("*.py")]


def test_ssm_02_no_code_polls_for_an_invocation_so_its_visibility_cannot_matter() -> None:
    """The outcome of a flush is read from the node's own item and from S3 (SSM-04)."""
    assert product()
    assert not [text for text in product() if "command_invocation" in text]


def test_ssm_05_no_output_of_a_command_is_read() -> None:
    assert not [text for text in product() if "StandardOutput" in text]

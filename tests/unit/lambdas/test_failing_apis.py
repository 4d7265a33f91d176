"""Every API in every way that it fails: nothing is lost, nothing is done twice, and somebody comes for what is left.

The first delivery meets the failure for as long as it lasts. Then the weather clears: what failed comes again, the
sweep looks, and the run must stand as if nothing had been.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import pytest
from botocore.exceptions import ClientError, ReadTimeoutError

from lambdas.effects.errands import Beside
from lambdas.effects.ssm import Commands
from lambdas.wiring import Control
from spotproof.contract.items import NO_INSTANCE
from spotproof.errors import Denied, Unavailable
from tests.fakes.control import SETTINGS, STACK, World, notice

THROTTLE, TIMEOUT, SERVER_ERROR, DENIED = "RequestLimitExceeded", "timeout", "InternalError", "UnauthorizedOperation"
FAILURES = (THROTTLE, TIMEOUT, SERVER_ERROR, DENIED)
OF_TABLE = ("get", "get_many", "query", "write", "put_many", "transact")
OF_CLIENTS = ("create_fleet", "describe_instances", "terminate_instances", "send_command", "publish", "send_message")


@dataclass(slots=True)
class Broken:
    """Passes everything on but one operation, which fails while `fails` says so; a timeout may have done its work."""

    inner: Any
    operation: str
    failure: str
    fails: bool = True
    met: int = 0

    def __getattr__(self, name: str) -> Any:
        work = getattr(self.inner, name)
        if name != self.operation or not self.fails:
            return work

        def fail(*given: Any, **named: Any) -> Any:
            self.met += 1
            if self.failure == TIMEOUT:
                work(*given, **named)
            raise self.error()

        return fail

    def error(self) -> Exception:
        if self.operation in OF_TABLE:  # the store has tried for its whole patience by then
            return Denied("the table") if self.failure == DENIED else Unavailable("the table")
        if self.failure == TIMEOUT:
            return ReadTimeoutError(endpoint_url="aws")
        return ClientError({"Error": {"Code": self.failure, "Message": "our words"}}, self.operation)


def recovered(operation: str, failure: str) -> tuple[World, Broken]:
    """A notice while `operation` fails, and what comes after it."""
    world = World()
    [lost] = world.started()
    broken = Broken(None, operation, failure)
    control = _with(world, broken)
    body = json.dumps(notice(lost, world.clock()))
    failures = control.handle({"m": body}, until=world.clock() + 60)
    broken.fails = False
    if failures:
        world.clock.advance(5)
        assert control.handle({"m": body}, until=world.clock() + 60) == {}
    world.boot()
    for _ in range(4):
        world.tick()
        world.boot()
    return world, broken


def _with(world: World, broken: Broken) -> Control:
    """The world's control plane with `broken` in the place of whatever has the operation."""
    parts = {"table": world.table, "ec2": world.ec2, "ssm": world.ssm, "sqs": world.sqs}
    place = next((name for name, one in parts.items() if hasattr(one, broken.operation)), "sns")
    broken.inner = parts.get(place, world.sns)
    if place == "sns":
        world.sns = broken  # type: ignore[assignment]
    given = {**parts, place: broken} if place != "sns" else parts
    control = world.make_control(given["table"], given["ec2"], given["ssm"], given["sqs"])  # type: ignore[arg-type]
    world.control = control
    return control


@pytest.mark.parametrize("failure", FAILURES)
@pytest.mark.parametrize("operation", [*OF_TABLE, *OF_CLIENTS])
def test_no_failing_api_loses_or_doubles_a_replacement(operation: str, failure: str) -> None:
    world, _ = recovered(operation, failure)
    if operation == "create_fleet" and failure == DENIED:  # a policy's word: people are asked, nothing is hammered
        assert world.head().status.value in {"active", "blocked"}
        return
    slot = world.slot()
    assert slot.incarnation == 2
    assert slot.successor_instance not in (None, NO_INSTANCE)
    replacements = [one for one in world.ec2.alive() if one.tags.get("spotproof:launch") != "1"]
    assert [one.instance for one in replacements] == [slot.successor_instance]
    assert world.head().order_leavers == "1"


@pytest.mark.parametrize("operation", ["get_many", "write", "query", "create_fleet", "send_command"])
def test_the_failure_was_really_met(operation: str) -> None:
    _, broken = recovered(operation, THROTTLE)
    assert broken.met > 0


def test_a_timeline_that_cannot_be_written_fails_no_message() -> None:
    world = World()
    [lost] = world.started()
    control = _with(world, Broken(None, "put_many", SERVER_ERROR))
    body = json.dumps(notice(lost, world.clock()))
    assert control.handle({"m": body}, until=world.clock() + 60) == {}
    assert world.slot().successor_instance not in (None, NO_INSTANCE)


@dataclass(slots=True)
class MuteSsm:
    """Takes the call and answers only when it is let go."""

    called: threading.Event
    let_go: threading.Event

    def send_command(self, **_: Any) -> dict[str, Any]:
        self.called.set()
        assert self.let_go.wait(30)
        return {}


@contextmanager
def mute() -> Iterator[MuteSsm]:
    ssm = MuteSsm(threading.Event(), threading.Event())
    try:
        yield ssm
    finally:
        ssm.let_go.set()


def test_claim_and_launch_do_not_wait_for_an_ssm_that_hangs() -> None:
    world = World()
    [lost] = world.started()
    with mute() as ssm:
        parts = world.control._parts
        commands = Commands(ssm, stack=STACK, document=SETTINGS.document, version=SETTINGS.document_version)
        control = Control(replace(parts, effects=replace(parts.effects, commands=commands, errands=Beside())))
        body = json.dumps(notice(lost, world.clock()))
        done: list[Any] = []
        handler = threading.Thread(target=lambda: done.append(control.handle({"m": body}, until=world.clock() + 60)))
        create = world.ec2.create_fleet
        launched = threading.Event()

        def create_fleet(**request: Any) -> Any:
            launched.set()
            return create(**request)

        world.ec2 = Broken(world.ec2, "", "")  # type: ignore[assignment]
        parts.effects.fleet._client = _Watched(world.ec2, create_fleet)
        handler.start()
        assert ssm.called.wait(30)
        assert launched.wait(30), "the launch has been made while SSM still hangs"
        assert not done, "the handler waits for its errand before it ends"
        ssm.let_go.set()
        handler.join(30)
    assert done == [{}]


@dataclass(slots=True)
class _Watched:
    inner: Any
    create_fleet: Any

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

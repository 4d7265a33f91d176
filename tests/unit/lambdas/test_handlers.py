"""The handlers: SQS batches in, partial responses out, under the names that the stack deploys."""

from __future__ import annotations

import importlib
import json
from typing import Any

import pytest

from lambdas import sweeping, wiring
from spotproof.contract.metrics import Metric
from spotproof.contract.names import FUNCTIONS
from spotproof.contract.settings import ControlSettings
from spotproof.errors import BadSettings
from tests.fakes.control import SETTINGS, World, notice


class Context:
    """What a handler uses of Lambda's context."""

    def get_remaining_time_in_millis(self) -> int:
        return 60_000


def handler(name: str) -> Any:
    row = next(row for row in FUNCTIONS if row.function == name)
    module, _, attribute = row.handler.rpartition(".")
    return getattr(importlib.import_module(module), attribute)


def batch(*bodies: Any) -> dict[str, Any]:
    return {
        "Records": [
            {
                "messageId": f"m{number}",
                "receiptHandle": "r",
                "body": body if isinstance(body, str) else json.dumps(body),
                "attributes": {"ApproximateReceiveCount": "1"},
                "messageAttributes": {},
                "eventSource": "aws:sqs",
                "eventSourceARN": "arn:aws:sqs:us-east-1:111122223333:urgent",
                "awsRegion": "us-east-1",
            }
            for number, body in enumerate(bodies)
        ]
    }


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    world = World()
    monkeypatch.setattr(wiring, "control", lambda: world.control)
    monkeypatch.setattr(sweeping, "sweeper", lambda: world.control)
    return world


@pytest.mark.parametrize("row", FUNCTIONS, ids=lambda row: row.function.value)
def test_every_function_of_the_contract_has_its_handler(row: Any) -> None:
    assert callable(handler(row.function))


def test_a_malformed_record_comes_back_alone(world: World) -> None:
    [lost] = world.started()
    bad = {"id": "e-1", "source": "aws.ec2", "detail-type": "EC2 Spot Instance Interruption Warning", "detail": {}}
    good = notice(lost, world.clock())
    answer = handler("interruption")(batch(bad, good, "not json"), Context())
    assert answer == {"batchItemFailures": [{"itemIdentifier": "m0"}, {"itemIdentifier": "m2"}]}
    assert world.meter.total(Metric.MALFORMED) == 2
    assert world.slot().incarnation == 2


def test_a_run_that_fails_does_not_hold_the_others_back(world: World) -> None:
    [one] = world.started("one")
    [two] = world.started("two")
    world.ec2.fail("create_fleet", "ValidationError")  # an answer
    world.stores.slots.create("three", 1)
    broken = world.stores.members.read(one)
    assert broken is not None
    world.table.write(_without_status("one"))
    answer = handler("interruption")(batch(notice(one, world.clock()), notice(two, world.clock())), Context())
    assert answer == {"batchItemFailures": [{"itemIdentifier": "m0"}]}
    assert world.slot("two").incarnation == 2


def _without_status(run: str) -> Any:
    from spotproof.contract import keys
    from spotproof.store.table import Update

    return Update(key=keys.head(run), remove=("status",))


def test_the_sweep_enqueues_what_is_due_and_repair_works_on_it(world: World) -> None:
    world.submit()
    assert handler("sweep")({}, Context()) == {"due": 1}
    answer = handler("repair")(batch(*world.sqs.take()), Context())
    assert answer == {"batchItemFailures": []}
    assert world.ec2.count("create_fleet") == 1


def test_nothing_is_built_before_the_first_use(monkeypatch: pytest.MonkeyPatch) -> None:
    wiring.control.cache_clear()
    with pytest.raises(BadSettings, match="SPOTPROOF_TABLE"):
        wiring.control()
    for name, value in SETTINGS.to_env().items():
        monkeypatch.setenv(name, value)
    try:
        assert isinstance(wiring.control(), wiring.Control)
    finally:
        wiring.control.cache_clear()
    assert ControlSettings.from_env(SETTINGS.to_env()) == SETTINGS

"""Each row of the event table, walked from the rule to the handler: nothing in the contract is without its place."""

from __future__ import annotations

import copy
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import boto3
import pytest
from moto.events.models import EventPattern

from spotproof.contract import names, orders
from spotproof.contract.events import EVENTS, EventKind, EventRow, Queue
from spotproof.contract.messages import Ignored
from spotproof.contract.names import FUNCTIONS, Function, FunctionRow
from spotproof.contract.parse import parse
from spotproof.contract.settings import ControlSettings, variable
from tests.architecture.tree import ROOT
from tests.synth.template import Assembly, text

GOLDEN = ROOT / "tests" / "events"
by_kind = pytest.mark.parametrize("row", EVENTS, ids=lambda row: row.kind.value)
by_function = pytest.mark.parametrize("row", FUNCTIONS, ids=lambda row: row.function.value)


def rule_of(assembly: Assembly, row: EventRow) -> dict[str, Any]:
    (rule,) = [
        rule
        for rule in assembly.of("AWS::Events::Rule").values()
        if rule["EventPattern"]["detail-type"] == list(row.detail_types)
        and rule["EventPattern"]["source"] == [row.source]
    ]
    return rule


def function_of(assembly: Assembly, row: FunctionRow) -> tuple[str, dict[str, Any]]:
    (found,) = [
        (name, function)
        for name, function in assembly.of("AWS::Lambda::Function").items()
        if function["Handler"] == row.handler
    ]
    return found


def queue_name(arn: dict[str, Any]) -> str:
    name, attribute = arn["Fn::GetAtt"]
    assert attribute == "Arn"
    return str(name)


def matches(pattern: dict[str, Any], event: Any) -> bool:
    """As EventBridge matches (moto's matcher agrees with the documentation on all that is used here)."""
    return EventPattern.load(json.dumps(pattern)).matches_event(event)


def golden_events(row: EventRow) -> list[dict[str, Any]]:
    return [json.loads((GOLDEN / f"{name}.json").read_text()) for name in row.golden]


def test_no_rule_is_without_a_row(assembly: Assembly) -> None:
    assert len(assembly.of("AWS::Events::Rule")) == len(EVENTS)


@by_kind
def test_a_rows_rule_has_its_pattern(assembly: Assembly, row: EventRow) -> None:
    pattern = copy.deepcopy(rule_of(assembly, row)["EventPattern"])
    if row.kind is EventKind.COMMAND_RESULT:  # other people's commands are none of our business
        (document,) = pattern["detail"].pop("document-name")
        assert document["Ref"] in assembly.of("AWS::SSM::Document")
        del pattern["detail"]
    assert pattern == row.pattern()


@by_kind
def test_a_rows_rule_feeds_the_function_of_its_queue(assembly: Assembly, row: EventRow) -> None:
    (target,) = rule_of(assembly, row)["Targets"]
    reader = next(one for one in FUNCTIONS if one.queue is row.queue)
    function, _ = function_of(assembly, reader)
    (feed,) = [
        feed
        for feed in assembly.of("AWS::Lambda::EventSourceMapping").values()
        if feed["FunctionName"] == {"Ref": function}
    ]
    assert feed["EventSourceArn"] == target["Arn"]


@by_kind
def test_a_rows_golden_events_match_its_rule_and_parse_to_its_message(assembly: Assembly, row: EventRow) -> None:
    pattern = rule_of(assembly, row)["EventPattern"]
    assert row.golden
    for event in golden_events(row):
        if row.kind is EventKind.COMMAND_RESULT:
            event["detail"]["document-name"] = "ours"
            pattern = {**pattern, "detail": {"document-name": ["ours"]}}
        assert matches(pattern, event), event["detail-type"]
        assert not isinstance(parse(event, received_at=0), Ignored)


@by_kind
def test_another_rows_events_do_not_match(assembly: Assembly, row: EventRow) -> None:
    pattern = rule_of(assembly, row)["EventPattern"]
    for other in EVENTS:
        if other is not row:
            assert not any(matches(pattern, event) for event in golden_events(other))


def test_EV_14_both_names_of_a_blocks_end_reach_the_urgent_queue(assembly: Assembly) -> None:
    row = next(row for row in EVENTS if row.kind is EventKind.BLOCK_EXPIRY)
    (target,) = rule_of(assembly, row)["Targets"]
    assert row.queue is Queue.URGENT
    assert "Urgent" in queue_name(target["Arn"])
    assert {event["detail-type"] for event in golden_events(row)} == set(row.detail_types)


@by_function
def test_a_functions_limits_are_the_contracts(assembly: Assembly, row: FunctionRow) -> None:
    name, function = function_of(assembly, row)
    assert (function["Timeout"], function["MemorySize"]) == (row.timeout_s, row.memory_mib)
    assert function["Architectures"] == ["arm64"]
    if row.queue is None:
        return
    feeds = assembly.of("AWS::Lambda::EventSourceMapping").values()
    (feed,) = [feed for feed in feeds if feed["FunctionName"] == {"Ref": name}]
    assert feed["BatchSize"] == row.batch_size
    assert feed["FunctionResponseTypes"] == ["ReportBatchItemFailures"]
    assert feed["ScalingConfig"] == {"MaximumConcurrency": row.max_concurrency}
    assert feed.get("MaximumBatchingWindowInSeconds", 0) == 0
    queue = assembly.of("AWS::SQS::Queue")[queue_name(feed["EventSourceArn"])]
    assert queue["VisibilityTimeout"] >= names.VISIBILITY_FACTOR * row.timeout_s
    assert queue["RedrivePolicy"]["maxReceiveCount"] == names.MAX_RECEIVES


@by_function
def test_a_functions_environment_is_its_settings_class(assembly: Assembly, row: FunctionRow) -> None:
    _, function = function_of(assembly, row)
    variables = {name: text(value) for name, value in function["Environment"]["Variables"].items()}
    settings = ControlSettings.from_env(variables)
    assert settings.to_env() == variables
    assert settings.table.strip("<>") in assembly.of("AWS::DynamoDB::Table")
    assert bool(variables[variable("repair_queue")]) == (row.function is Function.SWEEP or row.queue is not None)


# Runs inside the bundle with the runtime's boto3 beside it and nothing else of this machine's packages.
IMPORTER = """
import importlib, os, sys
bundle, runtime, handlers = sys.argv[1], sys.argv[2], sys.argv[3:]
here = os.path.dirname(os.__file__)
sys.path[:] = [bundle, *[p for p in sys.path if p and p.startswith(os.path.dirname(here)) and "site-packages" not in p]]
allowed = {"boto3", "botocore", "s3transfer", "dateutil", "urllib3", "six"}
class Runtime:
    def find_spec(self, name, path=None, target=None):
        if path is None and name in allowed:
            return importlib.machinery.PathFinder.find_spec(name, [runtime])
sys.meta_path.append(Runtime())
for handler in handlers:
    module, _, function = handler.rpartition(".")
    assert callable(getattr(importlib.import_module(module), function)), handler
foreign = [m.__file__ for n, m in sys.modules.items() if n.split(".")[0] in ("spotproof", "lambdas") and m.__file__]
assert all(file.startswith(bundle) for file in foreign), foreign
print("imported", len(handlers))
"""


def test_every_handler_imports_from_the_zip_with_the_runtimes_boto3_only(assembly: Assembly) -> None:
    runtime = Path(boto3.__file__).parents[1]
    handlers = [row.handler for row in FUNCTIONS]
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-B", "-c", IMPORTER, str(assembly.code()), str(runtime), *handlers],
        capture_output=True,
        text=True,
        check=False,
        env={"PATH": "/usr/bin:/bin"},
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["imported", str(len(FUNCTIONS))]


def test_the_document_is_the_contracts(assembly: Assembly) -> None:
    document = assembly.only("AWS::SSM::Document")
    assert document["Content"] == orders.document()
    assert document["DocumentType"] == "Command"
    assert document["UpdateMethod"] == "NewVersion"

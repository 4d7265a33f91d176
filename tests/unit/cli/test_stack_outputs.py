"""A stack that CloudFormation knows is read with its outputs; one that it does not know is named."""

from __future__ import annotations

import json

import pytest

from spotproof.cli.stackoutputs import stack_of
from spotproof.contract import names
from spotproof.errors import StoreError
from spotproof.store.clients import Clients

pytestmark = pytest.mark.emulator

OUTPUTS = {
    names.OUTPUT_TABLE: "table-1",
    names.OUTPUT_REGION: "us-east-1",
    names.OUTPUT_TEMPLATE_ID: "lt-0123",
    names.OUTPUT_TEMPLATE_VERSION: "4",
    names.OUTPUT_SUBNETS: "subnet-a=us-east-1a",
}
TEMPLATE = {
    "Resources": {"Topic": {"Type": "AWS::SNS::Topic"}},
    "Outputs": {name: {"Value": value} for name, value in OUTPUTS.items()},
}


def test_a_deployed_stack_tells_its_outputs(moto_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", moto_url)
    client = Clients().get("cloudformation")
    client.create_stack(StackName="outputs-test", TemplateBody=json.dumps(TEMPLATE))
    stack = stack_of(name="outputs-test", file=None)
    client.delete_stack(StackName="outputs-test")  # the emulated account is this process's: others look at all stacks
    assert (stack.table, stack.region) == ("table-1", "us-east-1")
    assert (stack.placement.template, stack.placement.template_version) == ("lt-0123", "4")
    assert stack.placement.subnets == ("subnet-a=us-east-1a",)


def test_a_stack_that_is_not_there_is_named(moto_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", moto_url)
    with pytest.raises(StoreError, match="no-such-stack"):
        stack_of(name="no-such-stack", file=None)

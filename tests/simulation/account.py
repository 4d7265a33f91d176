"""The account of a history: `FakeEc2` with old news in DescribeInstances; SSM and SQS that refuse."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from botocore.exceptions import ClientError

from tests.fakes.control import STACK
from tests.fakes.ec2 import FakeEc2, FakeSqs, FakeSsm, Instance


@dataclass(slots=True, kw_only=True)
class SimulatedEc2(FakeEc2):
    """`turned` says when an instance got its state; for `stale_s` after that DescribeInstances may tell the old one."""

    stale_s: float = 0.0
    faults: Counter[str] = field(default_factory=Counter)
    asked: set[str] = field(default_factory=set)  # tokens
    on_end: Callable[[str], None] = lambda _: None  # told of every instance that we terminate
    turned: dict[str, tuple[float, str]] = field(default_factory=dict)

    def turn(self, instance: str, state: str) -> None:
        """The instance reaches a state, which is told late."""
        machine = self.instances[instance]
        self.turned[instance] = (self.clock(), machine.state)
        machine.state = state

    def create_fleet(self, *, ClientToken: str, **request: Any) -> dict[str, Any]:  # noqa: N803 - AWS's name
        replayed = ClientToken in self.asked
        self.asked.add(ClientToken)
        answer = super(SimulatedEc2, self).create_fleet(ClientToken=ClientToken, **request)
        self.faults["CreateFleet replayed with its token"] += replayed
        if answer["Instances"] and answer["Errors"]:
            self.faults["errors beside instances in one answer"] += 1
        return answer

    def describe_instances(self, **request: Any) -> dict[str, Any]:
        answer = super(SimulatedEc2, self).describe_instances(**request)
        hidden = sum(1 for one in self.instances.values() if one.is_alive and not self._visible(one))
        self.faults["new instance hidden by DescribeInstances"] += hidden
        if self.stale_s:
            for reservation in answer["Reservations"]:
                for described in reservation["Instances"]:
                    self._age(described)
        return answer

    def terminate_instances(self, *, InstanceIds: list[str]) -> dict[str, Any]:  # noqa: N803 - AWS's name
        before = {one: self.instances[one].state for one in InstanceIds if one in self.instances}
        answer = super(SimulatedEc2, self).terminate_instances(InstanceIds=InstanceIds)
        for one, state in before.items():
            if state != "terminated":
                self.turned[one] = (self.clock(), state)
                self.on_end(one)
        return answer

    def _age(self, described: dict[str, Any]) -> None:
        turned_at, before = self.turned.get(described["InstanceId"], (0.0, ""))
        if before and self.clock() - turned_at < self.stale_s:
            self.faults["old state told by DescribeInstances"] += 1
            described["State"] = {"Name": before}


@dataclass(slots=True, kw_only=True)
class RefusingSsm(FakeSsm):
    """`refuse` says, for each command, with which code it is refused; "": not at all."""

    refuse: Any = None

    def send_command(self, **request: Any) -> dict[str, Any]:
        code = self.refuse()
        if code:
            raise ClientError({"Error": {"Code": code, "Message": "our words"}}, "SendCommand")
        self.sent.append(request)
        return {"Command": {"CommandId": f"command-{len(self.sent)}"}}


@dataclass(slots=True, kw_only=True)
class RefusingSqs(FakeSqs):
    """`refuse` says whether the next call is refused; `later` takes a body and the seconds after which it comes."""

    refuse: Any = None
    later: Any = None

    def send_message(self, *, QueueUrl: str, MessageBody: str, DelaySeconds: int) -> dict[str, Any]:  # noqa: N803
        if self.refuse():
            raise ClientError({"Error": {"Code": "ServiceUnavailable", "Message": "our words"}}, "SendMessage")
        self.later(MessageBody, DelaySeconds)
        return {"MessageId": "1"}

    def send_message_batch(self, *, QueueUrl: str, Entries: list[dict[str, str]]) -> dict[str, Any]:  # noqa: N803
        if self.refuse():
            raise ClientError({"Error": {"Code": "ServiceUnavailable", "Message": "our words"}}, "SendMessageBatch")
        return FakeSqs.send_message_batch(self, QueueUrl=QueueUrl, Entries=Entries)


def is_by_hand(machine: Instance) -> bool:
    """Whether nobody but its owner may end it: a person launched it, or another stack."""
    return "spotproof:launch" not in machine.tags or machine.tags.get("spotproof:stack") != STACK

"""Each effect's request passes botocore's own validation, and each reads the whole answer."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import boto3
import pytest
from botocore.exceptions import ReadTimeoutError
from botocore.stub import ANY, Stubber

from lambdas.decisions.pools import Asked, Candidate
from lambdas.decisions.request import fleet_request, tags_of, token_of
from lambdas.effects.fleet import Fleet, read_answer
from lambdas.effects.machines import Machines
from lambdas.effects.notify import Notices, Word
from lambdas.effects.queue import RepairQueue
from lambdas.effects.ssm import Commands
from spotproof.contract import tags
from spotproof.contract.orders import FlushOrder
from spotproof.contract.runspec import Placement
from spotproof.contract.states import Market, NoticeKind
from spotproof.errors import Denied, Unavailable

PLACEMENT = Placement(template="lt-0a0a0a0a0a0a0a0a0", template_version="3", subnets=("subnet-a=us-east-1a",))
ORDER = FlushOrder(order="abc", kind=NoticeKind.INTERRUPTION, deadline_at=1_777_888_920, leavers=frozenset({0, 3}))


def client(service: str) -> Any:
    session: Any = boto3.session.Session(region_name="us-east-1")
    return session.client(service)


@pytest.fixture(scope="module")
def ec2() -> Any:
    return client("ec2")


def request(market: Market = Market.SPOT) -> str:
    candidate = Candidate(instance_type="g5.xlarge", zone="us-east-1a", subnet="subnet-a", market=market)
    asked = Asked(market=market, candidates=(candidate,))
    return fleet_request(asked, PLACEMENT, wants=2, launch_tags=tags_of(stack="prod", run="mini", launch=7))


@pytest.mark.parametrize("market", [Market.SPOT, Market.ON_DEMAND])
def test_the_fleet_request_is_valid_and_carries_the_tags_on_everything(ec2: Any, market: Market) -> None:
    text = request(market)
    answer = {
        "FleetId": "fleet-1",
        "Instances": [
            {
                "InstanceIds": ["i-0a"],
                "InstanceType": "g5.xlarge",
                "Lifecycle": market.value,
                "LaunchTemplateAndOverrides": {"Overrides": {"SubnetId": "subnet-a"}},
            }
        ],
    }
    seen: dict[str, Any] = {}
    ec2.meta.events.register("provide-client-params.ec2.CreateFleet", lambda params, **_: seen.update(params))
    with Stubber(ec2) as stub:
        stub.add_response("create_fleet", answer)
        got = Fleet(ec2).create(text, token_of(text), market=market, zones={"subnet-a": "us-east-1a"})
    assert (got.instances, got.pools, got.errors) == (("i-0a",), (f"g5.xlarge#us-east-1a#{market.value}",), ())
    kinds = {one["ResourceType"] for one in seen["TagSpecifications"]}
    assert kinds == {"fleet", "instance", "volume", "network-interface"}
    wanted = {tags.MANAGED: "true", tags.STACK: "prod", tags.RUN: "mini", tags.LAUNCH: "7"}
    for one in seen["TagSpecifications"]:
        assert {tag["Key"]: tag["Value"] for tag in one["Tags"]} == wanted
    assert seen["Type"] == "instant"
    assert seen["LaunchTemplateConfigs"][0]["LaunchTemplateSpecification"]["Version"] == "3"
    assert seen["ClientToken"] == token_of(text)


@pytest.mark.parametrize("code", ["RequestLimitExceeded", "InternalError"])
def test_a_throttled_or_broken_call_leaves_the_launch_unfinished(ec2: Any, code: str) -> None:
    with Stubber(ec2) as stub:
        for _ in range(5):  # the client tries again by itself
            stub.add_client_error("create_fleet", code, http_status_code=503)
        with pytest.raises(Unavailable, match=code):
            Fleet(ec2).create(request(), "t", market=Market.SPOT, zones={})


def test_no_answer_leaves_the_launch_unfinished() -> None:
    class Hangs:
        def create_fleet(self, **_: Any) -> None:
            raise ReadTimeoutError(endpoint_url="ec2")

    with pytest.raises(Unavailable, match="ReadTimeoutError"):
        Fleet(Hangs()).create(request(), "t", market=Market.SPOT, zones={})


def test_a_refusal_of_the_whole_request_is_an_answer(ec2: Any) -> None:
    with Stubber(ec2) as stub:
        stub.add_client_error("create_fleet", "InvalidLaunchTemplateId.NotFound")
        got = Fleet(ec2).create(request(), "t", market=Market.SPOT, zones={})
    assert (got.instances, got.errors) == ((), ("*:InvalidLaunchTemplateId.NotFound",))


def test_an_answer_without_errors_or_instances_is_read() -> None:
    assert read_answer({"FleetId": "fleet-1"}, market=Market.SPOT, zones={}).instances == ()


def test_the_flush_is_one_command_by_tags_with_the_shortest_delivery_time() -> None:
    ssm = client("ssm")
    expected = {
        "DocumentName": "flush",
        "DocumentVersion": "3",
        "Targets": [
            {"Key": "tag:spotproof:stack", "Values": ["prod"]},
            {"Key": "tag:spotproof:run", "Values": ["mini"]},
        ],
        "Parameters": {"Request": ["abc,interruption,1777888920,9"]},
        "TimeoutSeconds": 30,
        "MaxConcurrency": "100%",
        "MaxErrors": "100%",
        "Comment": ANY,
    }
    with Stubber(ssm) as stub:
        stub.add_response("send_command", {"Command": {"CommandId": "c" * 36}}, expected)
        assert Commands(ssm, stack="prod", document="flush", version="3").flush("mini", ORDER) == ""


@pytest.mark.parametrize("code", ["InvalidInstanceId", "InvalidDocument", "AccessDeniedException"])
def test_ssm_01_a_refused_command_is_a_code_and_not_an_end(code: str) -> None:
    ssm = client("ssm")
    with Stubber(ssm) as stub:
        stub.add_client_error("send_command", code)
        assert Commands(ssm, stack="prod", document="flush", version="3").flush("mini", ORDER) == code


def test_terminating_ends_the_others_when_one_is_gone(ec2: Any) -> None:
    with Stubber(ec2) as stub:
        stub.add_client_error("terminate_instances", "InvalidInstanceID.NotFound")
        stub.add_client_error("terminate_instances", "InvalidInstanceID.NotFound", expected_params=_ids("i-0a"))
        stub.add_response("terminate_instances", {}, expected_params=_ids("i-0b"))
        Machines(ec2).terminate(["i-0a", "i-0b"])
        stub.assert_no_pending_responses()


def test_terminating_without_the_right_says_so(ec2: Any) -> None:
    with Stubber(ec2) as stub:
        stub.add_client_error("terminate_instances", "UnauthorizedOperation")
        with pytest.raises(Denied, match="terminate i-0a"):
            Machines(ec2).terminate(["i-0a"])


def _ids(*instances: str) -> dict[str, list[str]]:
    return {"InstanceIds": list(instances)}


def test_describing_reads_every_page(ec2: Any) -> None:
    def page(instance: str) -> dict[str, Any]:
        described = {
            "InstanceId": instance,
            "InstanceType": "g5.xlarge",
            "InstanceLifecycle": "spot",
            "State": {"Name": "running"},
            "Placement": {"AvailabilityZone": "us-east-1a"},
            "LaunchTime": datetime(2026, 5, 4, 10, tzinfo=UTC),
            "Tags": [{"Key": tags.RUN, "Value": "mini"}, {"Key": tags.LAUNCH, "Value": "7"}],
        }
        return {"Reservations": [{"Instances": [described]}]}

    with Stubber(ec2) as stub:
        stub.add_response("describe_instances", {**page("i-0a"), "NextToken": "more"})
        stub.add_response("describe_instances", page("i-0b"))
        found = Machines(ec2).of_run("prod", "mini")
    assert [(one.instance, one.launch, one.market) for one in found] == [
        ("i-0a", 7, Market.SPOT),
        ("i-0b", 7, Market.SPOT),
    ]


def test_due_runs_are_enqueued_ten_at_a_time() -> None:
    sqs = client("sqs")
    answer = {"Successful": [{"Id": "0", "MessageId": "m", "MD5OfMessageBody": "d"}], "Failed": []}
    with Stubber(sqs) as stub:
        stub.add_response("send_message_batch", answer)
        stub.add_response("send_message_batch", answer)
        assert RepairQueue(sqs, "https://queue.example/repair").put([f"run-{n}" for n in range(11)]) == 2


def test_a_notification_that_does_not_go_out_stops_nothing() -> None:
    sns = client("sns")
    with Stubber(sns) as stub:
        notices = Notices(sns, "arn:aws:sns:us-east-1:111122223333:t", stack="prod")
        stub.add_client_error("publish", "NotFound")
        stub.add_response("publish", {"MessageId": "1"})
        notices.say(Word(subject="one", text="text"))
        notices.say(Word(subject="two", text="text"))
        assert notices.flush() == ["NotFound"]
        assert notices.flush() == []  # it is not tried again

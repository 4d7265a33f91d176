"""Capacity, machines, commands and notices, as EC2 and SSM behave."""

from __future__ import annotations

import time
import urllib.error
import urllib.request
import uuid
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import ClientError

from tests.rehearsal.conftest import Stack

pytestmark = [pytest.mark.emulator]


def tag() -> str:
    return "t" + uuid.uuid4().hex[:10]


def state(stack: Stack, instance_id: str) -> str:
    answer = stack.region.client("ec2").describe_instances(InstanceIds=[instance_id])
    return str(answer["Reservations"][0]["Instances"][0]["State"]["Name"])


def events(stack: Stack, instance_id: str, kind: str) -> list[dict[str, Any]]:
    return [
        e["detail"]
        for e in stack.region.bus.emitted
        if e["detail-type"] == kind and e["detail"].get("instance-id") == instance_id
    ]


def test_a_refusal_and_an_instance_stand_in_one_answer(stack: Stack) -> None:
    stack.region.market.set(
        {("g5.xlarge", "us-east-1a"): "InsufficientInstanceCapacity", ("g6.xlarge", "us-east-1b"): 1}
    )
    specification = {"LaunchTemplateId": stack.outputs["Template"], "Version": "1"}
    overrides = [
        {"InstanceType": "g5.xlarge", "SubnetId": stack.subnet("us-east-1a")},
        {"InstanceType": "g6.xlarge", "SubnetId": stack.subnet("us-east-1b")},
    ]
    answer = stack.launch(
        tag(), LaunchTemplateConfigs=[{"LaunchTemplateSpecification": specification, "Overrides": overrides}]
    )
    assert [i["InstanceType"] for i in answer["Instances"]] == ["g6.xlarge"]
    assert [
        (e["ErrorCode"], e["LaunchTemplateAndOverrides"]["Overrides"]["InstanceType"]) for e in answer["Errors"]
    ] == [("InsufficientInstanceCapacity", "g5.xlarge")]


def test_no_capacity_is_an_answer_without_instances_not_an_error(stack: Stack) -> None:
    stack.region.market.set({("g6.xlarge", "us-east-1b"): 0})
    answer = stack.launch(tag())
    assert answer["Instances"] == []
    assert answer["Errors"][0]["ErrorCode"] == "InsufficientInstanceCapacity"


def test_a_token_launches_once_and_refuses_other_parameters(stack: Stack) -> None:
    stack.region.market.set({("g6.xlarge", "us-east-1b"): 5})
    name, token = tag(), uuid.uuid4().hex
    first, second = stack.launch(name, ClientToken=token), stack.launch(name, ClientToken=token)
    assert first["Instances"] == second["Instances"]
    found = stack.region.client("ec2").describe_instances(Filters=[{"Name": "tag:test", "Values": [name]}])
    assert len(found["Reservations"]) == 1
    with pytest.raises(ClientError, match="IdempotentParameterMismatch"):
        stack.launch(tag(), ClientToken=token)


def test_all_or_nothing_launches_nothing_when_one_zone_cannot_hold_all(stack: Stack) -> None:
    stack.region.market.set({("g6.xlarge", "us-east-1b"): 1})
    answer = stack.launch(
        tag(),
        SpotOptions={"SingleAvailabilityZone": True, "SingleInstanceType": True, "MinTargetCapacity": 2},
        TargetCapacitySpecification={"TotalTargetCapacity": 2, "DefaultTargetCapacityType": "spot"},
    )
    assert answer["Instances"] == []
    assert "UnfulfillableCapacity" in {e["ErrorCode"] for e in answer["Errors"]}
    assert stack.region.market.room("g6.xlarge", "us-east-1b", "spot") == 1


def test_prices_and_scores_are_those_of_the_market(stack: Stack) -> None:
    stack.region.market.set({("g6e.xlarge", "us-east-1b"): 9})
    stack.region.market.price({("g6e.xlarge", "us-east-1b"): 0.75})
    ec2 = stack.region.client("ec2")
    history = ec2.describe_spot_price_history(
        InstanceTypes=["g6e.xlarge"], ProductDescriptions=["Linux/UNIX"], StartTime=time.time()
    )["SpotPriceHistory"]
    prices = {row["AvailabilityZone"]: (row["AvailabilityZoneId"], float(row["SpotPrice"])) for row in history}
    assert prices["us-east-1b"] == ("use1-az2", 0.75)
    assert prices["us-east-1a"] == ("use1-az1", 1.0), "where none was set"
    scores = ec2.get_spot_placement_scores(
        InstanceTypes=["g6e.xlarge"], TargetCapacity=9, SingleAvailabilityZone=True, RegionNames=["us-east-1"]
    )["SpotPlacementScores"]
    assert {one["AvailabilityZoneId"]: one["Score"] for one in scores}["use1-az2"] == 9


def test_a_type_that_does_not_exist_and_a_template_that_does_not_exist_are_refused(stack: Stack) -> None:
    specification = {"LaunchTemplateId": stack.outputs["Template"], "Version": "1"}
    wrong_type = [{"LaunchTemplateSpecification": specification, "Overrides": [{"InstanceType": "g99.huge"}]}]
    with pytest.raises(ClientError, match="InvalidParameterValue"):
        stack.launch(tag(), LaunchTemplateConfigs=wrong_type)
    wrong_template = [{"LaunchTemplateSpecification": {"LaunchTemplateId": "lt-0", "Version": "1"}}]
    with pytest.raises(ClientError, match=r"InvalidLaunchTemplateId\.NotFound"):
        stack.launch(tag(), LaunchTemplateConfigs=wrong_template)


def test_an_instance_shows_what_it_was_launched_with(stack: Stack) -> None:
    name = tag()
    instance_id = stack.booted(name)
    filters = [{"Name": "tag:test", "Values": [name]}, {"Name": "instance-lifecycle", "Values": ["spot"]}]
    shown = stack.region.client("ec2").describe_instances(Filters=filters)["Reservations"][0]["Instances"][0]
    tags = {t["Key"]: t["Value"] for t in shown["Tags"]}
    assert tags["from"] == "template"
    assert {"aws:ec2:fleet-id", "aws:ec2launchtemplate:id"} <= set(tags)
    assert shown["SpotInstanceRequestId"].startswith("sir-")
    assert [e["state"] for e in events(stack, instance_id, "EC2 Instance State-change Notification")][:2] == [
        "pending",
        "running",
    ]


def test_user_data_knows_its_tags_and_has_the_deployed_role(stack: Stack) -> None:
    name = tag()
    node = stack.region.hosts.nodes[stack.booted(name)]
    assert (node.runtime_dir / "tag").read_text() == name
    assert "plane-NodeRole" in (node.runtime_dir / "identity").read_text()


def test_a_container_has_its_mounts_and_nothing_of_the_host(stack: Stack) -> None:
    node = stack.region.hosts.nodes[stack.booted(tag())]
    assert (node.runtime_dir / "here").read_text() == str(node.runtime_dir / "here")
    log = (node.logs / "job.log").read_text()
    assert f"HOME={node.disk}/containers/job/root" in log
    assert "REHEARSAL_HOST_FILE" not in log


def test_metadata_wants_a_token_and_says_404_for_what_is_not_so(stack: Stack) -> None:
    url = stack.region.hosts.nodes[stack.booted(tag())].imds.url

    def get(path: str, headers: dict[str, str], method: str = "GET") -> tuple[int, str]:
        request = urllib.request.Request(f"{url}/latest/{path}", headers=headers, method=method)
        try:
            with urllib.request.urlopen(request, timeout=5) as response:
                return int(response.status), response.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, ""

    assert get("meta-data/instance-id", {})[0] == 401
    assert get("api/token", {"X-aws-ec2-metadata-token-ttl-seconds": "99999"}, "PUT")[0] == 400
    status, token = get("api/token", {"X-aws-ec2-metadata-token-ttl-seconds": "60"}, "PUT")
    assert status == 200
    assert get("meta-data/spot/instance-action", {"X-aws-ec2-metadata-token": token})[0] == 404
    assert get("meta-data/placement/availability-zone", {"X-aws-ec2-metadata-token": token}) == (200, "us-east-1b")


def test_at_its_deadline_an_interrupted_instance_is_gone_with_its_disk(stack: Stack) -> None:
    instance_id = stack.booted(tag())
    node = stack.region.hosts.nodes[instance_id]
    pids = node.pids()
    assert len(pids) >= 3
    deadline = stack.region.hosts.interrupt(instance_id, notice_s=1.5)
    assert node.imds.notices.action is not None
    warning = events(stack, instance_id, "EC2 Spot Instance Interruption Warning")
    assert warning == [{"instance-id": instance_id, "instance-action": "terminate"}]
    stack.region.wait(lambda: state(stack, instance_id) == "terminated", what="terminated")
    assert time.time() >= deadline - 0.1
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)
    assert not node.disk.exists()
    assert stack.region.market.room("g6.xlarge", "us-east-1b", "spot") == 0


def test_an_owner_who_terminates_gives_the_capacity_back(stack: Stack) -> None:
    instance_id = stack.booted(tag())
    answer = stack.region.client("ec2").terminate_instances(InstanceIds=[instance_id])
    assert answer["TerminatingInstances"][0]["CurrentState"]["Name"] == "shutting-down"
    stack.region.wait(lambda: state(stack, instance_id) == "terminated", what="terminated")
    assert stack.region.market.room("g6.xlarge", "us-east-1b", "spot") == 1
    assert instance_id not in stack.region.hosts.alive()


def test_a_silent_death_may_be_known_to_ec2_or_not(stack: Stack) -> None:
    known, unknown = stack.booted(tag()), stack.booted(tag())
    stack.region.hosts.silent_kill(known)
    stack.region.hosts.silent_kill(unknown, ec2_notices=False)
    stack.region.wait(lambda: state(stack, known) == "terminated", what="terminated")
    assert not events(stack, known, "EC2 Spot Instance Interruption Warning")
    assert state(stack, unknown) == "running"
    assert unknown not in stack.region.hosts.alive()


def test_young_instances_are_unknown_while_ec2_is_eventually_consistent(stack: Stack) -> None:
    stack.region.market.set({("g6.xlarge", "us-east-1b"): 1})
    stack.region.instances.visible_after_s = 60
    try:
        instance_id = stack.launch(tag())["Instances"][0]["InstanceIds"][0]
        with pytest.raises(ClientError, match=r"InvalidInstanceID\.NotFound"):
            state(stack, instance_id)
    finally:
        stack.region.instances.visible_after_s = 0
    assert state(stack, instance_id) in ("pending", "running")


# ---------------------------------------------------------------------------------------------------- commands
def send(stack: Stack, text: str, **where: Any) -> str:
    answer = stack.region.client("ssm").send_command(
        DocumentName=stack.outputs["Document"], Parameters={"Request": [text]}, **where
    )
    return str(answer["Command"]["CommandId"])


def finished(stack: Stack, command_id: str) -> list[tuple[str, str]]:
    client = stack.region.client("ssm")

    def states() -> list[tuple[str, str]]:
        found = client.list_command_invocations(CommandId=command_id)["CommandInvocations"]
        return [(i["InstanceId"], i["Status"]) for i in found]

    stack.region.wait(lambda: all(s not in ("Pending", "InProgress") for _, s in states()), what="the command ends")
    return states()


def test_a_command_by_tags_runs_the_deployed_document_where_all_tags_hold(stack: Stack) -> None:
    name = tag()
    here, elsewhere = stack.booted(name), stack.booted(tag())
    targets = [{"Key": "tag:test", "Values": [name]}, {"Key": "tag:from", "Values": ["template"]}]
    assert finished(stack, send(stack, "flush now", Targets=targets)) == [(here, "Success")]
    nodes = stack.region.hosts.nodes
    assert (nodes[here].runtime_dir / "requests" / "one").read_text() == "flush now"
    assert not (nodes[elsewhere].runtime_dir / "requests" / "one").exists()
    statuses = [e["status"] for e in events(stack, here, "EC2 Command Invocation Status-change Notification")]
    assert statuses == ["InProgress", "Success"]


def test_a_parameter_reaches_the_shell_as_a_variable_and_cannot_become_code(stack: Stack) -> None:
    with pytest.raises(ClientError, match="InvalidParameters"):
        send(stack, "$(reboot)", Targets=[{"Key": "tag:test", "Values": ["x"]}])


def test_a_step_that_fails_is_failed_with_its_code(stack: Stack) -> None:
    instance_id = stack.booted(tag())
    command_id = send(stack, "fail please", InstanceIds=[instance_id])
    assert finished(stack, command_id) == [(instance_id, "Failed")]
    answer = stack.region.client("ssm").get_command_invocation(CommandId=command_id, InstanceId=instance_id)
    assert answer["ResponseCode"] == 9
    assert "pasted none" in answer["StandardOutputContent"]


def test_one_dead_instance_refuses_the_whole_call(stack: Stack) -> None:
    alive, dead = stack.booted(tag()), stack.booted(tag())
    stack.region.hosts.silent_kill(dead)
    with pytest.raises(ClientError, match="InvalidInstanceId"):
        send(stack, "flush", InstanceIds=[alive, dead])


def test_an_unknown_document_is_refused(stack: Stack) -> None:
    with pytest.raises(ClientError, match="InvalidDocument"):
        stack.region.client("ssm").send_command(DocumentName="nobody", Targets=[{"Key": "tag:a", "Values": ["b"]}])


def test_a_frozen_machine_runs_nothing_until_it_wakes(stack: Stack) -> None:
    instance_id = stack.booted(tag())
    node = stack.region.hosts.nodes[instance_id]
    stack.region.hosts.freeze(instance_id)
    command_id = send(stack, "flush", InstanceIds=[instance_id])
    assert {Path(f"/proc/{p}/stat").read_text().rsplit(")", 1)[1].split()[0] for p in node.pids()} == {"T"}
    assert not (node.runtime_dir / "requests" / "one").exists()
    stack.region.hosts.wake(instance_id)
    assert finished(stack, command_id) == [(instance_id, "Success")]

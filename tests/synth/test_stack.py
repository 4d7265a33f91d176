"""What the template says about what is retained, what must stay empty, how nodes are made, and what people see."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from cdk_app.bundling import bundle
from spotproof.contract import keys, limits, names, tags
from spotproof.contract.events import Queue
from spotproof.contract.metrics import METRICS, Metric, Section, row_of
from spotproof.contract.names import Function, function_of
from tests.architecture.tree import ROOT
from tests.synth.synthesis import NODE, assemble, no_network
from tests.synth.template import Assembly, text

# CloudFormation replaces what gets another logical id: the table of runs and the checkpoints of everybody would stay
# behind, forgotten. Changing a line here is a migration.
STATEFUL = {
    "StateTable962DE04C": "AWS::DynamoDB::Table",
    "StateBucket77825682": "AWS::S3::Bucket",
}
# Names that CloudFormation would give, spelled by a template.
NAMES = ("TableName", "BucketName", "LogGroupName", "QueueName", "TopicName", "Name", "RoleName", "FunctionName")


def template_data(assembly: Assembly) -> dict[str, Any]:
    data: dict[str, Any] = assembly.only("AWS::EC2::LaunchTemplate")["LaunchTemplateData"]
    return data


def test_stateful_resources_keep_their_logical_ids(assembly: Assembly, strict_assembly: Assembly) -> None:
    for one in (assembly, strict_assembly):
        kept = {
            name: resource["Type"]
            for name, resource in one.resources().items()
            if resource.get("DeletionPolicy") == "Retain"
        }
        assert kept == STATEFUL


def test_IAM_06_nothing_that_is_retained_has_a_fixed_name(assembly: Assembly) -> None:
    for name, resource in assembly.resources().items():
        if resource.get("DeletionPolicy") == "Retain":
            assert resource["UpdateReplacePolicy"] == "Retain"
            assert not set(resource["Properties"]) & set(NAMES), name
    groups = assembly.of("AWS::Logs::LogGroup")
    assert groups
    assert not [name for name, group in groups.items() if "LogGroupName" in group]


def test_the_table_is_the_contracts(assembly: Assembly, strict_assembly: Assembly) -> None:
    table = assembly.only("AWS::DynamoDB::Table")
    assert table["KeySchema"] == [
        {"AttributeName": keys.PK, "KeyType": "HASH"},
        {"AttributeName": keys.SK, "KeyType": "RANGE"},
    ]
    assert {one["AttributeType"] for one in table["AttributeDefinitions"]} == {"S"}
    assert table["BillingMode"] == "PAY_PER_REQUEST"
    assert table["TimeToLiveSpecification"] == {"AttributeName": keys.TTL, "Enabled": True}
    assert table["PointInTimeRecoverySpecification"]["PointInTimeRecoveryEnabled"] is True
    assert table["DeletionProtectionEnabled"] is True
    assert strict_assembly.only("AWS::DynamoDB::Table")["DeletionProtectionEnabled"] is False


def test_CW_15_the_bucket_aborts_uploads_that_nobody_finishes(assembly: Assembly) -> None:
    (rule,) = assembly.only("AWS::S3::Bucket")["LifecycleConfiguration"]["Rules"]
    assert rule["Status"] == "Enabled"
    assert rule["AbortIncompleteMultipartUpload"]["DaysAfterInitiation"] == limits.MULTIPART_ABORT_DAYS <= 3
    assert rule["NoncurrentVersionExpiration"]["NoncurrentDays"] == limits.NONCURRENT_DAYS
    assert "Prefix" not in rule


def test_the_bucket_is_versioned_private_and_spoken_to_over_tls_only(assembly: Assembly) -> None:
    bucket = assembly.only("AWS::S3::Bucket")
    assert bucket["VersioningConfiguration"] == {"Status": "Enabled"}
    assert set(bucket["PublicAccessBlockConfiguration"].values()) == {True}
    (encryption,) = bucket["BucketEncryption"]["ServerSideEncryptionConfiguration"]
    assert encryption["BucketKeyEnabled"] is True
    denies = assembly.only("AWS::S3::BucketPolicy")["PolicyDocument"]["Statement"]
    assert {"Bool": {"aws:SecureTransport": "false"}} in [one["Condition"] for one in denies if one["Effect"] == "Deny"]


def test_EV_06_the_launch_template_requires_tokens_and_lets_them_through_one_bridge(assembly: Assembly) -> None:
    assert template_data(assembly)["MetadataOptions"] == {
        "HttpEndpoint": "enabled",
        "HttpTokens": "required",
        "HttpPutResponseHopLimit": 2,
        "InstanceMetadataTags": "enabled",
    }


def test_with_strict_metadata_no_container_behind_a_bridge_gets_a_token(strict_assembly: Assembly) -> None:
    data = template_data(strict_assembly)
    assert data["MetadataOptions"]["HttpPutResponseHopLimit"] == 1
    assert "--name=spotproof-trainer --network=bridge" in text(data["UserData"])


def test_the_launch_template_leaves_the_market_to_the_fleet(assembly: Assembly) -> None:
    data = template_data(assembly)
    assert "InstanceMarketOptions" not in data
    assert "InstanceType" not in data
    # EC2 refuses tags for spot requests in a call that makes none, so this would end every on-demand launch.
    assert [one["ResourceType"] for one in data["TagSpecifications"]] == ["volume", "network-interface"]
    for one in data["TagSpecifications"]:
        assert {tag["Key"]: tag["Value"] for tag in one["Tags"]} == {tags.MANAGED: "true", tags.STACK: "spotproof"}


def test_the_root_disk_is_encrypted_and_goes_with_its_instance(assembly: Assembly) -> None:
    (disk,) = template_data(assembly)["BlockDeviceMappings"]
    assert disk["DeviceName"] == "/dev/sda1"
    assert disk["Ebs"] == {"Encrypted": True, "DeleteOnTermination": True, "VolumeSize": 150, "VolumeType": "gp3"}


def test_the_image_is_read_from_its_parameter_at_deployment(assembly: Assembly) -> None:
    name = text(template_data(assembly)["ImageId"]).strip("<>")
    parameter = assembly.document["Parameters"][name]
    assert parameter["Type"] == "AWS::SSM::Parameter::Value<AWS::EC2::Image::Id>"
    assert parameter["Default"].startswith("/aws/service/deeplearning/ami/")


def test_IAM_07_runs_can_pin_the_template_version_that_was_deployed(assembly: Assembly) -> None:
    (template,) = assembly.of("AWS::EC2::LaunchTemplate")
    outputs = {name: one["Value"] for name, one in assembly.document["Outputs"].items()}
    assert set(outputs) >= set(names.OUTPUTS)
    assert outputs[names.OUTPUT_TEMPLATE_ID] == {"Ref": template}
    assert outputs[names.OUTPUT_TEMPLATE_VERSION] == {"Fn::GetAtt": [template, "LatestVersionNumber"]}
    assert "$Latest" not in json.dumps(assembly.document)


def test_functions_send_one_pinned_version_of_one_document(assembly: Assembly) -> None:
    (document,) = assembly.of("AWS::SSM::Document")
    for function in assembly.of("AWS::Lambda::Function").values():
        variables = function["Environment"]["Variables"]
        assert variables["SPOTPROOF_DOCUMENT"] == {"Ref": document}
        assert variables["SPOTPROOF_DOCUMENT_VERSION"] == "1"


def test_IAM_05_delivery_to_a_queue_is_bounded_and_what_fails_is_kept(assembly: Assembly) -> None:
    queues = assembly.of("AWS::SQS::Queue")
    policies = assembly.of("AWS::SQS::QueuePolicy").values()
    for name, rule in assembly.of("AWS::Events::Rule").items():
        (target,) = rule["Targets"]
        assert 60 <= target["RetryPolicy"]["MaximumEventAgeInSeconds"] == limits.EVENT_MAX_AGE_S
        letters = target["DeadLetterConfig"]["Arn"]["Fn::GetAtt"][0]
        assert letters in queues
        for queue in (letters, target["Arn"]["Fn::GetAtt"][0]):
            sources = [
                statement["Condition"]["ArnEquals"]["aws:SourceArn"]
                for policy in policies
                if {"Ref": queue} in policy["Queues"]
                for statement in policy["PolicyDocument"]["Statement"]
                if statement["Effect"] == "Allow"
            ]
            assert {"Fn::GetAtt": [name, "Arn"]} in sources


@pytest.mark.parametrize(("function", "rate"), [(Function.SWEEP, "rate(1 minute)"), (Function.COLLECT, "rate(1 hour)")])
def test_a_schedule_ticks_and_a_lost_tick_is_kept(assembly: Assembly, function: Function, rate: str) -> None:
    row, functions = function_of(function), assembly.of("AWS::Lambda::Function")
    (name,) = [name for name, one in functions.items() if one["Handler"] == row.handler]
    schedules = assembly.of("AWS::Scheduler::Schedule").values()
    (schedule,) = [one for one in schedules if one["Target"]["Arn"] == {"Fn::GetAtt": [name, "Arn"]}]
    assert schedule["ScheduleExpression"] == rate
    target = schedule["Target"]
    assert target["DeadLetterConfig"]["Arn"]["Fn::GetAtt"][0] in assembly.of("AWS::SQS::Queue")
    assert target["RetryPolicy"] == {"MaximumEventAgeInSeconds": row.every_s, "MaximumRetryAttempts": 0}
    invokes = assembly.of("AWS::Lambda::EventInvokeConfig").values()
    (invoke,) = [one for one in invokes if one["FunctionName"] == {"Ref": name}]
    assert invoke["MaximumRetryAttempts"] == 0
    assert invoke["DestinationConfig"]["OnFailure"]["Destination"] == target["DeadLetterConfig"]["Arn"]


def test_every_queue_is_encrypted_refuses_plain_http_and_has_dead_letters_or_is_them(assembly: Assembly) -> None:
    queues = assembly.of("AWS::SQS::Queue")
    letters = {
        one["RedrivePolicy"]["deadLetterTargetArn"]["Fn::GetAtt"][0]
        for one in queues.values()
        if "RedrivePolicy" in one
    }
    assert len(letters) == 3
    for name, queue in queues.items():
        assert queue["SqsManagedSseEnabled"] is True
        assert ("RedrivePolicy" in queue) != (name in letters or "Undelivered" in name)
        if "RedrivePolicy" not in queue:
            assert queue["MessageRetentionPeriod"] == 14 * 86_400
    denied = {
        text(queue)
        for policy in assembly.of("AWS::SQS::QueuePolicy").values()
        for statement in policy["PolicyDocument"]["Statement"]
        if statement["Effect"] == "Deny" and statement["Condition"] == {"Bool": {"aws:SecureTransport": "false"}}
        for queue in policy["Queues"]
    }
    assert denied == {f"<{name}>" for name in queues}


def test_every_dead_letter_rings(assembly: Assembly) -> None:
    depths = {
        text(alarm["Dimensions"][0]["Value"])
        for alarm in assembly.of("AWS::CloudWatch::Alarm").values()
        if alarm.get("MetricName") == "ApproximateNumberOfMessagesVisible"
    }
    letters = {name for name, queue in assembly.of("AWS::SQS::Queue").items() if "RedrivePolicy" not in queue}
    assert depths == {f"<{name}.QueueName>" for name in letters}


def test_an_alarm_on_dead_letters_names_the_command_that_reads_them(assembly: Assembly) -> None:
    said = [
        alarm["AlarmDescription"]
        for alarm in assembly.of("AWS::CloudWatch::Alarm").values()
        if alarm.get("MetricName") == "ApproximateNumberOfMessagesVisible"
    ]
    assert len(said) == 4
    assert all("`spotproof dlq list`" in one and "`spotproof dlq replay`" in one for one in said)


def test_operators_are_told_every_queue_by_its_name(assembly: Assembly) -> None:
    told = dict(one.split("=") for one in text(assembly.document["Outputs"][names.OUTPUT_QUEUES]["Value"]).split(","))
    queues = assembly.of("AWS::SQS::Queue")
    assert {url.strip("<>") for url in told.values()} == set(queues)
    for queue in Queue:
        dead = queues[told[queue.value].strip("<>")]["RedrivePolicy"]["deadLetterTargetArn"]["Fn::GetAtt"][0]
        assert told[names.dead_letters_of(queue)] == f"<{dead}>"
    assert "Undelivered" in told[names.UNDELIVERED]


def test_alarms_are_the_metric_tables_and_each_rings_the_topic(assembly: Assembly) -> None:
    alarms = assembly.of("AWS::CloudWatch::Alarm").values()
    (topic,) = assembly.of("AWS::SNS::Topic")
    assert all(alarm["AlarmActions"] == [{"Ref": topic}] for alarm in alarms)
    assert all(alarm["AlarmDescription"] for alarm in alarms)
    ours = {alarm["MetricName"]: alarm for alarm in alarms if alarm.get("Namespace") == "Spotproof"}
    expected = {row.metric.value: row.alarm for row in METRICS if row.alarm is not None}
    assert set(ours) == set(expected)
    for name, alarm in expected.items():
        assert ours[name]["Threshold"] == alarm.threshold
        assert ours[name]["AlarmDescription"] == alarm.says
        assert ours[name]["Dimensions"] == [{"Name": "stack", "Value": "spotproof"}]


def test_alarms_may_publish_to_the_topic(assembly: Assembly) -> None:
    statements = assembly.only("AWS::SNS::TopicPolicy")["PolicyDocument"]["Statement"]
    services = [one["Principal"].get("Service") for one in statements if one["Effect"] == "Allow"]
    assert services == ["cloudwatch.amazonaws.com"]


def test_people_are_mailed_only_where_the_settings_say_so(assembly: Assembly, strict_assembly: Assembly) -> None:
    assert not assembly.of("AWS::SNS::Subscription")
    assert strict_assembly.only("AWS::SNS::Subscription")["Endpoint"] == "people@example.com"


def dashboard_of(assembly: Assembly) -> list[dict[str, Any]]:
    body = json.loads(text(assembly.only("AWS::CloudWatch::Dashboard")["DashboardBody"]))
    widgets: list[dict[str, Any]] = body["widgets"]
    return widgets


def test_the_dashboard_shows_every_metric_in_its_section(assembly: Assembly) -> None:
    shown: dict[str, list[str]] = {}
    for widget in dashboard_of(assembly):
        if widget["type"] == "text":
            section, _, words = widget["properties"]["markdown"].removeprefix("## ").partition("\n")
            shown[section] = []
            assert all(f"**{row.metric}**: {row.says}" in words for row in METRICS if row.section == section)
        elif shown:
            shown[section].append(widget["properties"]["title"])
    assert list(shown) == list(Section)
    for row in METRICS:
        titles = [f"{row.metric} by {one}" for one in row.dimensions] or [row.metric.value]
        assert set(titles) <= set(shown[row.section]), row.metric
    assert {row.metric for row in METRICS} == set(Metric)


def test_every_line_of_the_dashboard_is_a_series_that_the_meter_writes(assembly: Assembly) -> None:
    """For the stack, or for one more dimension of the metric's row: emf publishes no other."""
    for widget in dashboard_of(assembly):
        for line in widget["properties"].get("metrics", []):
            if line[0] == "Spotproof":
                assert line[2:4] == ["stack", "spotproof"]
                assert line[1] in set(Metric)
            elif isinstance(line[0], dict) and "expression" in line[0]:
                found = re.fullmatch(
                    r"SEARCH\('\{Spotproof,stack,(\w+)\} MetricName=\"(\w+)\" stack=\"spotproof\"', 'Sum', 300\)",
                    line[0]["expression"],
                )
                assert found is not None, line
                assert found[1] in {one.value for one in row_of(Metric(found[2])).dimensions}


def test_the_dashboard_asks_the_widget_for_the_runs(assembly: Assembly) -> None:
    (widget,) = [one for one in dashboard_of(assembly) if one["type"] == "custom"]
    handler = function_of(Function.WIDGET).handler
    (name,) = [name for name, one in assembly.of("AWS::Lambda::Function").items() if one["Handler"] == handler]
    assert widget["properties"]["endpoint"] == f"<{name}.Arn>"
    assert widget["properties"]["updateOn"] == {"refresh": True, "resize": False, "timeRange": False}


def test_nodes_have_one_subnet_per_zone_and_gateway_endpoints_in_every_network(
    assembly: Assembly, strict_assembly: Assembly, nat_assembly: Assembly
) -> None:
    for one, zones in ((assembly, 3), (strict_assembly, 2), (nat_assembly, 3)):
        subnets = one.of("AWS::EC2::Subnet")
        pinned = re.findall(r"<(\w+)>=([^,]+)", text(one.document["Outputs"][names.OUTPUT_SUBNETS]["Value"]))
        assert len(pinned) == zones
        assert len({zone for _, zone in pinned}) == zones
        assert all(text(subnets[name]["AvailabilityZone"]) == zone for name, zone in pinned)
        gateways = [e for e in one.of("AWS::EC2::VPCEndpoint").values() if e["VpcEndpointType"] == "Gateway"]
        assert {text(e["ServiceName"]).rsplit(".", 1)[-1] for e in gateways} == {"s3", "dynamodb"}


def test_an_isolated_network_has_the_interfaces_that_nodes_call_and_no_way_out(strict_assembly: Assembly) -> None:
    endpoints = strict_assembly.of("AWS::EC2::VPCEndpoint").values()
    interfaces = {text(e["ServiceName"]).split(".", 3)[-1] for e in endpoints if e["VpcEndpointType"] == "Interface"}
    assert interfaces == {"ssm", "ssmmessages", "ecr.api", "ecr.dkr", "logs", "sts"}
    assert not strict_assembly.of("AWS::EC2::InternetGateway")
    assert not strict_assembly.of("AWS::EC2::NatGateway")


def test_nat_gateways_are_as_many_as_the_settings_say(nat_assembly: Assembly) -> None:
    assert len(nat_assembly.of("AWS::EC2::NatGateway")) == 2


def test_nothing_from_outside_reaches_a_node(assembly: Assembly, nat_assembly: Assembly) -> None:
    for one in (assembly, nat_assembly):
        (group,) = one.of("AWS::EC2::SecurityGroup")
        assert "SecurityGroupIngress" not in one.of("AWS::EC2::SecurityGroup")[group]
        ingress = one.only("AWS::EC2::SecurityGroupIngress")
        assert ingress["SourceSecurityGroupId"] == ingress["GroupId"] == {"Fn::GetAtt": [group, "GroupId"]}


def test_the_template_names_no_account_and_no_region(assembly: Assembly) -> None:
    spelled = json.dumps(assembly.document)
    assert not re.search(r"(?<!\d)\d{12}(?!\d)", spelled)
    assert not re.search(r"\b(us|eu|ap)-[a-z]+-\d\b", spelled)


def test_everything_carries_the_stacks_tag(strict_assembly: Assembly) -> None:
    untagged = [
        name
        for name, resource in strict_assembly.resources().items()
        if "Tags" in resource.get("Properties", {})
        and {"Key": tags.STACK, "Value": "team-b"} not in resource["Properties"]["Tags"]
    ]
    assert not untagged


def test_every_answer_to_cdk_nag_stands_on_a_resource_and_has_a_reason(assembly: Assembly) -> None:
    (file,) = assembly.folder.glob("*.metadata.json")
    answers = [
        (where, finding, reason)
        for where, entries in json.loads(file.read_text()).items()
        for entry in entries
        if entry["type"] == "aws:cdk:acknowledged-rules"
        for finding, reason in entry["data"].items()
        if "AwsSolutions" in finding or "Serverless" in finding
    ]
    assert answers
    assert not [where for where, _, _ in answers if where.count("/") < 3]  # not on the stack as a whole
    assert not [finding for _, finding, reason in answers if len(reason) < 20]


def test_both_packs_of_cdk_nag_have_nothing_left_to_say_not_even_a_warning(
    assembly: Assembly, strict_assembly: Assembly, nat_assembly: Assembly, guest_assembly: Assembly
) -> None:
    for one in (assembly, strict_assembly, nat_assembly, guest_assembly):
        report = json.loads((one.folder / "validation-report.json").read_text())
        silent = {
            "conclusion": "success",
            "violations": [],
        }  # newer CDK libraries report a validator that found nothing
        assert [one for one in report["pluginReports"] if {**one, **silent} != one] == []


# A bucket without TLS enforcement beside the stack: if this passes, nothing is being checked.
UNANSWERED = """
import sys
from aws_cdk import Stack, aws_s3
from cdk_app.app import build, new_app
from cdk_app.settings import StackSettings
app = new_app(sys.argv[1])
aws_s3.Bucket(build(app, StackSettings()), "Careless")
app.synth()
"""


def test_an_unanswered_finding_of_cdk_nag_fails_the_synthesis(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", UNANSWERED, str(tmp_path / "out")],
        cwd=ROOT,
        env={"PATH": f"{NODE}:{os.defpath}", "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode != 0
    assert "AwsSolutions-S10" in done.stdout + done.stderr


def test_cfn_lint_has_nothing_to_say(assembly: Assembly) -> None:
    (template,) = assembly.folder.glob("*.template.json")
    run = "import sys; from cfnlint.runner import main; sys.exit(main())"
    command = [sys.executable, "-c", run, "--template", str(template)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_synthesis_needs_no_network(assembly: Assembly) -> None:
    if not no_network():
        pytest.skip("this machine allows no network namespace, so the synthesis above ran with the network in reach")
    assert assembly.document["Resources"]


def test_the_same_input_gives_the_same_template(assembly: Assembly, tmp_path_factory: pytest.TempPathFactory) -> None:
    again = assemble(tmp_path_factory, "")
    assert without_zip(again) == without_zip(assembly)


def without_zip(assembly: Assembly) -> str:
    """The template without the zip's digest: that one is the same input's, and the next test's."""
    return re.sub(r"[0-9a-f]{64}\.zip", "zip", json.dumps(assembly.document))


def test_the_same_input_gives_the_same_zip(tmp_path: Path) -> None:
    contents = []
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        bundle(tmp_path / name)
        files = sorted(path for path in (tmp_path / name).rglob("*") if path.is_file())
        contents.append({str(path.relative_to(tmp_path / name)): path.read_bytes() for path in files})
    assert contents[0] == contents[1]
    assert len(contents[0]) > 100


def test_the_zip_is_pure_python_and_holds_no_more_than_functions_need(assembly: Assembly) -> None:
    files = [path.relative_to(assembly.code()) for path in assembly.code().rglob("*") if path.is_file()]
    assert not [path for path in files if path.suffix in (".so", ".pyc", ".pth")]
    assert {path.parts[1] for path in files if path.parts[0] == "spotproof" and len(path.parts) > 2} <= {
        "contract",
        "plan",
        "report",
        "store",
    }
    assert not [path for path in files if path.parts[0] in ("boto3", "botocore", "torch")]

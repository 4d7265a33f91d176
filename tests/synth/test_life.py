"""The life of a stack: made over what another left, destroyed only when nothing runs, in a network that was there."""

from __future__ import annotations

import json
from typing import Any

from rehearsal.plane.stacks import unguarded
from spotproof.contract import keys, names, tags
from spotproof.contract.names import FUNCTIONS, Function
from tests.synth.policy import ARN, HERE, WORLD, Statement, decide, resolved, statements_of
from tests.synth.template import Assembly, text


def guard_of(assembly: Assembly) -> tuple[str, dict[str, Any]]:
    ((name, guard),) = [(n, r) for n, r in assembly.resources().items() if r["Type"] == names.GUARD_RESOURCE]
    return name, guard


def role_of_function(assembly: Assembly, function: Function) -> list[Statement]:
    handler = next(row.handler for row in FUNCTIONS if row.function is function)
    (role,) = [text(one["Role"]) for one in assembly.of("AWS::Lambda::Function").values() if one["Handler"] == handler]
    return [one for one in statements_of(assembly) if f"<{one.role}.Arn>" == role]


# ------------------------------------------------------------------------------------------------ destroy
def test_destroying_asks_the_guard_before_anything_else_is_gone(
    assembly: Assembly, strict_assembly: Assembly, nat_assembly: Assembly, guest_assembly: Assembly
) -> None:
    for one in (assembly, strict_assembly, nat_assembly, guest_assembly):
        name, _ = guard_of(one)
        assert unguarded(one.resources(), name) == []


def test_a_guard_that_forgets_a_resource_would_be_noticed(assembly: Assembly) -> None:
    name, _ = guard_of(assembly)
    resources = json.loads(json.dumps(assembly.resources()))
    schedule = next(iter(assembly.of("AWS::Scheduler::Schedule")))
    resources[name]["DependsOn"].remove(schedule)
    assert unguarded(resources, name) == [schedule]


def test_the_guard_asks_our_own_function_and_waits_minutes_and_not_an_hour(assembly: Assembly) -> None:
    _, guard = guard_of(assembly)
    handler = next(row.handler for row in FUNCTIONS if row.function is Function.GUARD)
    token = guard["Properties"]["ServiceToken"]["Fn::GetAtt"][0]
    assert assembly.of("AWS::Lambda::Function")[token]["Handler"] == handler
    assert 60 < int(guard["Properties"]["ServiceTimeout"]) <= 600
    assert names.GUARD_ATTACHED not in guard["Properties"]


def test_the_guards_function_reads_the_sweeps_index_and_nothing_else(assembly: Assembly) -> None:
    role = role_of_function(assembly, Function.GUARD)
    actions = {action for one in role for action in one.actions}
    assert actions == {"dynamodb:Query", "logs:CreateLogStream", "logs:PutLogEvents"}
    table = resolved(assembly, {"Fn::GetAtt": [next(iter(assembly.of("AWS::DynamoDB::Table"))), "Arn"]})
    assert decide(role, "dynamodb:Query", table, {"dynamodb:LeadingKeys": keys.live_partition(15)})
    assert not decide(role, "dynamodb:Query", table, {"dynamodb:LeadingKeys": keys.run_partition("r")})


# ------------------------------------------------------------------------------------------------ attach
def test_IAM_06_a_new_stack_attaches_what_an_earlier_one_left(guest_assembly: Assembly) -> None:
    table, bucket = "spotproof-StateTable962DE04C-1ABC", "spotproof-statebucket77825682-1abc"
    assert not guest_assembly.of("AWS::DynamoDB::Table")
    assert not guest_assembly.of("AWS::S3::Bucket")
    outputs = {name: text(one["Value"]) for name, one in guest_assembly.document["Outputs"].items()}
    assert (outputs[names.OUTPUT_TABLE], outputs[names.OUTPUT_BUCKET]) == (table, bucket)
    for function in guest_assembly.of("AWS::Lambda::Function").values():
        variables = function["Environment"]["Variables"]
        assert (variables["SPOTPROOF_TABLE"], variables["SPOTPROOF_BUCKET"]) == (table, bucket)
    spelled = {resource for one in statements_of(guest_assembly) for resource in one.resources}
    assert WORLD.arn("dynamodb", f"table/{table}") in spelled
    assert f"{ARN}s3:::{bucket}/runs/*" in spelled


def test_what_is_attached_is_checked_by_the_guard_with_just_the_looks_that_it_needs(guest_assembly: Assembly) -> None:
    _, guard = guard_of(guest_assembly)
    table, bucket = "spotproof-StateTable962DE04C-1ABC", "spotproof-statebucket77825682-1abc"
    assert guard["Properties"][names.GUARD_ATTACHED] == {"Table": table, "Bucket": bucket}
    role = role_of_function(guest_assembly, Function.GUARD)
    looks = {action for one in role for action in one.actions if action.startswith(("dynamodb:Desc", "s3:"))}
    assert looks == {
        "dynamodb:DescribeTable",
        "dynamodb:DescribeTimeToLive",
        "s3:GetBucketVersioning",
        "s3:GetLifecycleConfiguration",
    }


def test_an_attached_bucket_is_spoken_to_over_tls_only_again(guest_assembly: Assembly) -> None:
    policy = guest_assembly.only("AWS::S3::BucketPolicy")
    assert policy["Bucket"] == "spotproof-statebucket77825682-1abc"
    conditions = [one["Condition"] for one in policy["PolicyDocument"]["Statement"] if one["Effect"] == "Deny"]
    assert {"Bool": {"aws:SecureTransport": "false"}} in conditions
    assert {"NumericLessThan": {"s3:TlsVersion": 1.2}} in conditions


# ------------------------------------------------------------------------------------------------ existing network
def test_an_existing_network_gets_endpoints_and_nothing_else(guest_assembly: Assembly) -> None:
    kinds = {resource["Type"] for resource in guest_assembly.resources().values()}
    made = {kind.rsplit("::", 1)[-1] for kind in kinds if kind.startswith("AWS::EC2::")}
    assert made == {"VPCEndpoint", "SecurityGroup", "SecurityGroupIngress", "LaunchTemplate"}
    for group in guest_assembly.of("AWS::EC2::SecurityGroup").values():
        assert group["VpcId"] == "vpc-0123456789abcdef0"


def test_its_route_tables_get_the_gateways_and_its_subnets_the_interfaces(guest_assembly: Assembly) -> None:
    endpoints = list(guest_assembly.of("AWS::EC2::VPCEndpoint").values())
    gateways = [one for one in endpoints if one["VpcEndpointType"] == "Gateway"]
    interfaces = [one for one in endpoints if one["VpcEndpointType"] == "Interface"]
    assert {text(one["ServiceName"]).rsplit(".", 1)[-1] for one in gateways} == {"s3", "dynamodb"}
    assert all(len(one["RouteTableIds"]) == 2 for one in gateways)
    assert {text(one["ServiceName"]).split(".", 3)[-1] for one in interfaces} == {
        "ssm",
        "ssmmessages",
        "ecr.api",
        "ecr.dkr",
        "logs",
        "sts",
    }
    for one in interfaces:
        assert one["SubnetIds"] == ["subnet-0123456789abcdef0", "subnet-0123456789abcdef1"]
        assert one["PrivateDnsEnabled"] is True


def test_runs_are_placed_in_the_subnets_that_were_given(guest_assembly: Assembly) -> None:
    told = text(guest_assembly.document["Outputs"][names.OUTPUT_SUBNETS]["Value"])
    assert told == "subnet-0123456789abcdef0=us-east-1a,subnet-0123456789abcdef1=us-east-1d"
    launches = [one for one in statements_of(guest_assembly) if one.sid == "LaunchFromOurParts"]
    assert launches
    for one in launches:
        assert WORLD.arn("ec2", "subnet/subnet-0123456789abcdef1") in one.resources


# ------------------------------------------------------------------------------------------------ drills, Spot's role
def test_drills_are_off_by_default(assembly: Assembly) -> None:
    assert not assembly.of("AWS::FIS::ExperimentTemplate")
    assert not [one for one in statements_of(assembly) if "ec2:SendSpotInstanceInterruptions" in one.actions]


def test_a_drill_takes_one_running_spot_node_of_this_stack(guest_assembly: Assembly) -> None:
    experiment = guest_assembly.only("AWS::FIS::ExperimentTemplate")
    (target,) = experiment["Targets"].values()
    assert target["ResourceType"] == "aws:ec2:spot-instance"
    assert target["ResourceTags"] == {tags.STACK: "team-d", tags.MANAGED: "true"}
    assert target["SelectionMode"] == "COUNT(1)"
    assert target["Filters"] == [{"Path": "State.Name", "Values": ["running"]}]
    (action,) = experiment["Actions"].values()
    assert action["ActionId"] == "aws:ec2:send-spot-instance-interruptions"
    assert action["Parameters"] == {"durationBeforeInterruption": "PT2M"}
    assert action["Targets"] == {"SpotInstances": next(iter(experiment["Targets"]))}
    assert "DrillExperiment" in guest_assembly.document["Outputs"]


def test_a_drill_can_take_nobody_elses_node_and_do_nothing_else(guest_assembly: Assembly) -> None:
    experiment = guest_assembly.only("AWS::FIS::ExperimentTemplate")
    role = [one for one in statements_of(guest_assembly) if f"<{one.role}.Arn>" == text(experiment["RoleArn"])]
    assert {action for one in role for action in one.actions} == {
        "ec2:DescribeInstances",
        "ec2:SendSpotInstanceInterruptions",
    }
    action, instance = "ec2:SendSpotInstanceInterruptions", f"{ARN}ec2:{HERE}:instance/i-0aaaaaaaaaaaaaaa1"
    launched = {
        f"ec2:ResourceTag/{key}": value for key, value in tags.of_launch(stack="team-d", run="r", launch=1).items()
    }
    assert decide(role, action, instance, launched)
    assert not decide(role, action, instance, {})
    assert not decide(role, action, instance, {**launched, f"ec2:ResourceTag/{tags.STACK}": "another"})
    by_hand = {key: value for key, value in launched.items() if not key.endswith(tags.LAUNCH)}
    assert not decide(role, action, instance, by_hand)


def test_only_experiments_of_this_account_become_the_drills_role(guest_assembly: Assembly) -> None:
    trusts = [
        statement
        for role in guest_assembly.of("AWS::IAM::Role").values()
        for statement in role["AssumeRolePolicyDocument"]["Statement"]
        if statement["Principal"] == {"Service": "fis.amazonaws.com"}
    ]
    (trust,) = trusts
    assert text(trust["Condition"]["StringEquals"]["aws:SourceAccount"]) == "<AWS::AccountId>"
    assert text(trust["Condition"]["ArnLike"]["aws:SourceArn"]).endswith(":experiment/*")


def test_IAM_03_an_account_that_never_used_spot_can_have_exactly_spots_role_made(
    assembly: Assembly, guest_assembly: Assembly
) -> None:
    assert not assembly.of("AWS::IAM::ServiceLinkedRole")
    assert guest_assembly.only("AWS::IAM::ServiceLinkedRole") == {"AWSServiceName": "spot.amazonaws.com"}
    (role,) = [r for r in guest_assembly.resources().values() if r["Type"] == "AWS::IAM::ServiceLinkedRole"]
    assert role["DeletionPolicy"] == "Retain"  # other stacks of the account use it too
    assert not [action for one in statements_of(guest_assembly) for action in one.actions if "ServiceLinked" in action]

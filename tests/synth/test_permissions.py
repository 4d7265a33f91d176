"""What the roles of the template may do, and above all what they may not: decided statement by statement."""

from __future__ import annotations

import pytest

from lambdas.decisions import request
from spotproof.contract import keys, tags
from spotproof.contract.names import FUNCTIONS, Function
from tests.synth.policy import ARN, HERE, Statement, decide, estate_of, statements_of
from tests.synth.template import Assembly, text

INSTANCE = f"{ARN}ec2:{HERE}:instance/i-0aaaaaaaaaaaaaaa1"
OURS = {tags.STACK: "spotproof"}
LAUNCHED = {tags.MANAGED: "true", **OURS, tags.RUN: "r", tags.LAUNCH: "1"}
ACTORS = (Function.INTERRUPTION, Function.SIGNALS, Function.REPAIR)
by_actor = pytest.mark.parametrize("actor", ACTORS, ids=lambda one: one.value)
TABLE_WRITES = ("dynamodb:PutItem", "dynamodb:UpdateItem")


def may(statements: list[Statement], action: str, resource: str, prefix: str, given: dict[str, str]) -> bool:
    """Whether `action` is allowed with tags as `prefix/<key>` in the request's context."""
    return decide(statements, action, resource, {f"{prefix}/{key}": value for key, value in given.items()})


def role_of(assembly: Assembly, function: Function) -> list[Statement]:
    """The statements of a function's role."""
    handler = next(row.handler for row in FUNCTIONS if row.function is function)
    (role,) = [text(one["Role"]) for one in assembly.of("AWS::Lambda::Function").values() if one["Handler"] == handler]
    name = role.strip("<>").removesuffix(".Arn")
    return [one for one in statements_of(assembly) if one.role == name]


def node_role(assembly: Assembly) -> list[Statement]:
    profile = assembly.only("AWS::IAM::InstanceProfile")
    name = text(profile["Roles"][0]).strip("<>")
    return [one for one in statements_of(assembly) if one.role == name]


def table(assembly: Assembly) -> str:
    return estate_of(assembly).table


def bucket(assembly: Assembly) -> str:
    return estate_of(assembly).bucket


def document(assembly: Assembly) -> str:
    return estate_of(assembly).document


def leading(partition: str) -> dict[str, str]:
    return {"dynamodb:LeadingKeys": partition}


@by_actor
def test_IAM_01_send_command_is_allowed_on_our_document_and_on_tagged_ec2_instances_only(
    assembly: Assembly, actor: Function
) -> None:
    role, action = role_of(assembly, actor), "ssm:SendCommand"
    assert decide(role, action, document(assembly), {})
    assert may(role, action, INSTANCE, "ssm:resourceTag", OURS)
    assert not decide(role, action, INSTANCE, {})
    assert not may(role, action, INSTANCE, "ssm:resourceTag", {tags.STACK: "another"})
    assert not decide(role, action, f"{ARN}ssm:{HERE}:document/AWS-RunShellScript", {})
    assert not may(role, action, f"{ARN}ssm:{HERE}:managed-instance/mi-1", "ssm:resourceTag", OURS)


def test_IAM_02_no_statement_has_a_document_and_an_instance_or_a_document_with_a_condition(assembly: Assembly) -> None:
    sends = [one for one in statements_of(assembly) if "ssm:SendCommand" in one.actions]
    assert sends
    for one in sends:
        kinds = {"document" if ":document/" in resource else "instance" for resource in one.resources}
        assert len(kinds) == 1, one.sid
        assert bool(one.conditions) == (kinds == {"instance"}), one.sid


def test_IAM_04_a_role_passes_the_one_node_role_to_ec2_and_nothing_else(assembly: Assembly) -> None:
    node = estate_of(assembly).node_role
    passes = [one for one in statements_of(assembly) if "iam:PassRole" in one.actions]
    assert len({one.role for one in passes}) == len(passes) == len(ACTORS)
    for one in passes:
        assert one.actions == ("iam:PassRole",)
        assert one.resources == (node,)
        assert one.conditions == {"StringEquals": {"iam:PassedToService": ("ec2.amazonaws.com",)}}


@by_actor
def test_a_launch_needs_our_tags_and_our_parts(assembly: Assembly, actor: Function) -> None:
    role = role_of(assembly, actor)
    template = estate_of(assembly).template
    for action in ("ec2:CreateFleet", "ec2:RunInstances"):
        assert decide(role, action, template, {})
        assert not decide(role, action, f"{ARN}ec2:{HERE}:launch-template/lt-0another", {})
        assert not decide(role, action, f"{ARN}ec2:{HERE}:subnet/subnet-0another", {})
        for kind in ("instance", "volume", "fleet" if action == "ec2:CreateFleet" else "network-interface"):
            made = f"{ARN}ec2:{HERE}:{kind}/*"
            assert may(role, action, made, "aws:RequestTag", LAUNCHED)
            assert not may(role, action, made, "aws:RequestTag", {**LAUNCHED, tags.STACK: "another"})
            assert not decide(role, action, made, {})
        image = f"{ARN}ec2:us-east-1::image/ami-1"
        assert decide(role, action, image, {"ec2:Owner": "amazon"})
        assert not decide(role, action, image, {"ec2:Owner": "999999999999"})


@by_actor
def test_what_a_launch_asks_for_is_what_its_role_allows(assembly: Assembly, actor: Function) -> None:
    role, given = role_of(assembly, actor), request.tags_of(stack="spotproof", run="r", launch=1)
    for kind in request.TAGGED:
        # A fleet's interfaces are no resource of CreateFleet: EC2 asks for them as RunInstances.
        action = "ec2:RunInstances" if kind == "network-interface" else "ec2:CreateFleet"
        assert may(role, action, f"{ARN}ec2:{HERE}:{kind}/*", "aws:RequestTag", given), kind
    assert decide(role, "ec2:RunInstances", f"{ARN}ec2:{HERE}:spot-instances-request/*", {})


@by_actor
def test_tags_are_given_only_while_launching(assembly: Assembly, actor: Function) -> None:
    role, tagged = role_of(assembly, actor), {f"aws:RequestTag/{key}": value for key, value in LAUNCHED.items()}
    assert decide(role, "ec2:CreateTags", INSTANCE, {**tagged, "ec2:CreateAction": "RunInstances"})
    assert not decide(role, "ec2:CreateTags", INSTANCE, tagged)


@by_actor
def test_only_what_we_launched_can_be_ended(assembly: Assembly, actor: Function) -> None:
    role, action, seen = role_of(assembly, actor), "ec2:TerminateInstances", "ec2:ResourceTag"
    assert may(role, action, INSTANCE, seen, LAUNCHED)
    assert not may(role, action, INSTANCE, seen, {tags.STACK: "spotproof", tags.RUN: "r"})  # hand-tagged
    assert not may(role, action, INSTANCE, seen, {**LAUNCHED, tags.STACK: "another"})
    assert not decide(role, action, INSTANCE, {})


@by_actor
def test_the_control_plane_writes_its_own_items(assembly: Assembly, actor: Function) -> None:
    role, where = role_of(assembly, actor), table(assembly)
    for partition in (keys.run_partition("r"), "INSTANCE#i-1", keys.pool_partition("us-east-1")):
        assert all(decide(role, action, where, leading(partition)) for action in TABLE_WRITES)
        assert not decide(role, "dynamodb:BatchWriteItem", where, leading(partition))
    assert decide(role, "dynamodb:BatchWriteItem", where, leading(keys.history_partition("r")))
    assert not decide(role, "dynamodb:PutItem", where, leading(keys.history_partition("r")))
    assert decide(role, "dynamodb:DeleteItem", where, leading(keys.run_partition("r")))  # its launcher lease
    assert not decide(role, "dynamodb:DeleteItem", where, leading(keys.history_partition("r")))


@by_actor
def test_who_hears_of_losses_looks_at_runs_in_a_transaction_and_at_nothing_else(
    assembly: Assembly, actor: Function
) -> None:
    role, where, look = role_of(assembly, actor), table(assembly), "dynamodb:ConditionCheckItem"
    assert decide(role, look, where, leading(keys.run_partition("r"))) == (actor is not Function.REPAIR)
    for partition in ("INSTANCE#i-1", keys.live_partition(3), keys.history_partition("r")):
        assert not decide(role, look, where, leading(partition))


@by_actor
def test_only_repair_writes_the_index_and_what_is_the_nodes(assembly: Assembly, actor: Function) -> None:
    role, where, repairs = role_of(assembly, actor), table(assembly), actor is Function.REPAIR
    for action in (*TABLE_WRITES, "dynamodb:ConditionCheckItem"):
        assert decide(role, action, where, leading(keys.node_partition("r"))) == repairs
    for action in ("dynamodb:UpdateItem", "dynamodb:DeleteItem"):
        assert decide(role, action, where, leading(keys.live_partition(3))) == repairs
    assert not decide(role, "dynamodb:DeleteItem", where, leading(keys.node_partition("r")))
    for action in ("s3:GetObject", "s3:PutObject"):
        assert decide(role, action, f"{bucket(assembly)}/runs/r/checkpoints/0-1/manifest.json", {}) == repairs
    assert not [action for one in role for action in one.actions if action.startswith("s3:Delete")]


def test_the_sweep_reads_its_index_and_sends_to_repair_and_nothing_else(assembly: Assembly) -> None:
    role = role_of(assembly, Function.SWEEP)
    actions = {action for one in role for action in one.actions}
    assert actions == {"dynamodb:Query", "sqs:SendMessage", "logs:CreateLogStream", "logs:PutLogEvents"}
    assert decide(role, "dynamodb:Query", table(assembly), leading(keys.live_partition(0)))
    assert not decide(role, "dynamodb:Query", table(assembly), leading(keys.run_partition("r")))


def test_the_collection_deletes_checkpoints_and_chunks_and_writes_nothing(assembly: Assembly) -> None:
    role, ours = role_of(assembly, Function.COLLECT), bucket(assembly)
    actions = {action for one in role for action in one.actions}
    reads = {"dynamodb:GetItem", "dynamodb:Query", "s3:GetObject", "s3:ListBucket"}
    assert actions == {*reads, "s3:DeleteObject", "sqs:SendMessage", "logs:CreateLogStream", "logs:PutLogEvents"}
    for key in ("runs/r/blobs/0", "runs/r/checkpoints/00000001-000000000001/manifest.json"):
        assert decide(role, "s3:DeleteObject", f"{ours}/{key}", {})
    for key in ("other", "runs/r/workspace/0", "runs/r"):
        assert not decide(role, "s3:DeleteObject", f"{ours}/{key}", {})
    assert decide(role, "dynamodb:GetItem", table(assembly), leading(keys.node_partition("r")))
    assert not decide(role, "dynamodb:GetItem", table(assembly), leading("HIST#r"))


def test_a_node_writes_only_node_items(assembly: Assembly) -> None:
    role, where = node_role(assembly), table(assembly)
    shard = keys.node_shard_partition("r", 1)
    for action in (*TABLE_WRITES, "dynamodb:ConditionCheckItem"):
        assert decide(role, action, where, leading(keys.node_partition("r")))
        assert decide(role, action, where, leading(shard))
        for partition in (keys.run_partition("r"), "INSTANCE#i-1", "LIVE#3", "POOL#us-east-1", "HIST#r"):
            assert not decide(role, action, where, leading(partition))
    assert decide(role, "dynamodb:GetItem", where, leading(keys.run_partition("r")))
    assert not decide(role, "dynamodb:Query", where, leading("LIVE#3"))


def test_a_node_cannot_delete_anything(assembly: Assembly, nat_assembly: Assembly) -> None:
    for one in (assembly, nat_assembly):
        actions = {action for statement in node_role(one) for action in statement.actions}
        assert actions
        assert not [action for action in actions if "*" in action or "Delete" in action]


def test_a_node_reaches_the_runs_prefix_of_the_bucket_only(assembly: Assembly) -> None:
    role, ours = node_role(assembly), bucket(assembly)
    for action in ("s3:GetObject", "s3:PutObject"):
        assert decide(role, action, f"{ours}/runs/r/blobs/0", {})
        assert not decide(role, action, f"{ours}/other", {})
        assert not decide(role, action, f"{ARN}s3:::corpus/a", {})
    assert decide(role, "s3:ListBucket", ours, {})
    assert not decide(role, "s3:ListBucket", f"{ARN}s3:::corpus", {})


def test_training_data_can_be_read_and_not_written(nat_assembly: Assembly) -> None:
    role = node_role(nat_assembly)
    assert decide(role, "s3:GetObject", f"{ARN}s3:::corpus/shard-0", {})
    assert not decide(role, "s3:PutObject", f"{ARN}s3:::corpus/shard-0", {})


def test_a_node_reads_no_parameter_and_no_other_document(assembly: Assembly) -> None:
    actions = {action for statement in node_role(assembly) for action in statement.actions}
    assert not actions & {"ssm:GetParameter", "ssm:GetParameters", "ssm:GetDocument", "ssm:SendCommand"}


def test_there_are_no_managed_policies_and_no_policies_beside_the_roles(assembly: Assembly) -> None:
    roles = assembly.of("AWS::IAM::Role").values()
    assert roles
    assert not [role for role in roles if role.get("ManagedPolicyArns")]
    assert not assembly.of("AWS::IAM::Policy")
    assert not assembly.of("AWS::IAM::ManagedPolicy")


def test_no_action_is_a_wildcard_and_star_stands_alone_only_where_nothing_else_can(assembly: Assembly) -> None:
    may_be_star = {"SeeInstances", "SeeMarket", "SsmChannel", "ImageLogin"}
    for one in statements_of(assembly):
        assert not [action for action in one.actions if "*" in action], one.sid
        assert "*" not in one.resources or one.sid in may_be_star, one.sid


@by_actor
def test_a_fleets_overrides_cannot_name_another_profile(assembly: Assembly, actor: Function) -> None:
    (lock,) = [one for one in role_of(assembly, actor) if one.effect == "Deny"]
    assert lock.conditions == {
        "ArnNotEquals": {"ec2:InstanceProfile": (estate_of(assembly).profile,)},
        "Null": {"ec2:InstanceProfile": ("false",)},
    }
    tagged = {f"aws:RequestTag/{key}": value for key, value in LAUNCHED.items()}
    made = f"{ARN}ec2:{HERE}:instance/*"
    for action in ("ec2:CreateFleet", "ec2:RunInstances"):
        assert decide([lock], action, made, tagged) is False
        assert decide(role_of(assembly, actor), action, made, tagged)  # where EC2 does not tell the profile yet


def test_nobody_may_change_the_template_the_document_or_a_fleet(assembly: Assembly) -> None:
    actions = {action for one in statements_of(assembly) for action in one.actions}
    forbidden = {"ec2:CreateLaunchTemplateVersion", "ec2:ModifyLaunchTemplate", "ec2:DeleteFleets"}
    forbidden |= {"ssm:UpdateDocument", "ssm:UpdateDocumentDefaultVersion", "ec2:ModifyInstanceMetadataOptions"}
    assert not actions & forbidden

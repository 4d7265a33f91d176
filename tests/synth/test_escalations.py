"""Every escalation path of the threat list is tried against the roles of the template, in each network mode."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rehearsal.permissions.attempt import Attempt
from rehearsal.permissions.escalations import attempts
from rehearsal.permissions.estate import NODE, PIPELINE, Estate
from rehearsal.permissions.evaluate import Statement
from spotproof.contract.names import Function
from tests.synth.policy import WORLD, estate_of
from tests.synth.template import Assembly, text, texts

# The threat list (a path and its lock) and the attack that tries it.
LOCKS = {
    "pass another role": "boot machines with any role",
    "pass the node role elsewhere": "hand the node role to a function",
    "override the instance profile": "override the template's instance profile",
    "override the image": "boot a stranger's image",
    "another template": "launch from another template",
    "another network": "launch into another network",
    "another security group": "open the nodes' network",
    "inject user data": "put user data into the template",
    "launch what nobody finds": "launch an untagged instance",
    "launch in another's name": "launch a instance in another stack's name",
    "run any command": "run any command",
    "run an own document": "run a document of its own",
    "change the document": "change the document",
    "command a machine that did not opt in": "command a machine that has not opted in",
    "command another stack's machine": "command another stack's machine",
    "set the opt-in tag": "tag a machine that exists",
    "end a machine without tags": "end a machine without tags",
    "end a hand-tagged machine": "end a machine that a person opted in",
    "end another stack's machine": "end another stack's machine",
    "end by the fleet": "end a whole fleet",
    "another table": "write another table",
    "control keys by a function that may not": "move the pointer",
    "the sweep forges notices": "forge notices",
    "the guard helps to destroy": "call DeleteStack",
}
NODE_LOCKS = {
    "write RUN#demo",
    "write INSTANCE#i-1",
    "write LIVE#0",
    "write POOL#us-east-1",
    "write HIST#demo",
    "delete an item",
    "call DeleteObject",
    "call DeleteObjectVersion",
    "reach beside the runs",
    "reach another bucket",
    "call ssm:SendCommand",
    "call ssm:GetParameter",
    "call iam:PassRole",
    "call ec2:CreateTags",
    "call ec2:CreateFleet",
    "call ec2:TerminateInstances",
}


def failures(estate: Estate) -> list[str]:
    return [said for one in attempts(estate) if (said := one.fails(estate))]


def test_every_attack_is_refused_in_every_network_mode(
    assembly: Assembly, strict_assembly: Assembly, nat_assembly: Assembly
) -> None:
    for one in (assembly, strict_assembly, nat_assembly):
        assert failures(estate_of(one)) == []


def test_every_lock_of_the_threat_list_is_tried(assembly: Assembly) -> None:
    tried = attempts(estate_of(assembly))
    names = {one.name for one in tried}
    assert {path: name for path, name in LOCKS.items() if name not in names} == {}
    assert {one.name for one in tried if one.actor == NODE} >= NODE_LOCKS
    assert {one.actor for one in tried} >= {*PIPELINE, NODE, Function.SWEEP, Function.GUARD}
    assert len(names) >= 60


def test_an_attack_differs_from_what_is_allowed(assembly: Assembly) -> None:
    for one in attempts(estate_of(assembly)):
        assert one.attack != one.twin, one.name


def widened(estate: Estate, actor: str, *, action: str, resource: str = "*") -> Estate:
    more = Statement(sid="More", effect="Allow", actions=(action,), resources=(resource,))
    return replace(estate, statements={**estate.statements, actor: (*estate.statements[actor], more)})


@pytest.mark.parametrize(
    ("actor", "action"),
    [
        (NODE, "dynamodb:*"),
        (NODE, "s3:Delete*"),
        (NODE, "ssm:GetParameter"),
        (Function.INTERRUPTION, "iam:PassRole"),
        (Function.SIGNALS, "ec2:TerminateInstances"),
        (Function.REPAIR, "ssm:SendCommand"),
        (Function.SWEEP, "sqs:SendMessage"),
        (Function.INTERRUPTION, "ec2:CreateTags"),
    ],
)
def test_a_wider_role_is_noticed(assembly: Assembly, actor: str, action: str) -> None:
    said = failures(widened(estate_of(assembly), str(actor), action=action))
    assert said
    assert all(one.startswith(f"{actor} may ") for one in said)


def test_a_wider_role_is_noticed_whatever_its_condition_says(assembly: Assembly) -> None:
    estate = estate_of(assembly)
    more = Statement(
        sid="More",
        effect="Allow",
        actions=("ec2:CreateFleet",),
        resources=(estate.template,),
        conditions={"StringEquals": {"aws:RequestTag/team": ("a",)}},
    )
    wider = {**estate.statements, NODE: (*estate.statements[NODE], more)}
    (said,) = failures(replace(estate, statements=wider))
    assert said.startswith("node may call ec2:CreateFleet")


def test_a_lost_lock_on_the_profile_is_noticed(assembly: Assembly) -> None:
    estate = estate_of(assembly)
    unlocked = {who: tuple(one for one in of if one.effect == "Allow") for who, of in estate.statements.items()}
    said = failures(replace(estate, statements=unlocked))
    assert len(said) == 2 * len(PIPELINE)
    assert all("instance profile" in one for one in said)


def test_an_attack_that_proves_nothing_is_noticed(assembly: Assembly) -> None:
    estate = estate_of(assembly)
    (one, *_) = attempts(estate)
    lost = replace(one, twin=replace(one.twin, action="iam:PassRol"))
    assert isinstance(lost, Attempt)
    assert "proves nothing" in lost.fails(estate)


def test_only_the_services_themselves_can_become_a_role(assembly: Assembly) -> None:
    allowed = {"lambda.amazonaws.com", "ec2.amazonaws.com", "scheduler.amazonaws.com"}
    for name, role in assembly.of("AWS::IAM::Role").items():
        (statement,) = role["AssumeRolePolicyDocument"]["Statement"]
        assert statement["Action"] == "sts:AssumeRole", name
        assert set(statement["Principal"]) == {"Service"}, name
        assert set(texts(statement["Principal"]["Service"])) <= allowed, name


def test_nobody_speaks_to_a_queue_but_the_stacks_own_rules(assembly: Assembly) -> None:
    policies = assembly.of("AWS::SQS::QueuePolicy")
    assert policies
    for name, policy in policies.items():
        for statement in policy["PolicyDocument"]["Statement"]:
            if statement["Effect"] == "Allow":
                assert statement["Principal"] == {"Service": "events.amazonaws.com"}, name
                source = text(statement["Condition"]["ArnEquals"]["aws:SourceArn"])
                assert source.strip("<>").removesuffix(".Arn") in assembly.of("AWS::Events::Rule"), name


def test_the_world_of_the_template_is_one_account(assembly: Assembly) -> None:
    estate = estate_of(assembly)
    assert WORLD.account in estate.table
    assert all("<" not in resource for of in estate.statements.values() for one in of for resource in one.resources)

"""The roles of a synthesized template, its references resolved as a deployment would, for the rehearsal's evaluator."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from rehearsal.permissions import evaluate
from rehearsal.permissions.estate import NODE, Estate, schedule_of
from rehearsal.permissions.requests import Request, Value
from rehearsal.permissions.world import World
from spotproof.contract import tags
from spotproof.contract.names import FUNCTIONS
from tests.synth.template import Assembly, text, texts

WORLD: Final = World(partition="aws", region="us-east-1", account="111122223333")
ARN: Final = "arn:aws:"
HERE: Final = f"{WORLD.region}:{WORLD.account}"
_PSEUDO: Final = {
    "<AWS::Partition>": WORLD.partition,
    "<AWS::Region>": WORLD.region,
    "<AWS::AccountId>": WORLD.account,
}
_SHAPES: Final = {
    "AWS::DynamoDB::Table": f"{ARN}dynamodb:{HERE}:table/",
    "AWS::IAM::InstanceProfile": f"{ARN}iam::{WORLD.account}:instance-profile/",
    "AWS::IAM::Role": f"{ARN}iam::{WORLD.account}:role/",
    "AWS::Lambda::Function": f"{ARN}lambda:{HERE}:function:",
    "AWS::S3::Bucket": f"{ARN}s3:::",
    "AWS::SQS::Queue": f"{ARN}sqs:{HERE}:",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Statement(evaluate.Statement):
    """A statement and the logical id of the role that has it."""

    role: str


def resolved(assembly: Assembly, value: Any) -> str:
    """An intrinsic function as the text that it will be. Names of resources are their logical ids."""
    resources = assembly.resources()

    def arn(match: re.Match[str]) -> str:
        return f"{_SHAPES[resources[match[1]]['Type']]}{match[1]}"

    said = text(value)
    for pseudo, instead in _PSEUDO.items():
        said = said.replace(pseudo, instead)
    said = re.sub(r"<(\w+)\.Arn>", arn, said)
    return re.sub(r"<(\w+)(?:\.GroupId|\.QueueName)?>", lambda match: _reference(resources, match[1]), said)


def _reference(resources: Mapping[str, Any], name: str) -> str:
    """What Ref of a resource is: a topic's is its ARN, most others' a name."""
    return f"{ARN}sns:{HERE}:{name}" if resources[name]["Type"] == "AWS::SNS::Topic" else name


def statements_of(assembly: Assembly) -> list[Statement]:
    """Every statement of every role's own policies."""

    def plain(value: Any) -> Any:
        if isinstance(value, list):
            return [plain(one) for one in value]
        if isinstance(value, dict) and not any(key == "Ref" or key.startswith("Fn::") for key in value):
            return {key: plain(one) for key, one in value.items()}
        return resolved(assembly, value)

    return [
        Statement(
            role=name,
            sid=one.sid,
            effect=one.effect,
            actions=one.actions,
            resources=one.resources,
            conditions=one.conditions,
        )
        for name, role in assembly.of("AWS::IAM::Role").items()
        for policy in role.get("Policies", [])
        for one in evaluate.statements_of(plain(policy["PolicyDocument"]))
    ]


def decide(statements: Iterable[Statement], action: str, resource: str, context: Mapping[str, Value]) -> bool:
    """Allowed by a statement and denied by none."""
    return evaluate.decide(statements, Request(action=action, resource=resource, context=context)).allowed


def estate_of(assembly: Assembly) -> Estate:
    """The stack that a deployment of this template would make."""

    def only(resource_type: str, name: str = "Arn") -> str:
        (found,) = assembly.of(resource_type)
        return resolved(assembly, {"Fn::GetAtt": [found, name]} if name else {"Ref": found})

    functions = {_function_of(one): name for name, one in assembly.of("AWS::Lambda::Function").items()}
    properties = {who: assembly.of("AWS::Lambda::Function")[name] for who, name in functions.items()}
    roles = {text(one["Role"]).strip("<>").removesuffix(".Arn"): who for who, one in properties.items()}
    node = text(assembly.only("AWS::IAM::InstanceProfile")["Roles"][0]).strip("<>")
    roles |= {node: NODE}
    data = assembly.only("AWS::EC2::LaunchTemplate")["LaunchTemplateData"]
    groups = {who: resolved(assembly, one["LoggingConfig"]["LogGroup"]) for who, one in properties.items()}
    groups[NODE] = next(name for name in assembly.of("AWS::Logs::LogGroup") if name not in groups.values())
    statements = statements_of(assembly)
    ticked = {one.role: one.resources[0].rsplit(":", 1)[-1] for one in statements if one.sid == "Tick"}
    schedules = {
        role: schedule_of(next(who for who, one in functions.items() if one == name)) for role, name in ticked.items()
    }
    return Estate(
        world=WORLD,
        stack=stack_of(assembly),
        table=only("AWS::DynamoDB::Table"),
        bucket=only("AWS::S3::Bucket"),
        document=WORLD.arn("ssm", f"document/{only('AWS::SSM::Document', '')}"),
        template=WORLD.arn("ec2", f"launch-template/{only('AWS::EC2::LaunchTemplate', '')}"),
        subnet=WORLD.arn("ec2", f"subnet/{_subnets(statements)[0]}"),
        security_group=WORLD.arn("ec2", f"security-group/{resolved(assembly, data['SecurityGroupIds'][0])}"),
        image=WORLD.public("ec2", "image/ami-1"),
        node_role=resolved(assembly, {"Fn::GetAtt": [node, "Arn"]}),
        profile=only("AWS::IAM::InstanceProfile"),
        topic=only("AWS::SNS::Topic", ""),
        queues={
            roles_of: resolved(assembly, one["EventSourceArn"])
            for one in assembly.of("AWS::Lambda::EventSourceMapping").values()
            for roles_of, name in functions.items()
            if texts(one["FunctionName"]) == [f"<{name}>"]
        },
        functions={who: resolved(assembly, {"Fn::GetAtt": [name, "Arn"]}) for who, name in functions.items()},
        log_groups=groups,
        statements={
            who: tuple(one for one in statements if one.role == role) for role, who in {**roles, **schedules}.items()
        },
    )


def _function_of(properties: Mapping[str, Any]) -> str:
    return next(row.function.value for row in FUNCTIONS if row.handler == properties["Handler"])


def _subnets(statements: Iterable[Statement]) -> list[str]:
    return [resource.rsplit("/", 1)[-1] for one in statements for resource in one.resources if ":subnet/" in resource]


def stack_of(assembly: Assembly) -> str:
    """The stack's name, as its instances are tagged."""
    data = assembly.only("AWS::EC2::LaunchTemplate")["LaunchTemplateData"]
    given = {tag["Key"]: tag["Value"] for tag in data["TagSpecifications"][0]["Tags"]}
    return str(given[tags.STACK])

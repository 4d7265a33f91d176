"""Reads estate and world out of the emulated account: policies from IAM, everything else as it was deployed."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from rehearsal.permissions.estate import NODE, Estate, schedule_of
from rehearsal.permissions.evaluate import Statement, Unsupported, statements_of
from rehearsal.permissions.world import Template, World
from rehearsal.plane.resources import Resource
from rehearsal.region import Region
from spotproof.contract import names, tags

PARTITION: Final = "aws"
TOOLKIT: Final = "CDKToolkit"
AMAZON: Final = "amazon"  # ec2:Owner of images that a public parameter names
_FUNCTION_OF: Final = {row.handler: row.function.value for row in names.FUNCTIONS}


@dataclass(frozen=True, slots=True, kw_only=True)
class Deployed:
    """The estate, and which actor each deployed role is."""

    estate: Estate
    actors: Mapping[str, str]  # role name -> actor


def read(region: Region, outputs: Mapping[str, str]) -> Deployed:
    """The stack as IAM and CloudFormation know it now. Raises Unsupported for a policy that cannot be judged."""
    functions = {_FUNCTION_OF[one.properties["Handler"]]: one for one in region.deployed.of("AWS::Lambda::Function")}
    template_id, version = outputs[names.OUTPUT_TEMPLATE_ID], outputs[names.OUTPUT_TEMPLATE_VERSION]
    world = World(partition=PARTITION, region=region.region, account=region.account.id, templates=_templates(region))
    template = world.templates[template_id, version]
    actors = _actors(region, functions, template)
    groups = {who: str(one.properties["LoggingConfig"]["LogGroup"]) for who, one in functions.items()}
    groups[NODE] = next(log for log in _log_groups(region) if log not in groups.values())
    estate = Estate(
        world=world,
        stack=_stack_tag(template),
        table=world.arn("dynamodb", f"table/{outputs[names.OUTPUT_TABLE]}"),
        bucket=world.bucket(outputs[names.OUTPUT_BUCKET]),
        document=world.arn("ssm", f"document/{_only(region, 'AWS::SSM::Document').physical_id}"),
        template=world.arn("ec2", f"launch-template/{template_id}"),
        subnet=world.arn("ec2", f"subnet/{outputs[names.OUTPUT_SUBNETS].partition('=')[0]}"),
        security_group=world.arn("ec2", f"security-group/{template.security_groups[0]}"),
        image=world.public("ec2", f"image/{template.image}"),
        node_role=template.role,
        profile=template.profile,
        topic=outputs[names.OUTPUT_TOPIC],
        queues=_queues(region, functions),
        functions={who: world.arn("lambda", f"function:{one.physical_id}") for who, one in functions.items()},
        log_groups=groups,
        statements={who: _statements(region, role) for role, who in actors.items()},
    )
    return Deployed(estate=estate, actors=actors)


def _only(region: Region, resource_type: str) -> Resource:
    (one,) = region.deployed.of(resource_type)
    return one


def _stack_tag(template: Template) -> str:
    return template.tags["volume"][tags.STACK]


def _log_groups(region: Region) -> list[str]:
    return [one.physical_id for one in region.deployed.of("AWS::Logs::LogGroup")]


def _queues(region: Region, functions: Mapping[str, Resource]) -> dict[str, str]:
    read_by = {mapping.function: mapping.queue_arn for mapping in region.pollers.mappings()}
    return {who: read_by[one.physical_id] for who, one in functions.items() if one.physical_id in read_by}


def _actors(region: Region, functions: Mapping[str, Resource], template: Template) -> dict[str, str]:
    """Whose each role is. A role that nobody uses keeps its own name: its grants are then unused."""
    found = {_name(one.properties["Role"]): who for who, one in functions.items()}
    found[_name(template.role)] = NODE
    named = {one.physical_id: who for who, one in functions.items()}
    for one in region.deployed.of("AWS::Scheduler::Schedule"):
        target = one.properties["Target"]
        found[_name(target["RoleArn"])] = schedule_of(named[str(target["Arn"]).rsplit(":", 1)[-1]])
    roles = [one.physical_id for one in region.deployed.of("AWS::IAM::Role") if one.stack != TOOLKIT]
    return {role: found.get(role, role) for role in roles}


def _name(role_arn: str) -> str:
    return str(role_arn).rsplit("/", 1)[-1]


def _statements(region: Region, role: str) -> tuple[Statement, ...]:
    iam = region.client("iam")
    if iam.list_attached_role_policies(RoleName=role)["AttachedPolicies"]:
        raise Unsupported(f"{role} has managed policies: write out what it needs instead")
    inline = iam.list_role_policies(RoleName=role)["PolicyNames"]
    documents = [policy(region, role, name) for name in inline]
    return tuple(statement for document in documents for statement in statements_of(document))


def policy(region: Region, role: str, name: str) -> dict[str, Any]:
    """One inline policy of a role as it is now."""
    answered = region.client("iam").get_role_policy(RoleName=role, PolicyName=name)["PolicyDocument"]
    # moto answers with what CloudFormation gave it, a dict's text, where AWS answers with JSON.
    document: dict[str, Any] = ast.literal_eval(answered) if isinstance(answered, str) else answered
    return document


# ---------------------------------------------------------------------------------------------------- templates
def _templates(region: Region) -> dict[tuple[str, str], Template]:
    """Every version of the stack's launch templates."""
    ec2, found = region.client("ec2"), {}
    for one in region.deployed.of("AWS::EC2::LaunchTemplate"):
        answer = ec2.describe_launch_template_versions(LaunchTemplateId=one.physical_id)
        for version in answer["LaunchTemplateVersions"]:
            number = str(version["VersionNumber"])
            found[one.physical_id, number] = _template(region, version["LaunchTemplateData"])
    return found


def _template(region: Region, data: Mapping[str, Any]) -> Template:
    profile = str(data["IamInstanceProfile"]["Arn"])
    (role,) = region.client("iam").get_instance_profile(InstanceProfileName=_name(profile))["InstanceProfile"]["Roles"]
    return Template(
        profile=profile,
        role=str(role["Arn"]),
        image=str(data["ImageId"]),
        image_owner=AMAZON,
        security_groups=tuple(data["SecurityGroupIds"]),
        tags={
            one["ResourceType"]: {tag["Key"]: tag["Value"] for tag in one["Tags"]}
            for one in data.get("TagSpecifications", [])
        },
    )

"""EC2 and Run Command: what one call to launch, end or command machines asks of IAM beside its own name.

Sources: Service Authorization Reference, EC2, IAM and Systems Manager; EC2 Fleet prerequisites (an instant fleet is
also authorized as RunInstances, as CreateTags for everything it tags, and as iam:PassRole for the template's role);
Systems Manager User Guide, "Restricting Run Command access based on tags".
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from rehearsal.permissions.requests import ANY, Request, Value, tagged
from rehearsal.permissions.world import Template, Underivable, World
from rehearsal.plane.calls import Call

_FLEET: Final = "ec2:CreateFleet"
_RUN: Final = "ec2:RunInstances"
_NO_FIXED_VERSION: Final = ("", "$Latest", "$Default", "$LATEST", "$DEFAULT")
# EC2 does not say whether it tags what an instant fleet launches on behalf of the fleet or of RunInstances.
_CREATORS: Final = ("CreateFleet", "RunInstances")
_OVERRIDES: Final = {"InstanceType", "SubnetId", "AvailabilityZone", "WeightedCapacity", "Priority"}


def describe(call: Call, world: World) -> tuple[Request, ...]:
    """DescribeInstances and the like: no resource, no condition."""
    del world
    return (Request(action=f"{call.service}:{call.operation}", resource=ANY),)


def terminate(call: Call, world: World) -> tuple[Request, ...]:
    """TerminateInstances: every instance, with the tags that it carried."""
    return tuple(
        Request(
            action="ec2:TerminateInstances",
            resource=world.arn("ec2", f"instance/{instance}"),
            context=tagged("ec2:ResourceTag", call.seen.get(instance, {}))
            | tagged("aws:ResourceTag", call.seen.get(instance, {})),
        )
        for instance in call.params["InstanceIds"]
    )


def send_command(call: Call, world: World) -> tuple[Request, ...]:
    """SendCommand: the document, and every instance that it is sent to, with the tags that it carried."""
    params = call.params
    if str(params.get("DocumentVersion", "")) in _NO_FIXED_VERSION:
        raise Underivable("SendCommand without a fixed DocumentVersion: anybody's next version would run on the nodes")
    send = "ssm:SendCommand"
    return (
        Request(action=send, resource=_document(str(params["DocumentName"]), world)),
        *(
            Request(
                action=send,
                resource=world.arn("ec2", f"instance/{instance}"),
                context=tagged("ssm:resourceTag", tags) | tagged("aws:ResourceTag", tags),
            )
            for instance, tags in call.seen.items()
        ),
    )


def _document(name: str, world: World) -> str:
    if name.startswith("arn:"):
        return name
    amazons = name.startswith(("AWS-", "AmazonCloudWatch-"))
    return world.public("ssm", f"document/{name}") if amazons else world.arn("ssm", f"document/{name}")


# ---------------------------------------------------------------------------------------------------- launches
def create_fleet(call: Call, world: World) -> tuple[Request, ...]:
    """CreateFleet, type instant: itself, RunInstances on every part, CreateTags on what is made, PassRole."""
    params = call.params
    given = _tags_of(params.get("TagSpecifications") or [])
    found: list[Request] = list(_made(_FLEET, "fleet", given, world, {}))
    for config in params["LaunchTemplateConfigs"]:
        specification = config["LaunchTemplateSpecification"]
        template = _template(specification, world)
        tags = {kind: {**template.tags.get(kind, {}), **given.get(kind, {})} for kind in (*template.tags, *given)}
        arn = world.arn("ec2", f"launch-template/{specification['LaunchTemplateId']}")
        shared: dict[str, Value] = {"ec2:LaunchTemplate": arn}
        found.append(Request(action=_FLEET, resource=arn))
        found.append(Request(action=_RUN, resource=arn, context=shared))
        for override in config.get("Overrides") or [{}]:
            found += _run(override, template, tags, world, shared=shared)
        found += _machine(params, template, tags, world, shared=shared)
        found.append(_pass(template))
    return (*found, *_tagging(given, world))


def _template(specification: Mapping[str, Any], world: World) -> Template:
    """The version that is named by number. Raises Underivable for one that may be another tomorrow."""
    version = str(specification.get("Version", ""))
    if version in _NO_FIXED_VERSION:
        raise Underivable(f"CreateFleet with template version {version!r}: a later version would be launched")
    known = world.templates.get((str(specification["LaunchTemplateId"]), version))
    if known is None:
        raise Underivable(f"CreateFleet with the unknown template {specification['LaunchTemplateId']} {version}")
    return known


def _run(
    override: Mapping[str, Any],
    template: Template,
    tags: Mapping[str, Mapping[str, str]],
    world: World,
    *,
    shared: Mapping[str, Value],
) -> Iterator[Request]:
    """The parts that an override chooses or leaves to the template."""
    unknown = set(override) - _OVERRIDES
    if unknown:
        raise Underivable(f"CreateFleet overrides {sorted(unknown)}, which can replace what the template fixes")
    theirs = {**shared, "ec2:IsLaunchTemplateResource": "true"}
    image = world.public("ec2", f"image/{template.image}")
    for action, context in ((_FLEET, {}), (_RUN, theirs)):
        yield Request(action=action, resource=image, context={**context, "ec2:Owner": template.image_owner})
        if "SubnetId" in override:
            subnet = world.arn("ec2", f"subnet/{override['SubnetId']}")
            chosen = {**shared, "ec2:IsLaunchTemplateResource": "false"} if context else {}
            yield Request(action=action, resource=subnet, context=chosen)
        instance = {"ec2:InstanceType": override["InstanceType"]} if "InstanceType" in override else {}
        profile = {**context, **instance, "ec2:InstanceProfile": template.profile}
        yield from _made(action, "instance", tags, world, profile)
    for group in template.security_groups:
        yield Request(action=_RUN, resource=world.arn("ec2", f"security-group/{group}"), context=theirs)


def _machine(
    params: Mapping[str, Any],
    template: Template,
    tags: Mapping[str, Mapping[str, str]],
    world: World,
    *,
    shared: Mapping[str, Value],
) -> Iterator[Request]:
    """What comes into being with every instance: disks, interfaces, and the spot request."""
    theirs = {**shared, "ec2:IsLaunchTemplateResource": "true"}
    yield Request(action=_RUN, resource=world.public("ec2", "snapshot/*"), context={"ec2:Owner": template.image_owner})
    yield from _made(_FLEET, "volume", tags, world, {})
    yield from _made(_RUN, "volume", tags, world, theirs)
    yield from _made(_RUN, "network-interface", tags, world, theirs)
    if params["TargetCapacitySpecification"].get("DefaultTargetCapacityType") != "on-demand":
        yield from _made(_RUN, "spot-instances-request", tags, world, {})
    # Tags that only the template gives are set by RunInstances.
    yield from (
        Request(action="ec2:CreateTags", resource=world.arn("ec2", f"{kind}/*"), context=_creating(of, "RunInstances"))
        for kind, of in template.tags.items()
    )


def _made(
    action: str, kind: str, tags: Mapping[str, Mapping[str, str]], world: World, context: Mapping[str, Value]
) -> Iterator[Request]:
    """A thing that does not exist yet: its ARN ends with a star, its tags are those of the request."""
    yield Request(
        action=action,
        resource=world.arn("ec2", f"{kind}/*"),
        context={**context, **tagged("aws:RequestTag", tags.get(kind, {})), **_tag_keys(tags.get(kind, {}))},
    )


def _tagging(given: Mapping[str, Mapping[str, str]], world: World) -> Iterator[Request]:
    for kind, tags in given.items():
        for creator in _CREATORS if kind != "fleet" else ("CreateFleet",):
            yield Request(
                action="ec2:CreateTags",
                resource=world.arn("ec2", f"{kind}/*"),
                context=_creating(tags, creator),
            )


def _creating(tags: Mapping[str, str], creator: str) -> dict[str, Value]:
    return {"ec2:CreateAction": creator, **tagged("aws:RequestTag", tags), **_tag_keys(tags)}


def _tag_keys(tags: Mapping[str, str]) -> dict[str, Value]:
    return {"aws:TagKeys": tuple(sorted(tags))} if tags else {}


def _pass(template: Template) -> Request:
    return Request(action="iam:PassRole", resource=template.role, context={"iam:PassedToService": "ec2.amazonaws.com"})


def _tags_of(specifications: list[Mapping[str, Any]]) -> dict[str, dict[str, str]]:
    found: dict[str, dict[str, str]] = {}
    for one in specifications:
        found.setdefault(one["ResourceType"], {}).update({tag["Key"]: tag["Value"] for tag in one.get("Tags") or []})
    return found

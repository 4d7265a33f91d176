"""What CloudFormation was told and what became of it: every resource of every stack, with its resolved properties.

moto creates only the types that it knows, skips the rest with a log line and still reports CREATE_COMPLETE. Here the
types that it lacks get a stand-in, so that all references resolve, and every resource's properties are kept as they
were resolved, so that the rest of the plane can act on them.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from moto.cloudformation import parsing
from moto.core.common_models import CloudFormationModel

Properties = dict[str, Any]
Apply = Callable[["Resource"], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Resource:
    """One deployed resource. `properties` are resolved: no Ref, no GetAtt. `model` is moto's object."""

    stack: str
    logical_id: str
    type: str
    physical_id: str
    properties: Properties
    model: Any


class StandIn(CloudFormationModel):
    """A resource of a type that moto does not model: it has an id and its properties, and nothing acts on it yet."""

    resource_type = ""
    answered = False  # of a custom resource: whether its function has said yes (see `stacks`)

    def __init__(self, name: str, properties: Properties, *, region: str, account_id: str) -> None:
        self.name = name
        self.properties = properties
        self.region = region
        self.account_id = account_id

    @property
    def physical_resource_id(self) -> str:
        return str(self.properties.get("Name") or self.properties.get("AlarmName") or self.name)

    @staticmethod
    def cloudformation_name_type() -> str:
        return ""

    @classmethod
    def cloudformation_type(cls) -> str:
        return cls.resource_type

    @classmethod
    def has_cfn_attr(cls, attr: str) -> bool:  # noqa: ARG003
        return True

    def get_cfn_attribute(self, attribute_name: str) -> str:
        """An ARN of the right service for `Arn`, the id for anything else."""
        if not attribute_name.endswith("Arn"):
            return self.physical_resource_id
        service, kind = self.resource_type.split("::")[1:]
        return f"arn:aws:{service.lower()}:{self.region}:{self.account_id}:{kind.lower()}/{self.physical_resource_id}"

    @classmethod
    def create_from_cloudformation_json(
        cls, resource_name: str, cloudformation_json: Properties, account_id: str, region_name: str, **kwargs: Any
    ) -> StandIn:
        del kwargs
        properties = cloudformation_json.get("Properties", {})
        return cls(resource_name, properties, region=region_name, account_id=account_id)

    @classmethod
    def update_from_cloudformation_json(
        cls, original_resource: StandIn, new_resource_name: str, cloudformation_json: Properties, *_: Any, **__: Any
    ) -> StandIn:
        del new_resource_name
        original_resource.properties = cloudformation_json.get("Properties", {})
        return original_resource

    @classmethod
    def delete_from_cloudformation_json(cls, *_: Any, **__: Any) -> None:
        return None


@functools.cache
def stand_in(resource_type: str) -> type[StandIn]:
    """The stand-in class of one type; moto tells resources apart by class."""
    return type("StandIn" + resource_type.replace("::", ""), (StandIn,), {"resource_type": resource_type})


class Deployed:
    """Every resource that CloudFormation made in this account, newest properties first. One instance is in force.

    `applied` maps a resource type to what must still be done after moto made it (see `dropped.py`).
    """

    def __init__(self, applied: dict[str, Apply]) -> None:
        self._resources: dict[tuple[str, str], Resource] = {}
        self._applied = applied

    def note(self, made: Any, stack: str, properties: Properties) -> None:
        """Keeps a resource that was created or updated, and applies what moto dropped of it."""
        if not hasattr(made, "physical_resource_id"):
            # Rules of security groups, among others: moto makes them and forgets to name them.
            made.physical_resource_id = f"{stack}-{made.logical_resource_id}"
        resource = Resource(
            stack=stack,
            logical_id=str(made.logical_resource_id),
            type=str(made.cf_resource_type),
            physical_id=str(made.physical_resource_id),
            properties=properties,
            model=made,
        )
        self._resources[stack, resource.logical_id] = resource
        apply = self._applied.get(resource.type)
        if apply is not None:
            apply(resource)

    def forget(self, stack: str, logical_id: str) -> None:
        """Drops a resource that its stack does not have any more, retained or not."""
        self._resources.pop((stack, logical_id), None)

    def of(self, resource_type: str, *, stack: str | None = None) -> list[Resource]:
        """The deployed resources of one type, in order of creation."""
        return [r for r in self if r.type == resource_type and stack in (None, r.stack)]

    def of_stack(self, stack: str) -> list[Resource]:
        return [one for one in self if one.stack == stack]

    def stacks(self) -> list[str]:
        return list(dict.fromkeys(stack for stack, _ in self._resources))

    def get(self, stack: str, logical_id: str) -> Resource | None:
        return self._resources.get((stack, logical_id))

    def __iter__(self) -> Any:
        return iter(list(self._resources.values()))


PATCHED = ("resource_class_from_type", "parse_and_create_resource", "parse_and_update_resource")


def install(deployed: Deployed) -> Callable[[], None]:
    """Puts stand-ins and note-taking into moto's CloudFormation; returns what takes them out again."""
    original = {name: getattr(parsing, name) for name in PATCHED}

    def class_of(resource_type: str) -> Any:
        # moto would call a custom resource's function in Docker: `stacks` asks it instead, when moto is done.
        known = resource_type in parsing.get_model_map()
        return original["resource_class_from_type"](resource_type) if known else stand_in(resource_type)

    def create(
        logical_id: str, resource_json: Properties, resources_map: Any, account_id: str, region_name: str
    ) -> Any:
        made = original["parse_and_create_resource"](logical_id, resource_json, resources_map, account_id, region_name)
        if made is not None:
            deployed.note(made, resources_map["AWS::StackName"], resolved(resource_json, resources_map))
        return made

    def update(
        logical_id: str, resource_json: Properties, resources_map: Any, account_id: str, region_name: str
    ) -> Any:
        resource_json = _in_place(resource_json, resources_map[logical_id])
        made = original["parse_and_update_resource"](logical_id, resource_json, resources_map, account_id, region_name)
        if made is not None:
            deployed.note(made, resources_map["AWS::StackName"], resolved(resource_json, resources_map))
        return made

    replacements = [(parsing, name, new) for name, new in zip(PATCHED, (class_of, create, update), strict=True)]
    return replaced([*replacements, (parsing.ResourceMap, "delete", _forgetting(deployed))])


def _forgetting(deployed: Deployed) -> Callable[[Any], None]:
    """Moto's own deletion of a stack's resources, noted: also of one whose call went past `stacks`."""
    delete_all = parsing.ResourceMap.delete

    def delete(resources: Any) -> None:
        delete_all(resources)
        for resource in deployed.of_stack(resources["AWS::StackName"]):
            deployed.forget(resource.stack, resource.logical_id)

    return delete


def replaced(replacements: list[tuple[Any, str, Any]]) -> Callable[[], None]:
    """Puts each replacement in the place of what its owner has under that name; returns what puts it all back."""
    before = [(owner, name, getattr(owner, name)) for owner, name, _ in replacements]

    def put(all_of_them: list[tuple[Any, str, Any]]) -> None:
        for owner, name, one in all_of_them:
            setattr(owner, name, one)

    put(replacements)
    return lambda: put(before)


def _in_place(resource_json: Properties, before: Any) -> Properties:
    """A rule's update as CloudFormation does it: moto makes another one under another name, and policies forget it."""
    if resource_json["Type"] != "AWS::Events::Rule":
        return resource_json
    return resource_json | {"Properties": resource_json.get("Properties", {}) | {"Name": before.name}}


def resolved(resource_json: Properties, resources_map: Any) -> Properties:
    """The resource's properties with every reference replaced by what it refers to."""
    cleaned: Properties = parsing.clean_json(copy.deepcopy(resource_json.get("Properties", {})), resources_map)
    return cleaned

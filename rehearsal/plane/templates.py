"""Launch templates as deployed: version, data, and where an instance of it would be placed."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

from rehearsal.plane.account import Account
from rehearsal.plane.failures import AwsFailure


@dataclass(frozen=True, slots=True, kw_only=True)
class Template:
    """One version of a launch template. `data` is LaunchTemplateData as deployed."""

    id: str
    name: str
    version: str
    data: dict[str, Any]

    def security_groups(self) -> list[str]:
        groups = list(self.data.get("SecurityGroupIds") or [])
        for interface in self.data.get("NetworkInterfaces") or []:
            groups.extend(interface.get("Groups") or [])
        return groups

    def profile(self) -> dict[str, str]:
        """IamInstanceProfile: {Arn} or {Name}; empty when the template has none."""
        return dict(self.data.get("IamInstanceProfile") or {})

    def metadata_options(self) -> dict[str, Any]:
        return dict(self.data.get("MetadataOptions") or {})


class Templates:
    """Reads of moto's launch templates and subnets. The account's lock is held by whoever serves the call."""

    def __init__(self, account: Account) -> None:
        self._account = account

    def resolve(self, specification: dict[str, Any]) -> Template:
        """The version that a LaunchTemplateSpecification names. Raises AWS's own not-found codes."""
        ec2, template_id = self._account.ec2, specification.get("LaunchTemplateId")
        if not template_id:
            name = specification.get("LaunchTemplateName", "")
            template_id = ec2.launch_template_name_to_ids.get(name)
            if template_id is None:
                raise AwsFailure(
                    "InvalidLaunchTemplateName.NotFoundException", f"No launch template is named {name!r}."
                )
        template = ec2.launch_templates.get(template_id)
        if template is None:
            raise AwsFailure("InvalidLaunchTemplateId.NotFound", f"There is no launch template {template_id}.")
        wanted = str(specification.get("Version") or "$Default")
        if not wanted.startswith("$") and not 1 <= int(wanted) <= len(template.versions):
            raise AwsFailure("InvalidLaunchTemplateId.VersionNotFound", f"{template_id} has no version {wanted}.")
        version = template.get_version(wanted)
        return Template(id=template.id, name=template.name, version=str(version.number), data=dict(version.data))

    def place(self, template: Template, overrides: dict[str, Any]) -> tuple[str, str]:
        """(subnet id, zone) of an instance. Raises InvalidSubnetID.NotFound."""
        subnet_id = overrides.get("SubnetId") or template.data.get("SubnetId") or ""
        for interface in template.data.get("NetworkInterfaces") or []:
            subnet_id = subnet_id or interface.get("SubnetId") or ""
        subnets = self._account.ec2.subnets
        by_id = {subnet.id: subnet for zone in subnets.values() for subnet in zone.values()}
        if subnet_id:
            if subnet_id not in by_id:
                raise AwsFailure("InvalidSubnetID.NotFound", f"The subnet ID '{subnet_id}' does not exist")
            return subnet_id, str(by_id[subnet_id].availability_zone)
        zone = overrides.get("AvailabilityZone") or f"{self._account.region}a"
        default = next((s for s in by_id.values() if s.availability_zone == zone and _is_default(s)), None)
        if default is None:
            raise AwsFailure("MissingInput", f"No default subnet in {zone}: name a subnet.")
        return default.id, zone

    def image(self, image_id: str) -> str:
        """An AMI id. `resolve:ssm:...` is looked up; what moto does not have gets an id of its own."""
        if not image_id.startswith("resolve:ssm:"):
            return image_id
        name = image_id.removeprefix("resolve:ssm:")
        parameter = self._account.documents.get_parameter(name)
        if parameter is not None:
            return str(parameter.value)
        return f"ami-{hashlib.sha256(name.encode()).hexdigest()[:17]}"


def _is_default(subnet: Any) -> bool:
    return str(subnet.default_for_az).lower() == "true"

"""What a node is made from: role, instance profile, log group, and the launch template with its user data."""

from __future__ import annotations

from typing import Final

from aws_cdk import Aws, CfnParameter, CfnTag, Fn
from aws_cdk import aws_ec2 as ec2
from aws_cdk import aws_iam as iam
from aws_cdk import aws_logs as logs
from constructs import Construct

from cdk_app import grants, nodepolicies, policies, userdata
from cdk_app.constructs.log_groups import arn_of, log_group
from cdk_app.constructs.network import NodeNetwork
from cdk_app.constructs.state import State
from cdk_app.settings import StackSettings
from spotproof.contract import tags

HOPS: Final = 2  # a container behind a bridge is one hop away (EV-06)
HOPS_STRICT: Final = 1
# Tagging spot requests here too would break every on-demand launch: docs/decisions/spot-requests-untagged.md.
# Instances and the fleet are tagged by the request, which knows run and launch.
TAGGED: Final = ("volume", "network-interface")
_Template = ec2.CfnLaunchTemplate


class Nodes(Construct):
    """The node role, and the template that every launch pins by version."""

    def __init__(
        self, scope: Construct, construct_id: str, *, settings: StackSettings, state: State, network: NodeNetwork
    ) -> None:
        super().__init__(scope, construct_id)
        logs_of_nodes = log_group(self, "Log", days=settings.log_retention_days)
        self.role = self._role(settings, state, logs_of_nodes)
        profile = iam.CfnInstanceProfile(self, "Profile", roles=[self.role.role_name])
        script = userdata.render(
            stack=settings.name,
            table=state.table.table_name,
            bucket=state.bucket.bucket_name,
            region=Aws.REGION,
            log_group=logs_of_nodes.log_group_name,
            strict_metadata=settings.strict_metadata,
        )
        template = _Template(
            self,
            "Template",
            launch_template_data=_Template.LaunchTemplateDataProperty(
                image_id=self._image(settings.ami_parameter),
                iam_instance_profile=_Template.IamInstanceProfileProperty(arn=profile.attr_arn),
                security_group_ids=[network.security_group.security_group_id],
                instance_initiated_shutdown_behavior="terminate",
                metadata_options=_metadata_options(hops=HOPS_STRICT if settings.strict_metadata else HOPS),
                block_device_mappings=[_root_disk(settings)],
                tag_specifications=_static_tags(settings.name),
                user_data=Fn.base64(script),
            ),
        )
        self.profile_arn = profile.attr_arn
        self.template_id = template.ref
        self.template_version = template.attr_latest_version_number

    def _image(self, parameter: str) -> str:
        return CfnParameter(
            self,
            "Image",
            type="AWS::SSM::Parameter::Value<AWS::EC2::Image::Id>",
            default=parameter,
            description="Machine image of the nodes, read from Parameter Store at each deployment",
        ).value_as_string

    def _role(self, settings: StackSettings, state: State, log: logs.LogGroup) -> iam.Role:
        return grants.role(
            self,
            "Role",
            principal=iam.ServicePrincipal("ec2.amazonaws.com"),
            grants=[
                *nodepolicies.node(
                    table=state.table.table_arn, bucket=state.bucket.bucket_arn, data_buckets=settings.data_buckets
                ),
                *policies.write_logs(arn_of(log)),
            ],
        )


def _metadata_options(*, hops: int) -> ec2.CfnLaunchTemplate.MetadataOptionsProperty:
    return _Template.MetadataOptionsProperty(
        http_endpoint="enabled",
        http_tokens="required",
        http_put_response_hop_limit=hops,
        instance_metadata_tags="enabled",  # user data and agent learn run and launch from them
    )


def _root_disk(settings: StackSettings) -> ec2.CfnLaunchTemplate.BlockDeviceMappingProperty:
    return _Template.BlockDeviceMappingProperty(
        device_name=settings.ami_root_device,
        ebs=_Template.EbsProperty(
            volume_type="gp3", volume_size=settings.root_volume_gib, encrypted=True, delete_on_termination=True
        ),
    )


def _static_tags(stack: str) -> list[ec2.CfnLaunchTemplate.TagSpecificationProperty]:
    ours = [CfnTag(key=tags.MANAGED, value=tags.MANAGED_TRUE), CfnTag(key=tags.STACK, value=stack)]
    return [_Template.TagSpecificationProperty(resource_type=kind, tags=ours) for kind in TAGGED]

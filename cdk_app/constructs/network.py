"""Where nodes live: one subnet per zone, gateway endpoints for S3 and DynamoDB, and the way out that was chosen."""

from __future__ import annotations

from typing import Final

from aws_cdk import Fn
from aws_cdk import aws_ec2 as ec2
from constructs import Construct

from cdk_app.acknowledge import acknowledge
from cdk_app.settings import Network, StackSettings

NODES: Final = "Nodes"
# What an isolated node calls besides S3 and DynamoDB. Each costs about $7.30 a month per zone and $0.01 per GB.
INTERFACES: Final = {
    "Ssm": ec2.InterfaceVpcEndpointAwsService.SSM,
    "SsmMessages": ec2.InterfaceVpcEndpointAwsService.SSM_MESSAGES,
    "EcrApi": ec2.InterfaceVpcEndpointAwsService.ECR,
    "EcrDocker": ec2.InterfaceVpcEndpointAwsService.ECR_DOCKER,
    "Logs": ec2.InterfaceVpcEndpointAwsService.CLOUDWATCH_LOGS,
    "Sts": ec2.InterfaceVpcEndpointAwsService.STS,
}
_KINDS: Final = {
    Network.PUBLIC: ec2.SubnetType.PUBLIC,
    Network.NAT: ec2.SubnetType.PRIVATE_WITH_EGRESS,
    Network.ENDPOINTS: ec2.SubnetType.PRIVATE_ISOLATED,
}


class NodeNetwork(Construct):
    """The network. `subnets` are the nodes' own: one per zone, because a fleet may not span two subnets of a zone."""

    def __init__(self, scope: Construct, construct_id: str, *, settings: StackSettings) -> None:
        super().__init__(scope, construct_id)
        self.vpc = ec2.Vpc(
            self,
            "Vpc",
            availability_zones=_zones(settings),
            nat_gateways=settings.gateway_count(),
            subnet_configuration=_layout(settings.network),
            gateway_endpoints={
                "S3": ec2.GatewayVpcEndpointOptions(service=ec2.GatewayVpcEndpointAwsService.S3),
                "DynamoDb": ec2.GatewayVpcEndpointOptions(service=ec2.GatewayVpcEndpointAwsService.DYNAMODB),
            },
            # CDK's way of emptying the default group is a custom resource with a function of its own; nothing is ever
            # put into that group here.
            restrict_default_security_group=False,
        )
        acknowledge(
            self.vpc,
            "VPC7",
            "Flow logs of checkpoint traffic (terabytes between nodes and the S3 endpoint) cost more than they tell:"
            " nothing listens in this network. Add a flow log to the VPC where a policy asks for one.",
        )
        self.subnets = self.vpc.select_subnets(subnet_group_name=NODES).subnets
        self.security_group = ec2.SecurityGroup(
            self, "NodeGroup", vpc=self.vpc, description="spotproof nodes: out anywhere, in only from each other"
        )
        self.security_group.add_ingress_rule(
            self.security_group, ec2.Port.all_traffic(), "nodes of one run talk to each other"
        )
        if settings.network is Network.ENDPOINTS:
            self._interfaces()

    def subnet_list(self) -> str:
        """`subnet-id=zone,...`: what `submit` pins in a run's placement."""
        return Fn.join(",", [Fn.join("=", [one.subnet_id, one.availability_zone]) for one in self.subnets])

    def _interfaces(self) -> None:
        for name, service in INTERFACES.items():
            self.vpc.add_interface_endpoint(
                name, service=service, subnets=ec2.SubnetSelection(subnet_group_name=NODES), open=False
            ).connections.allow_default_port_from(self.security_group, "from nodes")


def _layout(network: Network) -> list[ec2.SubnetConfiguration]:
    nodes = ec2.SubnetConfiguration(
        name=NODES,
        subnet_type=_KINDS[network],
        cidr_mask=20,
        map_public_ip_on_launch=True if network is Network.PUBLIC else None,
    )
    if network is not Network.NAT:
        return [nodes]
    # NAT gateways stand in public subnets; no node is ever launched there.
    return [nodes, ec2.SubnetConfiguration(name="Gateways", subnet_type=ec2.SubnetType.PUBLIC, cidr_mask=28)]


def _zones(settings: StackSettings) -> list[str]:
    if isinstance(settings.zones, tuple):
        return list(settings.zones)
    return [Fn.select(index, Fn.get_azs()) for index in range(settings.zones)]

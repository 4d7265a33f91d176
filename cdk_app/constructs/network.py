"""Where nodes live: one subnet per zone, gateway endpoints for S3 and DynamoDB, and the way out that was chosen."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from aws_cdk import Annotations, Aws, Fn
from aws_cdk import aws_ec2 as ec2
from constructs import Construct

from cdk_app.acknowledge import acknowledge
from cdk_app.settings import Network, StackSettings

NODES: Final = "Nodes"
# What an isolated node calls besides S3 and DynamoDB; prices.py says what each costs. Not among them: `monitoring`,
# because metrics travel in logs, and `ec2messages`, which serves SSM agents that are too old for our document.
INTERFACES: Final = {
    "Ssm": ec2.InterfaceVpcEndpointAwsService.SSM,
    "SsmMessages": ec2.InterfaceVpcEndpointAwsService.SSM_MESSAGES,
    "EcrApi": ec2.InterfaceVpcEndpointAwsService.ECR,
    "EcrDocker": ec2.InterfaceVpcEndpointAwsService.ECR_DOCKER,
    "Logs": ec2.InterfaceVpcEndpointAwsService.CLOUDWATCH_LOGS,
    "Sts": ec2.InterfaceVpcEndpointAwsService.STS,
}
GATEWAYS: Final = {"S3": "s3", "DynamoDb": "dynamodb"}
_KINDS: Final = {
    Network.PUBLIC: ec2.SubnetType.PUBLIC,
    Network.NAT: ec2.SubnetType.PRIVATE_WITH_EGRESS,
    Network.ENDPOINTS: ec2.SubnetType.PRIVATE_ISOLATED,
}


class NodeNetwork(Construct):
    """The network. `subnets` are the nodes' own: one per zone, because a fleet may not span two subnets of a zone.

    In an existing VPC nothing is looked up: its subnets, zones and route tables are what the settings say.
    """

    def __init__(self, scope: Construct, construct_id: str, *, settings: StackSettings) -> None:
        super().__init__(scope, construct_id)
        self.vpc, self.subnets = self._existing(settings) if settings.vpc_id else self._own(settings)
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

    def _own(self, settings: StackSettings) -> tuple[ec2.IVpc, Sequence[ec2.ISubnet]]:
        vpc = ec2.Vpc(
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
            vpc,
            "VPC7",
            "Flow logs of checkpoint traffic (terabytes between nodes and the S3 endpoint) cost more than they tell:"
            " nothing listens in this network. Add a flow log to the VPC where a policy asks for one.",
        )
        return vpc, vpc.select_subnets(subnet_group_name=NODES).subnets

    def _existing(self, settings: StackSettings) -> tuple[ec2.IVpc, Sequence[ec2.ISubnet]]:
        """The VPC of the settings. Its route tables get the gateway endpoints, unless they have them."""
        given = settings.given_subnets()
        vpc = ec2.Vpc.from_vpc_attributes(
            self, "Existing", vpc_id=settings.vpc_id, availability_zones=list(given.values())
        )
        for name, service in GATEWAYS.items() if settings.route_tables else ():
            ec2.CfnVPCEndpoint(
                self,
                f"{name}Gateway",
                service_name=f"com.amazonaws.{Aws.REGION}.{service}",
                vpc_id=settings.vpc_id,
                vpc_endpoint_type="Gateway",
                route_table_ids=[*settings.route_tables],
            )
        subnets = [
            ec2.Subnet.from_subnet_attributes(self, f"Subnet{number}", subnet_id=subnet, availability_zone=zone)
            for number, (subnet, zone) in enumerate(given.items(), start=1)
        ]
        for subnet in subnets:  # nobody asks a subnet for its route table: the settings name them for the whole VPC
            Annotations.of(subnet).acknowledge_warning("@aws-cdk/aws-ec2:noSubnetRouteTableId")
        return vpc, subnets

    def _interfaces(self) -> None:
        # Named like those that the VPC construct makes, so that no endpoint is made anew by an upgrade.
        scope = self.vpc if isinstance(self.vpc, ec2.Vpc) else self
        for name, service in INTERFACES.items():
            ec2.InterfaceVpcEndpoint(
                scope,
                name,
                vpc=self.vpc,
                service=service,
                subnets=ec2.SubnetSelection(subnets=[*self.subnets]),
                open=False,
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

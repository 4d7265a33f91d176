"""The stack: state, network, nodes, and the control plane around them, in the order in which data flows."""

from __future__ import annotations

from aws_cdk import Aws, CfnOutput, RemovalPolicy, Stack, Tags
from aws_cdk import aws_iam as iam
from constructs import Construct

from cdk_app import policies
from cdk_app.constructs.alerts import Alarms, Topic
from cdk_app.constructs.dashboard import Dashboard
from cdk_app.constructs.document import FlushDocument
from cdk_app.constructs.drills import Drills
from cdk_app.constructs.functions import Functions
from cdk_app.constructs.guard import DestroyGuard
from cdk_app.constructs.network import NodeNetwork
from cdk_app.constructs.nodes import Nodes
from cdk_app.constructs.queues import Queues
from cdk_app.constructs.rules import EventRules
from cdk_app.constructs.state import State
from cdk_app.grants import arn
from cdk_app.settings import StackSettings
from spotproof.contract import names, tags
from spotproof.contract.events import EventKind
from spotproof.contract.settings import ControlSettings

DOCUMENT_NAME = "document-name"
SPOT_SERVICE = "spot.amazonaws.com"


class SpotproofStack(Stack):
    """One deployment. It names no account, region, zone or retained resource, so the same template goes anywhere."""

    def __init__(self, scope: Construct, *, settings: StackSettings) -> None:
        super().__init__(
            scope, settings.name, description="spotproof: GPU training that goes on when EC2 takes its Spot nodes away"
        )
        self._settings = settings
        self.state = State(self, "State", settings=settings)
        self.network = NodeNetwork(self, "Network", settings=settings)
        self.nodes = Nodes(self, "Nodes", settings=settings, state=self.state, network=self.network)
        self.document = FlushDocument(self, "Document")
        self.queues = Queues(self, "Queues")
        self.topic = Topic(self, "People", notify_email=settings.notify_email).topic
        narrowed = {EventKind.COMMAND_RESULT: {DOCUMENT_NAME: [self.document.name]}}
        self.rules = EventRules(self, "Rules", queues=self.queues, narrowed=narrowed)
        self.functions = Functions(
            self,
            "Functions",
            settings=self._control_settings(),
            queues=self.queues,
            reach=self._reach(),
            attached=self.state.attached,
            log_days=settings.log_retention_days,
        )
        self.alarms = Alarms(
            self,
            "Alarms",
            stack=settings.name,
            topic=self.topic,
            queues=self.queues,
            sweep=self.functions.by_name[names.Function.SWEEP],
        )
        self.dashboard = Dashboard(
            self,
            "Board",
            stack=settings.name,
            letters=self.queues.letters(),
            widget=self.functions.by_name[names.Function.WIDGET],
        )
        self._options()
        self._outputs()
        # Last: it depends on everything that is there now.
        DestroyGuard(self, "Guard", settings=settings, function=self.functions.by_name[names.Function.GUARD])
        Tags.of(self).add(tags.STACK, settings.name)

    def _control_settings(self) -> ControlSettings:
        return ControlSettings(
            stack=self._settings.name,
            table=self.state.table.table_name,
            bucket=self.state.bucket.bucket_name,
            region=Aws.REGION,
            account=Aws.ACCOUNT_ID,
            document=self.document.name,
            document_version=self.document.version,
            topic=self.topic.topic_arn,
            launches_per_hour=self._settings.launches_per_hour,
        )

    def _reach(self) -> policies.Reach:
        return policies.Reach(
            stack=self._settings.name,
            table=self.state.table.table_arn,
            bucket=self.state.bucket.bucket_arn,
            document=arn("ssm", f"document/{self.document.name}"),
            template=arn("ec2", f"launch-template/{self.nodes.template_id}"),
            subnets=tuple(arn("ec2", f"subnet/{one.subnet_id}") for one in self.network.subnets),
            security_group=arn("ec2", f"security-group/{self.network.security_group.security_group_id}"),
            node_role=self.nodes.role.role_arn,
            node_profile=self.nodes.profile_arn,
            topic=self.topic.topic_arn,
        )

    def _options(self) -> None:
        if self._settings.drills:
            Drills(self, "Drills", reach=self._reach())
        if self._settings.create_spot_role:
            # An account has this role from its first use of Spot on; making it a second time fails the deployment.
            iam.CfnServiceLinkedRole(self, "SpotRole", aws_service_name=SPOT_SERVICE).apply_removal_policy(
                RemovalPolicy.RETAIN
            )

    def _outputs(self) -> None:
        console = (
            f"https://{Aws.REGION}.console.aws.amazon.com/cloudwatch/home?region={Aws.REGION}#dashboards/dashboard/"
        )
        values = {
            names.OUTPUT_TABLE: self.state.table.table_name,
            names.OUTPUT_BUCKET: self.state.bucket.bucket_name,
            names.OUTPUT_TEMPLATE_ID: self.nodes.template_id,
            names.OUTPUT_TEMPLATE_VERSION: self.nodes.template_version,
            names.OUTPUT_SUBNETS: self.network.subnet_list(),
            names.OUTPUT_TOPIC: self.topic.topic_arn,
            names.OUTPUT_DASHBOARD: f"{console}{self.dashboard.name}",
            names.OUTPUT_REGION: Aws.REGION,
            names.OUTPUT_QUEUES: self.queues.listed(),
        }
        for name in names.OUTPUTS:
            CfnOutput(self, name, value=values[name])

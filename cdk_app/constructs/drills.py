"""Real interruptions on demand: an experiment of AWS FIS that takes one Spot node of this stack (setting `drills`)."""

from __future__ import annotations

from typing import Final

from aws_cdk import Aws, CfnOutput
from aws_cdk import aws_fis as fis
from aws_cdk import aws_iam as iam
from constructs import Construct

from cdk_app import grants, policies
from cdk_app.policies import Reach
from spotproof.contract import tags

ACTION: Final = "aws:ec2:send-spot-instance-interruptions"
SPOT_INSTANCE: Final = "aws:ec2:spot-instance"
# The recommendation at once, the notice two minutes before the end: the shortest that EC2 plays, as in a reclaim.
LASTS: Final = "PT2M"
OUTPUT: Final = "DrillExperiment"  # `aws fis start-experiment --experiment-template-id` takes it
_Template = fis.CfnExperimentTemplate


class Drills(Construct):
    """The experiment and its role. Nothing starts it but a person."""

    def __init__(self, scope: Construct, construct_id: str, *, reach: Reach) -> None:
        super().__init__(scope, construct_id)
        # Experiments of this account; their ids are given when they start.
        ours = {
            "StringEquals": {"aws:SourceAccount": Aws.ACCOUNT_ID},
            "ArnLike": {"aws:SourceArn": grants.arn("fis", "experiment/*")},
        }
        principal = iam.ServicePrincipal("fis.amazonaws.com", conditions=ours)
        role = grants.role(
            self, "Role", principal=principal, grants=[*policies.see_instances(), *policies.interrupt_nodes(reach)]
        )
        self.experiment = _Template(
            self,
            "Interruption",
            description=f"spotproof: EC2 takes one Spot node of stack {reach.stack}, with its two minutes of notice",
            role_arn=role.role_arn,
            stop_conditions=[_Template.ExperimentTemplateStopConditionProperty(source="none")],
            targets={
                "OneNode": _Template.ExperimentTemplateTargetProperty(
                    resource_type=SPOT_INSTANCE,
                    resource_tags={tags.STACK: reach.stack, tags.MANAGED: tags.MANAGED_TRUE},
                    filters=[_Template.ExperimentTemplateTargetFilterProperty(path="State.Name", values=["running"])],
                    selection_mode="COUNT(1)",
                )
            },
            actions={
                "Interrupt": _Template.ExperimentTemplateActionProperty(
                    action_id=ACTION,
                    parameters={"durationBeforeInterruption": LASTS},
                    targets={"SpotInstances": "OneNode"},
                )
            },
            tags={tags.STACK: reach.stack},
        )
        CfnOutput(self, "Experiment", value=self.experiment.ref).override_logical_id(OUTPUT)

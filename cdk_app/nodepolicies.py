"""Permissions of nodes: what user data, the SSM agent and our agent need, and never a delete."""

from __future__ import annotations

from typing import Final

from cdk_app.grants import Grant, arn
from cdk_app.policies import CHECK_ITEM, READ_TABLE, WRITE_ITEMS, checkpoints, leading_keys
from spotproof.contract import keys

NODE_READS: Final = ("RUN#*", "INSTANCE#*", f"{keys.NODE_PREFIX}*")
# What the SSM agent calls to be reachable and to take a command. The managed policy also reads every parameter, and
# serves agents from before 3.3.40 (ec2messages), which are too old for our document's ENV_VAR parameter.
SSM_AGENT: Final = (
    "ssm:UpdateInstanceInformation",
    "ssmmessages:CreateControlChannel",
    "ssmmessages:CreateDataChannel",
    "ssmmessages:OpenControlChannel",
    "ssmmessages:OpenDataChannel",
)


def node(*, table: str, bucket: str, data_buckets: tuple[str, ...]) -> list[Grant]:
    """The node: its own items, the stack's S3 prefix without a delete, the SSM channel, images, training data."""
    return [
        Grant(sid="ReadRunAndNodeItems", actions=READ_TABLE, resources=(table,), conditions=leading_keys(*NODE_READS)),
        Grant(
            sid="WriteNodeItems",
            actions=(*WRITE_ITEMS, CHECK_ITEM),
            resources=(table,),
            conditions=leading_keys(f"{keys.NODE_PREFIX}*"),
        ),
        *checkpoints(bucket),
        *_host(),
        *(grant for index, name in enumerate(data_buckets) for grant in _training_data(index, name)),
    ]


def _host() -> list[Grant]:
    return [
        Grant(
            sid="SsmChannel",
            actions=SSM_AGENT,
            resources=("*",),
        ),
        Grant(
            sid="ImageLogin",
            actions=("ecr:GetAuthorizationToken",),
            resources=("*",),
            because="The SSM agent's channels and the registry's login know no resources; the agent's registration is"
            " given as in AWS's own policy.",
        ),
        Grant(
            sid="PullImages",
            actions=("ecr:BatchGetImage", "ecr:GetDownloadUrlForLayer"),
            resources=(arn("ecr", "repository/*", region="*"),),
            because="A run names its image when it is submitted, from any repository of this account; read only.",
        ),
    ]


def _training_data(index: int, bucket: str) -> list[Grant]:
    name = arn("s3", bucket, region="", account="")
    return [
        Grant(
            sid=f"TrainingData{index}",
            actions=("s3:GetObject",),
            resources=(f"{name}/*",),
            because="Training data of a bucket that the settings file names; read only.",
        ),
        Grant(sid=f"ListTrainingData{index}", actions=("s3:ListBucket",), resources=(name,)),
    ]

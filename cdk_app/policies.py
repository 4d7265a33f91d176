"""Permissions of functions, one grant per thing that is allowed. No managed policy, no grant helper: both give more
than is used. A function's grants are the calls that it makes (AWS_FACTS 9.3); a node's are in `nodepolicies`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from aws_cdk import Aws
from aws_cdk import aws_iam as iam

from cdk_app.grants import Grant, arn
from spotproof.contract import keys, s3keys, tags

READ_TABLE: Final = ("dynamodb:GetItem", "dynamodb:Query")
WRITE_ITEMS: Final = ("dynamodb:PutItem", "dynamodb:UpdateItem")
CHECK_ITEM: Final = "dynamodb:ConditionCheckItem"  # a transaction's look at an item that it does not write
READ_MANY: Final = "dynamodb:BatchGetItem"
CONTROL_PARTITIONS: Final = ("RUN#*", "INSTANCE#*", "POOL#*")
# An instant fleet is authorized twice: CreateFleet on what the request names, RunInstances on that and on what the
# template names (Service Authorization Reference of ec2:CreateFleet).
FLEET: Final = "ec2:CreateFleet"
RUN: Final = "ec2:RunInstances"
LAUNCH: Final = (FLEET, RUN)
LATER_IDS: Final = "Ids are given when EC2 makes the thing, after the deployment"


@dataclass(frozen=True, slots=True, kw_only=True)
class Reach:
    """What exists in this stack, by ARN: the only things that functions may touch."""

    stack: str
    table: str
    bucket: str
    document: str
    template: str
    subnets: tuple[str, ...]
    security_group: str
    node_role: str
    node_profile: str
    topic: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Attached:
    """ARNs of what the stack was told to use and did not make; '' for what it made itself."""

    table: str = ""
    bucket: str = ""


def leading_keys(*partitions: str) -> dict[str, Any]:
    """Only items whose partition key has one of these forms."""
    return {"ForAllValues:StringLike": {"dynamodb:LeadingKeys": [*partitions]}}


def table_of_control(reach: Reach) -> list[Grant]:
    """Read everything; write runs, members, pools and history. What nodes write stays theirs."""
    return [
        Grant(sid="ReadTable", actions=(*READ_TABLE, READ_MANY), resources=(reach.table,)),
        Grant(
            sid="WriteTimelines",
            actions=("dynamodb:BatchWriteItem",),
            resources=(reach.table,),
            conditions=leading_keys("HIST#*"),
        ),
        Grant(
            sid="WriteControlItems",
            actions=WRITE_ITEMS,
            resources=(reach.table,),
            conditions=leading_keys(*CONTROL_PARTITIONS),
        ),
        Grant(
            sid="LetGoOfLauncherLease",
            actions=("dynamodb:DeleteItem",),
            resources=(reach.table,),
            conditions=leading_keys("RUN#*"),
        ),
    ]


def look_at_runs(reach: Reach) -> list[Grant]:
    """In the transaction that claims a place: that the run still wants nodes, and has no unfinished launch."""
    return [
        Grant(
            sid="LookAtRuns",
            actions=(CHECK_ITEM,),
            resources=(reach.table,),
            conditions=leading_keys("RUN#*"),
        )
    ]


def keep_index(reach: Reach) -> list[Grant]:
    """When a run is due next, and that it is due no more."""
    return [
        Grant(
            sid="KeepIndex",
            actions=("dynamodb:UpdateItem", "dynamodb:DeleteItem"),
            resources=(reach.table,),
            conditions=leading_keys("LIVE#*"),
        )
    ]


def commit_for_the_dead(reach: Reach) -> list[Grant]:
    """Finish a checkpoint that is whole in S3 and whose agents are all gone: manifest, pointer, checkpoint item."""
    return [
        Grant(
            sid="CommitInTable",
            actions=(*WRITE_ITEMS, CHECK_ITEM),
            resources=(reach.table,),
            conditions=leading_keys(f"{keys.NODE_PREFIX}*"),
        ),
        *checkpoints(reach.bucket),
    ]


def find_due_runs(reach: Reach) -> list[Grant]:
    """The sweep reads its index and nothing else of the table."""
    return [
        Grant(
            sid="FindDueRuns",
            actions=("dynamodb:Query",),
            resources=(reach.table,),
            conditions=leading_keys("LIVE#*"),
        )
    ]


def read_stories(reach: Reach) -> list[Grant]:
    """What the dashboard's widget shows of runs, and no write."""
    return [
        Grant(
            sid="ReadStories",
            actions=READ_TABLE,
            resources=(reach.table,),
            conditions=leading_keys("RUN#*", "HIST#*", "LIVE#*", f"{keys.NODE_PREFIX}*"),
        )
    ]


def look_at_attached(attached: Attached) -> list[Grant]:
    """See whether an attached table or bucket is fit for this stack."""
    table = Grant(
        sid="LookAtAttachedTable",
        actions=("dynamodb:DescribeTable", "dynamodb:DescribeTimeToLive"),
        resources=(attached.table,),
    )
    bucket = Grant(
        sid="LookAtAttachedBucket",
        actions=("s3:GetBucketVersioning", "s3:GetLifecycleConfiguration"),
        resources=(attached.bucket,),
    )
    return [*([table] if attached.table else []), *([bucket] if attached.bucket else [])]


def flush_nodes(reach: Reach) -> list[Grant]:
    """Our document, on instances that carry our stack's tag. Two statements: a document has no such tag (IAM-02)."""
    send = ("ssm:SendCommand",)
    return [
        Grant(sid="SendFlush", actions=send, resources=(reach.document,)),
        Grant(
            sid="SendFlushToOurNodes",
            actions=send,
            resources=(arn("ec2", "instance/*"),),
            conditions={"StringEquals": {f"ssm:resourceTag/{tags.STACK}": reach.stack}},
            because=f"{LATER_IDS}; statements on instances ask for the stack's tag.",
        ),
    ]


def launch_nodes(reach: Reach) -> list[Grant]:
    """Instances from our template, in our subnets, tagged as ours, with the one node role."""
    return [
        Grant(sid="LaunchFromOurParts", actions=LAUNCH, resources=(reach.template, *reach.subnets)),
        Grant(sid="LaunchIntoOurGroup", actions=(RUN,), resources=(reach.security_group,)),
        Grant(
            sid="LaunchKnownImages",
            actions=LAUNCH,
            resources=(arn("ec2", "image/*", account=""),),
            conditions={"StringEquals": {"ec2:Owner": ["amazon", Aws.ACCOUNT_ID]}},
            because="Runs pin the template version, and so the image, that they were submitted with: images of earlier"
            " deployments must stay launchable. The owner is Amazon or this account.",
        ),
        Grant(
            sid="LaunchTheirDisks",
            actions=(RUN,),
            resources=(arn("ec2", "snapshot/*", account=""),),
            because="Snapshots belong to the image; nobody knows their ids before the image is chosen.",
        ),
        # Without a tag condition: a template that tags spot requests cannot launch on-demand, and a spot request comes
        # into being only together with an instance, which must be tagged (docs/decisions/spot-requests-untagged.md).
        Grant(
            sid="LaunchSpot",
            actions=(RUN,),
            resources=(arn("ec2", "spot-instances-request/*"),),
            because=f"{LATER_IDS}; it comes only together with an instance, which must carry our tags.",
        ),
        *_tagged_launch(reach),
        *_one_role(reach),
    ]


def _tagged_launch(reach: Reach) -> list[Grant]:
    """What comes into being carries our tags, and tags are given at no other moment."""
    tagged = {f"aws:RequestTag/{tags.MANAGED}": tags.MANAGED_TRUE, f"aws:RequestTag/{tags.STACK}": reach.stack}
    fleet, *machine = (arn("ec2", kind) for kind in ("fleet/*", "instance/*", "volume/*"))
    interface = arn("ec2", "network-interface/*")
    made = (("LaunchTagged", LAUNCH, machine), ("FleetTagged", (FLEET,), [fleet]), ("JoinTagged", (RUN,), [interface]))
    because = f"{LATER_IDS}; the request must carry our tags."
    return [
        *(
            Grant(
                sid=sid,
                actions=actions,
                resources=tuple(resources),
                conditions={"StringEquals": tagged},
                because=because,
            )
            for sid, actions, resources in made
        ),
        Grant(
            sid="TagWhatIsLaunched",
            actions=("ec2:CreateTags",),
            resources=(fleet, *machine, interface),
            conditions={"StringEquals": {**tagged, "ec2:CreateAction": ["CreateFleet", "RunInstances"]}},
            because=because,
        ),
    ]


def _one_role(reach: Reach) -> list[Grant]:
    """The node role and no other, by what is passed and by what a fleet's overrides may name."""
    return [
        Grant(
            sid="PassNodeRole",
            actions=("iam:PassRole",),
            resources=(reach.node_role,),
            conditions={"StringEquals": {"iam:PassedToService": "ec2.amazonaws.com"}},
        ),
        # A denial, because overrides can replace the template's profile. It asks only where EC2 tells the profile:
        # a condition that asked always would refuse every launch at a check that does not know it yet.
        Grant(
            sid="NoOtherProfile",
            effect=iam.Effect.DENY,
            actions=LAUNCH,
            resources=(arn("ec2", "instance/*"),),
            conditions={
                "ArnNotEquals": {"ec2:InstanceProfile": reach.node_profile},
                "Null": {"ec2:InstanceProfile": "false"},
            },
        ),
    ]


def see_instances() -> list[Grant]:
    """Look at instances."""
    return [
        Grant(
            sid="SeeInstances",
            actions=("ec2:DescribeInstances",),
            resources=("*",),
            because="DescribeInstances knows neither resources nor conditions.",
        )
    ]


def see_market() -> list[Grant]:
    """What Spot costs, and how EC2 rates its zones."""
    return [
        Grant(
            sid="SeeMarket",
            actions=("ec2:DescribeSpotPriceHistory", "ec2:GetSpotPlacementScores"),
            resources=("*",),
            because="Neither knows resources or conditions.",
        )
    ]


def end_nodes(reach: Reach) -> list[Grant]:
    """End only what this stack launched: hand-tagged instances carry no launch tag."""
    return [
        Grant(
            sid="EndWhatWeLaunched",
            actions=("ec2:TerminateInstances",),
            resources=(arn("ec2", "instance/*"),),
            conditions={
                "StringEquals": {f"ec2:ResourceTag/{tags.STACK}": reach.stack},
                "Null": {f"ec2:ResourceTag/{tags.LAUNCH}": "false"},
            },
            because=f"{LATER_IDS}; statements on instances ask for the stack's tags.",
        )
    ]


def interrupt_nodes(reach: Reach) -> list[Grant]:
    """What FIS does in a drill: take a Spot node that this stack launched."""
    return [
        Grant(
            sid="InterruptOurNodes",
            actions=("ec2:SendSpotInstanceInterruptions",),
            resources=(arn("ec2", "instance/*"),),
            conditions={
                "StringEquals": {f"ec2:ResourceTag/{tags.STACK}": reach.stack},
                "Null": {f"ec2:ResourceTag/{tags.LAUNCH}": "false"},
            },
            because=f"{LATER_IDS}; statements on instances ask for the stack's tags.",
        )
    ]


def tell_people(reach: Reach) -> list[Grant]:
    """Publish to the stack's topic."""
    return [Grant(sid="TellPeople", actions=("sns:Publish",), resources=(reach.topic,))]


def read_queue(queue: str) -> list[Grant]:
    """What Lambda's poller does with the function's role."""
    actions = ("sqs:ReceiveMessage", "sqs:DeleteMessage", "sqs:GetQueueAttributes")
    return [Grant(sid="ReadQueue", actions=actions, resources=(queue,))]


def send_to(sid: str, queue: str) -> list[Grant]:
    """Send messages to one queue."""
    return [Grant(sid=sid, actions=("sqs:SendMessage",), resources=(queue,))]


def write_logs(log_group: str) -> list[Grant]:
    """Streams of one log group; the group itself belongs to the stack."""
    return [
        Grant(
            sid="WriteLogs",
            actions=("logs:CreateLogStream", "logs:PutLogEvents"),
            resources=(f"{log_group}:log-stream:*",),
            because="Streams of this role's own log group; their names are made at run time.",
        )
    ]


def checkpoints(bucket: str) -> list[Grant]:
    """The prefix of runs, without a delete: for nodes, and for who finishes what they left."""
    return [
        Grant(
            sid="Checkpoints",
            actions=("s3:GetObject", "s3:PutObject"),
            resources=(f"{bucket}/{s3keys.RUNS}*",),
            because="Keys carry run ids and digests; nodes of one stack trust each other, and none can delete.",
        ),
        # Without a condition on the prefix: it is what makes S3 answer 404, and not 403, for a key that is not there.
        Grant(sid="ListCheckpoints", actions=("s3:ListBucket",), resources=(bucket,)),
    ]


def collect_checkpoints(reach: Reach) -> list[Grant]:
    """Delete checkpoints and chunks, in the bucket and nowhere else; of the table only reads, of what is kept for whom.

    Without their versions: what was deleted by mistake is there for one more day.
    """
    described, chunks = (f"{reach.bucket}/{s3keys.RUNS}*/{folder}/*" for folder in s3keys.FOLDERS)
    because = "Keys carry run ids, steps and digests; nothing beside checkpoints and chunks has such a key."
    return [
        Grant(
            sid="ReadWhatIsKept",
            actions=READ_TABLE,
            resources=(reach.table,),
            conditions=leading_keys(f"{keys.NODE_PREFIX}*"),
        ),
        Grant(
            sid="ReadSpecs",
            actions=("dynamodb:GetItem",),
            resources=(reach.table,),
            conditions=leading_keys("RUN#*"),
        ),
        Grant(sid="ListCheckpoints", actions=("s3:ListBucket",), resources=(reach.bucket,)),
        Grant(sid="ReadManifests", actions=("s3:GetObject",), resources=(described,), because=because),
        Grant(sid="Collect", actions=("s3:DeleteObject",), resources=(described, chunks), because=because),
    ]

"""What code on a node would try: it runs what people train, so the node role is the one that is stolen first."""

from __future__ import annotations

from collections.abc import Iterator

from rehearsal.permissions.attacks_control import RUN, WRITES, item, leading, other_table
from rehearsal.permissions.attempt import Allowed, Attempt
from rehearsal.permissions.estate import NODE, Estate
from rehearsal.permissions.requests import Request
from spotproof.contract import keys, s3keys
from spotproof.contract.names import Function


def attacks(estate: Estate) -> Iterator[Attempt]:
    """Attacks with the node role's credentials."""
    yield from _items(estate)
    yield from _objects(estate)
    yield from _out(estate)


def _items(estate: Estate) -> Iterator[Attempt]:
    """The control plane's items: a node that writes them would decide what is launched."""
    own = keys.node_partition(RUN)
    for action in (*WRITES, "dynamodb:ConditionCheckItem"):
        write = item(NODE, action, estate.table, own)
        for partition in (
            keys.run_partition(RUN),
            keys.member("i-1").pk,
            keys.live_partition(0),
            keys.pool_partition("us-east-1"),
            keys.history_partition(RUN),
        ):
            yield write.where(f"write {partition}", leading(partition))
        yield write.to("write another table", resource=other_table(estate))
    write = item(NODE, "dynamodb:UpdateItem", estate.table, own)
    yield write.to("delete an item", action="dynamodb:DeleteItem")
    yield write.to("delete the table", action="dynamodb:DeleteTable")
    yield write.where("hide a control item behind an own one", {"dynamodb:LeadingKeys": (own, keys.run_partition(RUN))})
    read = item(NODE, "dynamodb:Query", estate.table, own)
    yield read.where("list the runs of the stack", leading(keys.live_partition(0)))
    yield read.to("read another table", resource=other_table(estate))
    yield read.to("read every item", action="dynamodb:Scan")


def _objects(estate: Estate) -> Iterator[Attempt]:
    """A checkpoint that is there stays there."""
    blob = f"{estate.bucket}/{s3keys.RUNS}{RUN}/blobs/0"
    for action in ("s3:GetObject", "s3:PutObject"):
        own = Allowed(actor=NODE, request=Request(action=action, resource=blob))
        yield own.to("reach beside the runs", resource=f"{estate.bucket}/other")
        yield own.to("reach another bucket", resource=estate.world.bucket("another", f"{s3keys.RUNS}{RUN}/blobs/0"))
    own = Allowed(actor=NODE, request=Request(action="s3:PutObject", resource=blob))
    for verb in ("DeleteObject", "DeleteObjectVersion", "PutObjectAcl", "BypassGovernanceRetention"):
        yield own.to(f"call {verb}", action=f"s3:{verb}")
    listing = Allowed(actor=NODE, request=Request(action="s3:ListBucket", resource=estate.bucket))
    for verb in ("PutBucketPolicy", "PutLifecycleConfiguration", "DeleteBucket", "PutBucketVersioning"):
        yield listing.to(f"call {verb}", action=f"s3:{verb}")
    yield listing.to("list another bucket", resource=estate.world.bucket("another"))


def _out(estate: Estate) -> Iterator[Attempt]:
    """From one node to machines, functions and secrets."""
    world = estate.world
    read = item(NODE, "dynamodb:GetItem", estate.table, keys.run_partition(RUN))
    machine = world.arn("ec2", "instance/i-0aaaaaaaaaaaaaaa1")
    for action, resource in (
        ("ssm:SendCommand", estate.document),
        ("ssm:GetParameter", world.arn("ssm", "parameter/secret")),
        ("ssm:GetParametersByPath", world.arn("ssm", "parameter/secret")),
        ("ec2:CreateTags", machine),
        ("ec2:TerminateInstances", machine),
        ("ec2:RunInstances", machine),
        ("ec2:CreateFleet", estate.template),
        ("ec2:CreateLaunchTemplateVersion", estate.template),
        ("iam:PassRole", estate.node_role),
        ("sts:AssumeRole", estate.node_role),
        ("lambda:InvokeFunction", estate.functions[Function.SWEEP.value]),
        ("sqs:SendMessage", estate.queues[Function.INTERRUPTION.value]),
        ("sns:Publish", estate.topic),
        ("events:PutEvents", world.arn("events", "event-bus/default")),
        ("ecr:PutImage", world.arn("ecr", "repository/trainer")),
        ("secretsmanager:GetSecretValue", world.arn("secretsmanager", "secret:a")),
    ):
        yield read.to(f"call {action}", action=action, resource=resource)
    own = world.arn("logs", f"log-group:{estate.log_groups[NODE]}:log-stream:a")
    log = Allowed(actor=NODE, request=Request(action="logs:PutLogEvents", resource=own))
    theirs = world.arn("logs", f"log-group:{estate.log_groups[Function.REPAIR.value]}:log-stream:a")
    yield log.to("forge a function's log", resource=theirs)

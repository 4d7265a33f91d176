"""What a function that was taken over would try: other machines, other code on them, other people's data."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from rehearsal.permissions.attempt import Allowed, Attempt
from rehearsal.permissions.estate import PIPELINE, SCHEDULE, Estate, schedule_of
from rehearsal.permissions.requests import ANY, Request, Value, tagged
from spotproof.contract import keys, s3keys, tags
from spotproof.contract.names import Function

RUN: Final = "demo"
STRANGER: Final = "999999999999"
LAUNCHES: Final = ("ec2:CreateFleet", "ec2:RunInstances")
WRITES: Final = ("dynamodb:PutItem", "dynamodb:UpdateItem")


def attacks(estate: Estate) -> Iterator[Attempt]:
    """Attacks by every function and by the schedule."""
    for actor in PIPELINE:
        yield from _boot_another_role(estate, actor)
        yield from _boot_other_things(estate, actor)
        yield from _launch_untagged(estate, actor)
        yield from _retag(estate, actor)
        yield from _command(estate, actor)
        yield from _end_others(estate, actor)
        yield from _write_items(estate, actor)
        yield from _leave_the_stack(estate, actor)
    yield from _repair_deletes(estate)
    yield from _only_repair(estate)
    yield from _sweep(estate)
    yield from _collect(estate)
    yield from _guard(estate)
    yield from _widget(estate)


def launched(estate: Estate) -> dict[str, str]:
    """The tags of what this stack launches."""
    return tags.of_launch(stack=estate.stack, run=RUN, launch=1)


def _made(estate: Estate, kind: str) -> str:
    return estate.world.arn("ec2", f"{kind}/*")


# ---------------------------------------------------------------------------------------------------- what boots
def _boot_another_role(estate: Estate, actor: str) -> Iterator[Attempt]:
    """Passing a role is how a launch becomes an administrator."""
    service: dict[str, Value] = {"iam:PassedToService": "ec2.amazonaws.com"}
    passing = Allowed(actor=actor, request=Request(action="iam:PassRole", resource=estate.node_role, context=service))
    admin = f"{estate.node_role.rpartition('/')[0]}/admin"
    yield passing.to("boot machines with any role", resource=admin)
    yield passing.where("hand the node role to a function", {"iam:PassedToService": "lambda.amazonaws.com"})
    yield passing.to("assume the node role", action="sts:AssumeRole")
    yield passing.to("widen the node role", action="iam:PutRolePolicy")
    for action in LAUNCHES:
        own = _instance(estate, actor, action)
        another = f"{estate.profile.rpartition('/')[0]}/admin"
        yield own.where("override the template's instance profile", {"ec2:InstanceProfile": another})


def _instance(estate: Estate, actor: str, action: str) -> Allowed:
    context = {"ec2:InstanceProfile": estate.profile, **tagged("aws:RequestTag", launched(estate))}
    return Allowed(actor=actor, request=Request(action=action, resource=_made(estate, "instance"), context=context))


def _boot_other_things(estate: Estate, actor: str) -> Iterator[Attempt]:
    """Another template, another version's author, another image, another network."""
    world = estate.world
    for action in LAUNCHES:
        template = Allowed(actor=actor, request=Request(action=action, resource=estate.template))
        yield template.to("launch from another template", resource=world.arn("ec2", "launch-template/lt-0another"))
        subnet = Allowed(actor=actor, request=Request(action=action, resource=estate.subnet))
        yield subnet.to("launch into another network", resource=world.arn("ec2", "subnet/subnet-0another"))
        image = Allowed(
            actor=actor, request=Request(action=action, resource=estate.image, context={"ec2:Owner": "amazon"})
        )
        yield image.where("boot a stranger's image", {"ec2:Owner": STRANGER})
    group = Allowed(actor=actor, request=Request(action="ec2:RunInstances", resource=estate.security_group))
    yield group.to("open the nodes' network", resource=world.arn("ec2", "security-group/sg-0another"))
    fleet = Allowed(actor=actor, request=Request(action="ec2:CreateFleet", resource=estate.template))
    for verb in ("CreateLaunchTemplateVersion", "ModifyLaunchTemplate", "DeleteLaunchTemplate"):
        yield fleet.to("put user data into the template", action=f"ec2:{verb}")
    yield group.to("open a port of the nodes", action="ec2:AuthorizeSecurityGroupIngress")


def _launch_untagged(estate: Estate, actor: str) -> Iterator[Attempt]:
    """What carries no tag of the stack, nobody finds and nobody ends."""
    wanted = {"ec2:CreateFleet": ("fleet", "instance", "volume"), "ec2:RunInstances": ("instance", "volume")}
    stack = f"aws:RequestTag/{tags.STACK}"
    for action, kinds in wanted.items():
        for kind in kinds:
            context = tagged("aws:RequestTag", launched(estate))
            made = Allowed(actor=actor, request=Request(action=action, resource=_made(estate, kind), context=context))
            yield made.lacking(f"launch an untagged {kind}", *context)
            yield made.where(f"launch a {kind} in another stack's name", {stack: "another"})


def _retag(estate: Estate, actor: str) -> Iterator[Attempt]:
    """The opt-in tag is the boundary: who can set it can have any machine flushed, replaced or ended."""
    context: dict[str, Value] = {"ec2:CreateAction": "CreateFleet", **tagged("aws:RequestTag", launched(estate))}
    creating = Allowed(
        actor=actor, request=Request(action="ec2:CreateTags", resource=_made(estate, "instance"), context=context)
    )
    yield creating.lacking("tag a machine that exists", "ec2:CreateAction")
    yield creating.where("tag while it makes something else", {"ec2:CreateAction": "CreateVolume"})
    yield creating.where("tag in another stack's name", {f"aws:RequestTag/{tags.STACK}": "another"})
    yield creating.to("take a machine's tags away", action="ec2:DeleteTags")


# ---------------------------------------------------------------------------------------------------- what is there
def _command(estate: Estate, actor: str) -> Iterator[Attempt]:
    """Run Command is root on every machine that it reaches."""
    world, send = estate.world, "ssm:SendCommand"
    document = Allowed(actor=actor, request=Request(action=send, resource=estate.document))
    yield document.to("run any command", resource=world.public("ssm", "document/AWS-RunShellScript"))
    yield document.to("run a document of its own", resource=world.arn("ssm", "document/another"))
    yield document.to("change the document", action="ssm:UpdateDocument")
    yield document.to("choose another version of the document", action="ssm:UpdateDocumentDefaultVersion")
    yield document.to("open a shell", action="ssm:StartSession")
    context = tagged("ssm:resourceTag", tags.of_opt_in(stack=estate.stack, run=RUN))
    machine = Allowed(
        actor=actor,
        request=Request(action=send, resource=world.arn("ec2", "instance/i-0aaaaaaaaaaaaaaa1"), context=context),
    )
    yield machine.lacking("command a machine that has not opted in", *context)
    yield machine.where("command another stack's machine", {f"ssm:resourceTag/{tags.STACK}": "another"})
    yield machine.to("command a machine outside EC2", resource=world.arn("ssm", "managed-instance/mi-0a"))


def _end_others(estate: Estate, actor: str) -> Iterator[Attempt]:
    """Only what the stack launched is the stack's to end."""
    context = tagged("ec2:ResourceTag", launched(estate))
    machine = Allowed(
        actor=actor,
        request=Request(
            action="ec2:TerminateInstances",
            resource=estate.world.arn("ec2", "instance/i-0aaaaaaaaaaaaaaa1"),
            context=context,
        ),
    )
    launch, managed = f"ec2:ResourceTag/{tags.LAUNCH}", f"ec2:ResourceTag/{tags.MANAGED}"
    yield machine.lacking("end a machine without tags", *context)
    yield machine.lacking("end a machine that a person opted in", launch, managed)
    yield machine.where("end another stack's machine", {f"ec2:ResourceTag/{tags.STACK}": "another"})
    for verb in ("StopInstances", "ModifyInstanceAttribute", "ModifyInstanceMetadataOptions", "RebootInstances"):
        yield machine.to(f"call {verb}", action=f"ec2:{verb}")
    yield machine.to("end a whole fleet", action="ec2:DeleteFleets", resource=_made(estate, "fleet"))


# ---------------------------------------------------------------------------------------------------- data
def item(actor: str, action: str, table: str, partition: str) -> Allowed:
    """An operation on one item of this partition."""
    context: dict[str, Value] = {"dynamodb:LeadingKeys": (partition,)}
    return Allowed(actor=actor, request=Request(action=action, resource=table, context=context))


def leading(partition: str) -> dict[str, Value]:
    """The context of an item in this partition."""
    return {"dynamodb:LeadingKeys": (partition,)}


def other_table(estate: Estate) -> str:
    """Another table of the account."""
    return estate.world.arn("dynamodb", "table/another")


def _write_items(estate: Estate, actor: str) -> Iterator[Attempt]:
    """Functions write what the control plane keeps; membership and pointer are the nodes', but for repair."""
    own = keys.run_partition(RUN)
    for action in WRITES:
        write = item(actor, action, estate.table, own)
        yield write.to("write another table", resource=other_table(estate))
        if actor != Function.REPAIR:
            yield write.where("move the pointer", leading(keys.node_partition(RUN)))
    if actor != Function.REPAIR:
        look = item(actor, "dynamodb:ConditionCheckItem", estate.table, own)
        yield look.where("look at what nodes write in a transaction", leading(keys.node_partition(RUN)))
        yield look.to("look at another table in a transaction", resource=other_table(estate))
    delete = item(actor, "dynamodb:DeleteItem", estate.table, own)
    for partition in (keys.history_partition(RUN), keys.node_partition(RUN), keys.member("i-1").pk):
        yield delete.where(f"delete {partition}", leading(partition))
    read = item(actor, "dynamodb:GetItem", estate.table, own)
    yield read.to("read another table", resource=other_table(estate))
    for verb in ("Scan", "DeleteTable", "UpdateTable", "PartiQLDelete"):
        yield read.to(f"call {verb}", action=f"dynamodb:{verb}")
    # A batch has no conditions and may delete: it is for notes of the timeline, and for nothing that decides.
    note = item(actor, "dynamodb:BatchWriteItem", estate.table, keys.history_partition(RUN))
    yield note.to("write another table in batches", resource=other_table(estate))
    for partition in (own, keys.member("i-1").pk, keys.node_partition(RUN), keys.live(RUN).pk):
        yield note.where(f"write {partition} in batches", leading(partition))


def _leave_the_stack(estate: Estate, actor: str) -> Iterator[Attempt]:
    """Other topics, other queues, its own code."""
    publish = Allowed(actor=actor, request=Request(action="sns:Publish", resource=estate.topic))
    yield publish.to("speak on another topic", resource=f"{estate.topic}-another")
    yield publish.to("subscribe somebody", action="sns:Subscribe")
    receive = Allowed(actor=actor, request=Request(action="sqs:ReceiveMessage", resource=estate.queues[actor]))
    another = next(queue for who, queue in estate.queues.items() if who != actor)
    yield receive.to("read another function's queue", resource=another)
    if actor != Function.REPAIR:  # every function may put a look off to repair, and nowhere else
        yield receive.to("feed its own queue", action="sqs:SendMessage")
    later = Allowed(
        actor=actor, request=Request(action="sqs:SendMessage", resource=estate.queues[Function.REPAIR.value])
    )
    for who in (one for one in PIPELINE if one != Function.REPAIR):
        yield later.to(f"feed the queue of {who}", resource=estate.queues[who])
    yield receive.to("empty its own queue", action="sqs:PurgeQueue")
    function = estate.functions[actor]
    yield receive.to("replace its own code", action="lambda:UpdateFunctionCode", resource=function)
    yield receive.to("call another function", action="lambda:InvokeFunction", resource=function)


def _repair_deletes(estate: Estate) -> Iterator[Attempt]:
    """Repair finishes checkpoints of the dead; nothing of the control plane can take one away."""
    actor = Function.REPAIR.value
    blob = f"{estate.bucket}/{s3keys.RUNS}{RUN}/blobs/0"
    reading = Allowed(actor=actor, request=Request(action="s3:GetObject", resource=blob))
    for verb in ("DeleteObject", "DeleteObjectVersion", "PutObjectAcl"):
        yield reading.to(f"call {verb}", action=f"s3:{verb}")
    yield reading.to("read beside the runs", resource=f"{estate.bucket}/other")
    yield reading.to("read another bucket", resource=estate.world.bucket("another", "runs/demo/blobs/0"))


def _only_repair(estate: Estate) -> Iterator[Attempt]:
    """Interruption and signals have no business in the bucket or in the sweep's index."""
    for actor in (one for one in PIPELINE if one != Function.REPAIR):
        write = item(actor, "dynamodb:UpdateItem", estate.table, keys.run_partition(RUN))
        yield write.where("let the sweep forget a run", leading(keys.live_partition(0)))
        yield write.to("read checkpoints", action="s3:GetObject", resource=f"{estate.bucket}/{s3keys.RUNS}{RUN}/a")
        see = Allowed(actor=actor, request=Request(action="ec2:DescribeInstances", resource=ANY))
        for action in ("ec2:DescribeSpotPriceHistory", "ec2:GetSpotPlacementScores"):
            yield see.to("use up the market's request rate", action=action)


def _sweep(estate: Estate) -> Iterator[Attempt]:
    """The sweep reads its index and fills one queue; its schedule calls one function."""
    actor = Function.SWEEP.value
    query = item(actor, "dynamodb:Query", estate.table, keys.live_partition(0))
    yield query.where("read runs", leading(keys.run_partition(RUN)))
    yield query.to("forget runs", action="dynamodb:DeleteItem")
    send = Allowed(
        actor=actor, request=Request(action="sqs:SendMessage", resource=estate.queues[Function.REPAIR.value])
    )
    yield send.to("forge notices", resource=estate.queues[Function.INTERRUPTION.value])
    yield send.to("launch", action="ec2:CreateFleet", resource=estate.template)
    tick = Allowed(actor=SCHEDULE, request=Request(action="lambda:InvokeFunction", resource=estate.functions[actor]))
    yield tick.to("call the other functions", resource=estate.functions[Function.REPAIR.value])


def _collect(estate: Estate) -> Iterator[Attempt]:
    """The collection deletes old checkpoints: it must not be able to delete anything else, or for good, or to write."""
    actor, here = Function.COLLECT.value, f"{estate.bucket}/{s3keys.RUNS}{RUN}/"
    delete = Allowed(actor=actor, request=Request(action="s3:DeleteObject", resource=f"{here}blobs/0"))
    yield delete.to("delete beside the runs", resource=f"{estate.bucket}/other")
    yield delete.to("delete a run's other folders", resource=f"{here}workspace/0")
    yield delete.to("delete in another bucket", resource=estate.world.bucket("another", "runs/demo/blobs/0"))
    for verb in ("DeleteObjectVersion", "PutObject", "DeleteBucket", "PutLifecycleConfiguration", "GetObject"):
        yield delete.to(f"call {verb}", action=f"s3:{verb}")
    read = item(actor, "dynamodb:GetItem", estate.table, keys.node_partition(RUN))
    for verb in (*WRITES, "dynamodb:DeleteItem", "dynamodb:ConditionCheckItem", "dynamodb:Scan"):
        yield read.to(f"call {verb}", action=verb)
    yield read.where("read which instance is whose", leading(keys.member("i-1").pk))
    yield read.to("speak on the topic", action="sns:Publish", resource=estate.topic)
    tick = Request(action="lambda:InvokeFunction", resource=estate.functions[actor])
    ticking = Allowed(actor=schedule_of(actor), request=tick)
    yield ticking.to("call the other functions", resource=estate.functions[Function.REPAIR.value])


def _guard(estate: Estate) -> Iterator[Attempt]:
    """The guard reads the sweep's index; what refuses a destruction must not be able to help with one."""
    actor = Function.GUARD.value
    query = item(actor, "dynamodb:Query", estate.table, keys.live_partition(0))
    yield query.where("read runs", leading(keys.run_partition(RUN)))
    yield query.to("read another table", resource=other_table(estate))
    for verb in (*WRITES, "dynamodb:DeleteItem", "dynamodb:DeleteTable"):
        yield query.to(f"call {verb}", action=verb)
    for verb in ("DeleteStack", "UpdateStack"):
        stack = estate.world.arn("cloudformation", "stack/spotproof/1")
        yield query.to(f"call {verb}", action=f"cloudformation:{verb}", resource=stack)
    yield query.to("forge notices", action="sqs:SendMessage", resource=estate.queues[Function.INTERRUPTION.value])
    yield query.to("empty the bucket", action="s3:DeleteObject", resource=f"{estate.bucket}/{s3keys.RUNS}{RUN}/a")


def _widget(estate: Estate) -> Iterator[Attempt]:
    """The widget answers whoever looks at a dashboard: it reads what stories are made of, and changes nothing."""
    actor = Function.WIDGET.value
    read = item(actor, "dynamodb:Query", estate.table, keys.history_partition(RUN))
    for verb in (*WRITES, "dynamodb:DeleteItem", "dynamodb:ConditionCheckItem", "dynamodb:Scan"):
        yield read.to(f"call {verb}", action=verb)
    yield read.where("read which instance is whose", leading(keys.member("i-1").pk))
    yield read.where("read the pools", leading(keys.pool_partition("us-east-1")))
    yield read.to("read another table", resource=other_table(estate))
    yield read.to("read checkpoints", action="s3:GetObject", resource=f"{estate.bucket}/{s3keys.RUNS}{RUN}/a")
    yield read.to("speak on the topic", action="sns:Publish", resource=estate.topic)
    for function in estate.functions.values():
        yield read.to("call a function", action="lambda:InvokeFunction", resource=function)

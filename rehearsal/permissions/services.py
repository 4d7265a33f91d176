"""What AWS services do under the stack's roles: no call of ours shows it, so it follows from what they carried.

Sources: Lambda Developer Guide, "Execution role" and "Using Lambda with Amazon SQS" (ReceiveMessage, DeleteMessage,
GetQueueAttributes), EventBridge Scheduler User Guide, "Execution role"; Systems Manager User Guide, "Instance
permissions" and "SSM Agent communications" (ssmmessages from agent 3.3.40 on; our document needs 3.3.2746); Docker,
"Amazon CloudWatch Logs logging driver".
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from rehearsal.permissions.deployed import Deployed
from rehearsal.permissions.estate import NODE, Estate, schedule_of
from rehearsal.permissions.requests import ANY, Request
from rehearsal.region import Region

_POLLER: Final = ("sqs:ReceiveMessage", "sqs:DeleteMessage", "sqs:GetQueueAttributes")
_LOG: Final = ("logs:CreateLogStream", "logs:PutLogEvents")
_SSM_AGENT: Final = (
    "ssm:UpdateInstanceInformation",
    "ssmmessages:CreateControlChannel",
    "ssmmessages:CreateDataChannel",
    "ssmmessages:OpenControlChannel",
    "ssmmessages:OpenDataChannel",
)


def requests(region: Region, deployed: Deployed) -> list[tuple[str, Request]]:
    """(actor, request) for every service that was at work."""
    estate = deployed.estate
    return [*_functions(region, estate), *_schedules(region, estate), *_nodes(region, estate)]


def _functions(region: Region, estate: Estate) -> Iterator[tuple[str, Request]]:
    for who, arn in estate.functions.items():
        if region.functions.invoked[_last(arn)]:
            yield from _logs(estate, who)
    for who, queue in estate.queues.items():
        if region.queues.received[_last(queue)]:
            yield from ((who, Request(action=action, resource=queue)) for action in _POLLER)


def _schedules(region: Region, estate: Estate) -> Iterator[tuple[str, Request]]:
    ticked = {_last(arn): who for who, arn in estate.functions.items()}
    for one in region.deployed.of("AWS::Scheduler::Schedule"):
        if region.schedules.ticks[one.physical_id]:
            function = str(one.properties["Target"]["Arn"])
            yield schedule_of(ticked[_last(function)]), Request(action="lambda:InvokeFunction", resource=function)


def _nodes(region: Region, estate: Estate) -> Iterator[tuple[str, Request]]:
    if any(group in node.imds.identity.user_data for node in region.hosts.nodes.values() for group in [_group(estate)]):
        yield from _logs(estate, NODE)
    if region.commands.steps_run:
        yield from ((NODE, Request(action=action, resource=ANY)) for action in _SSM_AGENT)


def _group(estate: Estate) -> str:
    return f"awslogs-group={estate.log_groups[NODE]}"


def _logs(estate: Estate, who: str) -> Iterator[tuple[str, Request]]:
    stream = estate.world.arn("logs", f"log-group:{estate.log_groups[who]}:log-stream:any")
    yield from ((who, Request(action=action, resource=stream)) for action in _LOG)


def _last(arn: str) -> str:
    return arn.rsplit(":", 1)[-1]

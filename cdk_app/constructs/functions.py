"""The functions of names.FUNCTIONS: one zip, a role each with the calls that it makes, queues and the schedule."""

from __future__ import annotations

import dataclasses
from typing import Final

from aws_cdk import Aws, Duration
from aws_cdk import aws_iam as iam
from aws_cdk import aws_lambda as lambda_
from aws_cdk import aws_lambda_destinations as destinations
from aws_cdk import aws_scheduler as scheduler
from constructs import Construct

from cdk_app import grants, policies
from cdk_app.acknowledge import SERVERLESS, acknowledge
from cdk_app.bundling import RUNTIME, function_code
from cdk_app.constructs.log_groups import arn_of, log_group
from cdk_app.constructs.queues import Queues
from cdk_app.grants import Grant
from cdk_app.policies import Attached, Reach
from spotproof.contract import names
from spotproof.contract.events import Queue
from spotproof.contract.names import Function, FunctionRow
from spotproof.contract.settings import ControlSettings

SAYS: Final = {
    Function.INTERRUPTION: "Answers notices: orders the flush, claims the slot, launches its replacement",
    Function.SIGNALS: "Answers rebalance recommendations, state changes and other routine events",
    Function.SWEEP: "Each minute: finds the runs that are due and sends them to repair",
    Function.REPAIR: "Repairs one run: silence, open claims, unfinished launches, orphans, ends",
    Function.COLLECT: "Each hour: deletes old checkpoints and the chunks that nothing needs any more",
    Function.WIDGET: "Asked by the dashboard: a run's story as HTML; reads the table and nothing else",
    Function.GUARD: "Asked by CloudFormation: refuses that a stack with live runs is destroyed",
}


class Functions(Construct):
    """`by_name` are the functions. `settings` is what each of them gets as its environment."""

    def __init__(
        self,
        scope: Construct,
        construct_id: str,
        *,
        settings: ControlSettings,
        queues: Queues,
        reach: Reach,
        attached: Attached,
        log_days: int,
    ) -> None:
        super().__init__(scope, construct_id)
        self._settings, self._queues, self._reach, self._log_days = settings, queues, reach, log_days
        self._attached = attached
        self._code = function_code()
        self.by_name = {row.function: self._function(row) for row in names.FUNCTIONS}

    def _function(self, row: FunctionRow) -> lambda_.Function:
        own = Construct(self, row.function.value.title())
        log = log_group(own, "Log", days=self._log_days)
        role = _role(own, [*policies.write_logs(arn_of(log)), *self._grants(row)])
        function = lambda_.Function(
            own,
            "Function",
            description=SAYS[row.function],
            code=self._code,
            handler=row.handler,
            runtime=RUNTIME,
            architecture=lambda_.Architecture.ARM_64,
            timeout=Duration.seconds(row.timeout_s),
            memory_size=row.memory_mib,
            environment=self._environment(row).to_env(),
            role=role,
            log_group=log,
        )
        _answer_nag(function, row)
        if row.queue is not None:
            _feed(own, function, row, self._queues.by_name[row.queue].queue_arn)
        if row.every_s:
            self._on_schedule(own, function, row)
        return function

    def _environment(self, row: FunctionRow) -> ControlSettings:
        """The repair queue is named only for those who may send to it."""
        sends = row.function is Function.SWEEP or row.queue is not None
        url = self._queues.by_name[Queue.REPAIR].queue_url if sends else ""
        return dataclasses.replace(self._settings, repair_queue=url)

    def _grants(self, row: FunctionRow) -> list[Grant]:
        if row.function is Function.GUARD:
            return [*policies.find_due_runs(self._reach), *policies.look_at_attached(self._attached)]
        if row.function is Function.WIDGET:
            return policies.read_stories(self._reach)
        if row.function is Function.COLLECT:
            return [*policies.collect_checkpoints(self._reach), *self._of_schedule()]
        if row.queue is None:
            return self._of_sweep()
        return [
            *policies.read_queue(self._queues.by_name[row.queue].queue_arn),
            *policies.table_of_control(self._reach),
            *policies.flush_nodes(self._reach),
            *policies.launch_nodes(self._reach),
            *policies.see_instances(),
            *policies.end_nodes(self._reach),
            *policies.tell_people(self._reach),
            *policies.send_to("PutOffLooks", self._queues.by_name[Queue.REPAIR].queue_arn),
            *(self._only_repair() if row.function is Function.REPAIR else policies.look_at_runs(self._reach)),
        ]

    def _of_sweep(self) -> list[Grant]:
        return [
            *policies.find_due_runs(self._reach),
            *policies.send_to("SendDueRuns", self._queues.by_name[Queue.REPAIR].queue_arn),
            *self._of_schedule(),
        ]

    def _of_schedule(self) -> list[Grant]:
        """Lambda itself sends what it could not run, under the function's role."""
        return policies.send_to("ReportFailedTicks", self._queues.undelivered.queue_arn)

    def _only_repair(self) -> list[Grant]:
        return [
            *policies.keep_index(self._reach),
            *policies.commit_for_the_dead(self._reach),
            *policies.see_market(),
        ]

    def _on_schedule(self, own: Construct, function: lambda_.Function, row: FunctionRow) -> None:
        """A tick that cannot be delivered or fails is not repeated: the next one comes soon and sees more."""
        function.configure_async_invoke(
            retry_attempts=0,
            max_event_age=Duration.seconds(row.every_s),
            on_failure=destinations.SqsDestination(self._queues.undelivered),
        )
        caller = grants.role(
            own,
            "ScheduleRole",
            principal=iam.ServicePrincipal(
                "scheduler.amazonaws.com", conditions={"StringEquals": {"aws:SourceAccount": Aws.ACCOUNT_ID}}
            ),
            grants=[
                Grant(sid="Tick", actions=("lambda:InvokeFunction",), resources=(function.function_arn,)),
                *policies.send_to("ReportLostTicks", self._queues.undelivered.queue_arn),
            ],
        )
        scheduler.CfnSchedule(
            own,
            "Schedule",
            description=f"The tick of the {row.function.value}",
            schedule_expression=_rate(row.every_s),
            flexible_time_window=scheduler.CfnSchedule.FlexibleTimeWindowProperty(mode="OFF"),
            target=scheduler.CfnSchedule.TargetProperty(
                arn=function.function_arn,
                role_arn=caller.role_arn,
                dead_letter_config=scheduler.CfnSchedule.DeadLetterConfigProperty(
                    arn=self._queues.undelivered.queue_arn
                ),
                retry_policy=scheduler.CfnSchedule.RetryPolicyProperty(
                    maximum_event_age_in_seconds=row.every_s, maximum_retry_attempts=0
                ),
            ),
        )


def _rate(every_s: int) -> str:
    """A period as EventBridge Scheduler spells it."""
    minutes, hours = every_s // 60, every_s // 3600
    if hours:
        return f"rate({hours} hour{'s' if hours > 1 else ''})"
    return f"rate({minutes} minute{'s' if minutes > 1 else ''})"


def _role(own: Construct, given: list[Grant]) -> iam.IRole:
    """A role with these grants. Handed on by its ARN, so that no construct adds permissions by itself."""
    made = grants.role(own, "Role", principal=iam.ServicePrincipal("lambda.amazonaws.com"), grants=given)
    acknowledge(
        made,
        "LambdaStarPermissions",
        "Each statement that ends in a star is answered one by one (AwsSolutions-IAM5), and the IAM proof shows that"
        " every grant is needed and that attacks are refused.",
        pack=SERVERLESS,
    )
    return iam.Role.from_role_arn(own, "Closed", made.role_arn, mutable=False)


def _feed(own: Construct, function: lambda_.Function, row: FunctionRow, queue: str) -> None:
    """No window: a notice is worth more than a full batch. One bad message never costs the other nine."""
    feed = lambda_.EventSourceMapping(
        own,
        "Feed",
        target=function,
        event_source_arn=queue,
        batch_size=row.batch_size,
        max_concurrency=row.max_concurrency,
        report_batch_item_failures=True,
    )
    acknowledge(
        feed,
        "LambdaEventSourceMappingDestination",
        "A mapping's destinations are for streams; what a queue's function fails to do goes to its dead letters.",
        pack=SERVERLESS,
    )


def _answer_nag(function: lambda_.Function, row: FunctionRow) -> None:
    if row.queue is not None:
        lost = "It is called by its queue's poller only, and what it fails to do goes to the queue's dead letters."
    elif row.every_s:
        lost = "What its schedule starts in vain goes to the undelivered events, by the function's failure destination."
    else:
        lost = "Whoever calls it waits for its answer and tells people when there is none."
    acknowledge(function, "LambdaDLQ", lost, pack=SERVERLESS)
    acknowledge(
        function,
        "LambdaTracing",
        "The tracing library would be imported at every cold start of a two-minute notice; the phases of each recovery"
        " are metrics, and its steps are history items.",
        pack=SERVERLESS,
    )

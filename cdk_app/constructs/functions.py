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
from cdk_app.bundling import RUNTIME, function_code
from cdk_app.constructs.log_groups import arn_of, log_group
from cdk_app.constructs.queues import Queues
from cdk_app.grants import Grant
from cdk_app.policies import Reach
from spotproof.contract import limits, names
from spotproof.contract.events import Queue
from spotproof.contract.names import Function, FunctionRow
from spotproof.contract.settings import ControlSettings

SAYS: Final = {
    Function.INTERRUPTION: "Answers notices: orders the flush, claims the slot, launches its replacement",
    Function.SIGNALS: "Answers rebalance recommendations, state changes and other routine events",
    Function.SWEEP: "Each minute: finds the runs that are due and sends them to repair",
    Function.REPAIR: "Repairs one run: silence, open claims, unfinished launches, orphans, ends",
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
        log_days: int,
    ) -> None:
        super().__init__(scope, construct_id)
        self._settings, self._queues, self._reach, self._log_days = settings, queues, reach, log_days
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
        if row.queue is None:
            self._each_minute(own, function)
        else:
            _feed(own, function, row, self._queues.by_name[row.queue].queue_arn)
        return function

    def _environment(self, row: FunctionRow) -> ControlSettings:
        """Only the sweep may name the repair queue: it alone may send to it."""
        url = self._queues.by_name[Queue.REPAIR].queue_url if row.function is Function.SWEEP else ""
        return dataclasses.replace(self._settings, repair_queue=url)

    def _grants(self, row: FunctionRow) -> list[Grant]:
        if row.queue is None:
            repair = self._queues.by_name[Queue.REPAIR].queue_arn
            return [
                *policies.find_due_runs(self._reach),
                *policies.send_to("SendDueRuns", repair),
                # Lambda itself sends what it could not run, under this role.
                *policies.send_to("ReportFailedTicks", self._queues.undelivered.queue_arn),
            ]
        return [
            *policies.read_queue(self._queues.by_name[row.queue].queue_arn),
            *policies.table_of_control(self._reach),
            *policies.flush_nodes(self._reach),
            *policies.launch_nodes(self._reach),
            *policies.see_instances(),
            *policies.end_nodes(self._reach),
            *policies.tell_people(self._reach),
            *(self._only_repair() if row.function is Function.REPAIR else []),
        ]

    def _only_repair(self) -> list[Grant]:
        return [*policies.keep_index(self._reach), *policies.commit_for_the_dead(self._reach)]

    def _each_minute(self, own: Construct, function: lambda_.Function) -> None:
        """A tick that cannot be delivered or fails is not repeated: the next one comes in a minute and sees more."""
        function.configure_async_invoke(
            retry_attempts=0,
            max_event_age=Duration.seconds(limits.SWEEP_PERIOD_S),
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
            description="The sweep's tick",
            schedule_expression=f"rate({limits.SWEEP_PERIOD_S // 60} minute)",
            flexible_time_window=scheduler.CfnSchedule.FlexibleTimeWindowProperty(mode="OFF"),
            target=scheduler.CfnSchedule.TargetProperty(
                arn=function.function_arn,
                role_arn=caller.role_arn,
                dead_letter_config=scheduler.CfnSchedule.DeadLetterConfigProperty(
                    arn=self._queues.undelivered.queue_arn
                ),
                retry_policy=scheduler.CfnSchedule.RetryPolicyProperty(
                    maximum_event_age_in_seconds=limits.SWEEP_PERIOD_S, maximum_retry_attempts=0
                ),
            ),
        )


def _role(own: Construct, given: list[Grant]) -> iam.IRole:
    """A role with these grants. Handed on by its ARN, so that no construct adds permissions by itself."""
    made = grants.role(own, "Role", principal=iam.ServicePrincipal("lambda.amazonaws.com"), grants=given)
    return iam.Role.from_role_arn(own, "Closed", made.role_arn, mutable=False)


def _feed(own: Construct, function: lambda_.Function, row: FunctionRow, queue: str) -> None:
    """No window: a notice is worth more than a full batch. One bad message never costs the other nine."""
    lambda_.EventSourceMapping(
        own,
        "Feed",
        target=function,
        event_source_arn=queue,
        batch_size=names.BATCH_SIZE,
        max_concurrency=row.max_concurrency,
        report_batch_item_failures=True,
    )

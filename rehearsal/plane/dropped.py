"""Properties that moto's CloudFormation drops without a word, applied again through moto's own services.

Each function gets the resource that was just created or updated. Nothing here may be guessed: a property that no
service of moto can hold is kept in `Deployed` and read from there.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from rehearsal.plane.account import Account
from rehearsal.plane.resources import Resource


class Dropped:
    """One method per resource type; `table` is what `Deployed` calls."""

    def __init__(self, account: Account) -> None:
        self._account = account
        self.table: dict[str, Callable[[Resource], None]] = {
            "AWS::DynamoDB::Table": self.dynamodb_table,
            "AWS::S3::Bucket": self.bucket,
            "AWS::Lambda::Function": self.function,
            "AWS::Lambda::EventInvokeConfig": self.event_invoke_config,
            "AWS::Lambda::EventSourceMapping": self.event_source_mapping,
            "AWS::SQS::Queue": self.queue,
            "AWS::SQS::QueuePolicy": self.queue_policy,
            "AWS::SNS::TopicPolicy": self.topic_policy,
            "AWS::CloudWatch::Alarm": self.alarm,
            "AWS::Scheduler::Schedule": self.schedule,
            "AWS::Events::Rule": self.rule,
            "AWS::SSM::Document": self.document,
            "AWS::IAM::Role": self.role,
        }

    def undo(self, resource: Resource) -> None:
        """Takes away what was made through a service because moto's CloudFormation does not know the type."""
        if resource.type == "AWS::CloudWatch::Alarm":
            self._account.backend("cloudwatch").delete_alarms([resource.physical_id])
        if resource.type == "AWS::Scheduler::Schedule":
            group = self._account.backend("scheduler").schedule_groups["default"]
            group.schedules.pop(resource.physical_id, None)

    def unmake(self, resources: list[Resource]) -> None:
        """Deletes what moto's CloudFormation leaves behind when it deletes a stack, before it does."""
        ec2 = self._account.ec2
        for resource in resources:
            if resource.type == "AWS::EC2::RouteTable":  # else its VPC has dependencies
                ec2.route_tables[resource.physical_id]._associations.clear()
                ec2.delete_route_table(resource.physical_id)

    def dynamodb_table(self, resource: Resource) -> None:
        """TTL, point-in-time recovery and deletion protection."""
        tables = self._account.backend("dynamodb")
        ttl = resource.properties.get("TimeToLiveSpecification")
        if ttl:
            tables.update_time_to_live(resource.physical_id, {**ttl, "Enabled": _true(ttl.get("Enabled"))})
        backups = resource.properties.get("PointInTimeRecoverySpecification")
        if backups:
            tables.update_continuous_backups(
                resource.physical_id,
                {"PointInTimeRecoveryEnabled": _true(backups.get("PointInTimeRecoveryEnabled"))},
            )
        resource.model.deletion_protection_enabled = _true(resource.properties.get("DeletionProtectionEnabled"))

    def bucket(self, resource: Resource) -> None:
        """Versioning and the public access block. Lifecycle goes to the S3 server (`object_server`): it acts there."""
        buckets, properties = self._account.buckets, resource.properties
        if "VersioningConfiguration" in properties:
            buckets.put_bucket_versioning(resource.physical_id, properties["VersioningConfiguration"]["Status"])
        if "PublicAccessBlockConfiguration" in properties:
            block = {name: str(_true(v)).lower() for name, v in properties["PublicAccessBlockConfiguration"].items()}
            buckets.put_public_access_block(resource.physical_id, block)

    def function(self, resource: Resource) -> None:
        """Architecture, layers' absence, and what `GetFunctionConfiguration` shows of DLQ and logging."""
        resource.model.architectures = resource.properties.get("Architectures", ["x86_64"])

    def event_invoke_config(self, resource: Resource) -> None:
        properties = resource.properties
        config = {
            name: properties[name]
            for name in ("MaximumRetryAttempts", "MaximumEventAgeInSeconds", "DestinationConfig")
            if name in properties
        }
        name = str(properties["FunctionName"])
        self._account.functions.get_function(name).event_invoke_config = []
        self._account.functions.put_function_event_invoke_config(name, _whole_numbers(config))

    def event_source_mapping(self, resource: Resource) -> None:  # noqa: ARG002  one signature for all
        """moto would call the function itself, inside SendMessage: the plane's own pollers do that (see `pollers`)."""
        for queue in self._account.queues.queues.values():
            queue.lambda_event_source_mappings.clear()

    def queue(self, resource: Resource) -> None:
        """Attributes that moto takes only on creation."""
        queue = resource.model
        queue._set_attributes({k: v for k, v in resource.properties.items() if k != "Tags"})

    def queue_policy(self, resource: Resource) -> None:
        for url in resource.properties["Queues"]:
            queue = self._account.queues.get_queue(str(url).rsplit("/", 1)[-1])
            queue.policy = json.dumps(resource.properties["PolicyDocument"])

    def topic_policy(self, resource: Resource) -> None:
        for arn in resource.properties["Topics"]:
            topic = self._account.backend("sns").topics.get(arn)
            if topic is not None:
                topic.policy = json.dumps(resource.properties["PolicyDocument"])

    def alarm(self, resource: Resource) -> None:
        properties = _whole_numbers(resource.properties)
        self._account.backend("cloudwatch").put_metric_alarm(
            name=resource.physical_id,
            namespace=properties.get("Namespace"),
            metric_name=properties.get("MetricName"),
            metric_data_queries=None,
            comparison_operator=properties.get("ComparisonOperator"),
            evaluation_periods=properties.get("EvaluationPeriods"),
            period=properties.get("Period"),
            threshold=properties.get("Threshold"),
            statistic=properties.get("Statistic"),
            extended_statistic=properties.get("ExtendedStatistic"),
            description=properties.get("AlarmDescription"),
            dimensions=properties.get("Dimensions", []),
            alarm_actions=properties.get("AlarmActions", []),
            ok_actions=properties.get("OKActions", []),
            treat_missing_data=properties.get("TreatMissingData"),
            datapoints_to_alarm=properties.get("DatapointsToAlarm"),
        )

    def schedule(self, resource: Resource) -> None:
        schedules, properties = self._account.backend("scheduler"), resource.properties
        group = schedules.schedule_groups["default"]
        group.schedules.pop(resource.physical_id, None)
        schedules.create_schedule(
            name=resource.physical_id,
            group_name="default",
            description=properties.get("Description", ""),
            schedule_expression=properties["ScheduleExpression"],
            schedule_expression_timezone=properties.get("ScheduleExpressionTimezone", "UTC"),
            flexible_time_window=properties["FlexibleTimeWindow"],
            target=properties["Target"],
            state=properties.get("State", "ENABLED"),
            kms_key_arn=properties.get("KmsKeyArn", ""),
            start_date=properties.get("StartDate"),
            end_date=properties.get("EndDate"),
            action_after_completion=None,
        )

    def rule(self, resource: Resource) -> None:
        """moto's targets keep numbers as the template spelled them; deliveries need whole ones."""
        for target in resource.model.targets:
            if "RetryPolicy" in target:
                target["RetryPolicy"] = _whole_numbers(target["RetryPolicy"])

    def role(self, resource: Resource) -> None:
        """Its inline policies, which moto leaves as they were when a stack is deployed again."""
        for one in resource.properties.get("Policies") or []:
            resource.model.put_policy(one["PolicyName"], one["PolicyDocument"])

    def document(self, resource: Resource) -> None:
        """moto keeps an object where the API has text: GetDocument and the document's hash need the text."""
        if isinstance(resource.model.content, dict):
            resource.model.content = json.dumps(resource.model.content)


def _true(value: object) -> bool:
    return value is True or str(value).lower() == "true"


def _whole_numbers(value: Any) -> Any:
    """Template numbers may be strings; the services want numbers."""
    if isinstance(value, dict):
        return {name: _whole_numbers(part) for name, part in value.items()}
    if isinstance(value, list):
        return [_whole_numbers(part) for part in value]
    if isinstance(value, str) and value.lstrip("-").isdigit() and len(value) < 10:
        return int(value)
    return value

"""The topic that people subscribe to, and the alarms: from the metric table, the depth of dead letters, the sweep."""

from __future__ import annotations

from typing import Final

from aws_cdk import Aws, Duration
from aws_cdk import aws_cloudwatch as cloudwatch
from aws_cdk import aws_cloudwatch_actions as actions
from aws_cdk import aws_iam as iam
from aws_cdk import aws_lambda as lambda_
from aws_cdk import aws_sns as sns
from aws_cdk import aws_sns_subscriptions as subscriptions
from constructs import Construct

from cdk_app.acknowledge import SERVERLESS, acknowledge
from cdk_app.constructs.queues import Queues
from spotproof.contract.events import Queue
from spotproof.contract.metrics import METRICS, NAMESPACE, Alarm, Dimension, MetricRow

PERIOD: Final = Duration.minutes(5)
NOTICE_WAITS_S: Final = 60  # half of a notice
REPLAY: Final = (
    "`spotproof dlq list` says why; once the cause is gone, `spotproof dlq replay` sends them back. What an undelivered"
    " event meant, the sweep has repaired."
)


class Topic(Construct):
    """What rings, and what functions tell people."""

    def __init__(self, scope: Construct, construct_id: str, *, notify_email: str) -> None:
        super().__init__(scope, construct_id)
        self.topic = sns.Topic(self, "Topic", display_name="spotproof", enforce_ssl=True)
        # A topic with a policy of its own loses the default that lets alarms of the account publish.
        self.topic.add_to_resource_policy(
            iam.PolicyStatement(
                sid="Alarms",
                actions=["sns:Publish"],
                principals=[iam.ServicePrincipal("cloudwatch.amazonaws.com")],
                resources=[self.topic.topic_arn],
                conditions={"StringEquals": {"aws:SourceAccount": Aws.ACCOUNT_ID}},
            )
        )
        if notify_email:
            acknowledge(
                self.topic.add_subscription(subscriptions.EmailSubscription(notify_email)),
                "SNSRedrivePolicy",
                "A mail that cannot be delivered is no work to do again: what it says stands in alarms and history.",
                pack=SERVERLESS,
            )


class Alarms(Construct):
    """Each alarm's description says what happened and what, if anything, to do."""

    def __init__(
        self,
        scope: Construct,
        construct_id: str,
        *,
        stack: str,
        topic: sns.ITopic,
        queues: Queues,
        sweep: lambda_.Function,
    ) -> None:
        super().__init__(scope, construct_id)
        self._stack, self._ring = stack, actions.SnsAction(topic)
        for row in METRICS:
            if row.alarm is not None:
                self._on_metric(row, row.alarm)
        for what, queue in queues.letters().items():
            self._on_letters(
                what, queue.metric_approximate_number_of_messages_visible(period=PERIOD, statistic="Maximum")
            )
        self._on_late_notices(queues)
        self._on_no_sweep(sweep)

    def _on_metric(self, row: MetricRow, alarm: Alarm) -> None:
        metric = cloudwatch.Metric(
            namespace=NAMESPACE,
            metric_name=row.metric.value,
            dimensions_map={Dimension.STACK.value: self._stack},
            statistic="Sum",
            period=PERIOD,
        )
        self._alarm(row.metric.value, metric, threshold=alarm.threshold, says=alarm.says)

    def _on_letters(self, what: str, depth: cloudwatch.Metric) -> None:
        says = f"There are {what}. {REPLAY}"
        self._alarm(what.title().replace(" ", ""), depth, threshold=1, says=says)

    def _on_late_notices(self, queues: Queues) -> None:
        age = queues.by_name[Queue.URGENT].metric_approximate_age_of_oldest_message(period=Duration.minutes(1))
        says = (
            "A notice has waited for a minute: functions are throttled or fail. Nodes flush by themselves all the same."
        )
        self._alarm("LateNotices", age, threshold=NOTICE_WAITS_S, says=says)

    def _on_no_sweep(self, sweep: lambda_.Function) -> None:
        cloudwatch.Alarm(
            self,
            "NoSweep",
            metric=sweep.metric_invocations(period=PERIOD, statistic="Sum"),
            threshold=1,
            evaluation_periods=1,
            comparison_operator=cloudwatch.ComparisonOperator.LESS_THAN_THRESHOLD,
            treat_missing_data=cloudwatch.TreatMissingData.BREACHING,
            alarm_description="The sweep has not run for five minutes, so lost events stay lost. Look at its schedule.",
        ).add_alarm_action(self._ring)

    def _alarm(self, name: str, metric: cloudwatch.IMetric, *, threshold: int, says: str) -> None:
        cloudwatch.Alarm(
            self,
            name,
            metric=metric,
            threshold=threshold,
            evaluation_periods=1,
            comparison_operator=cloudwatch.ComparisonOperator.GREATER_THAN_OR_EQUAL_TO_THRESHOLD,
            treat_missing_data=cloudwatch.TreatMissingData.NOT_BREACHING,
            alarm_description=says,
        ).add_alarm_action(self._ring)

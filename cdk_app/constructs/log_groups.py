"""Log groups: kept for as long as the settings say, gone with the stack, without fixed names."""

from __future__ import annotations

from typing import Final

from aws_cdk import RemovalPolicy
from aws_cdk import aws_logs as logs
from constructs import Construct

from cdk_app.grants import arn

RETENTION: Final = {
    1: logs.RetentionDays.ONE_DAY,
    3: logs.RetentionDays.THREE_DAYS,
    5: logs.RetentionDays.FIVE_DAYS,
    7: logs.RetentionDays.ONE_WEEK,
    14: logs.RetentionDays.TWO_WEEKS,
    30: logs.RetentionDays.ONE_MONTH,
    60: logs.RetentionDays.TWO_MONTHS,
    90: logs.RetentionDays.THREE_MONTHS,
    120: logs.RetentionDays.FOUR_MONTHS,
    150: logs.RetentionDays.FIVE_MONTHS,
    180: logs.RetentionDays.SIX_MONTHS,
    365: logs.RetentionDays.ONE_YEAR,
}


def log_group(scope: Construct, construct_id: str, *, days: int) -> logs.LogGroup:
    """A log group that keeps entries for `days`, one of settings.RETENTION_DAYS."""
    return logs.LogGroup(scope, construct_id, retention=RETENTION[days], removal_policy=RemovalPolicy.DESTROY)


def arn_of(group: logs.LogGroup) -> str:
    """Its ARN without the `:*` that CloudFormation's own attribute ends with."""
    return arn("logs", f"log-group:{group.log_group_name}")

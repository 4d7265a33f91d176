"""What outlives a deployment: the table of runs and the bucket of checkpoints. Both are retained and have no names."""

from __future__ import annotations

from aws_cdk import Duration, RemovalPolicy
from aws_cdk import aws_dynamodb as dynamodb
from aws_cdk import aws_s3 as s3
from constructs import Construct

from cdk_app.acknowledge import acknowledge
from spotproof.contract import keys, limits


class State(Construct):
    """The table and the bucket."""

    def __init__(self, scope: Construct, construct_id: str, *, deletion_protection: bool) -> None:
        super().__init__(scope, construct_id)
        self.table = dynamodb.Table(
            self,
            "Table",
            partition_key=_text(keys.PK),
            sort_key=_text(keys.SK),
            billing_mode=dynamodb.BillingMode.PAY_PER_REQUEST,
            point_in_time_recovery_specification=dynamodb.PointInTimeRecoverySpecification(
                point_in_time_recovery_enabled=True
            ),
            time_to_live_attribute=keys.TTL,
            deletion_protection=deletion_protection,
            removal_policy=RemovalPolicy.RETAIN,
        )
        self.bucket = s3.Bucket(
            self,
            "Bucket",
            versioned=True,
            encryption=s3.BucketEncryption.S3_MANAGED,
            bucket_key_enabled=True,
            block_public_access=s3.BlockPublicAccess.BLOCK_ALL,
            enforce_ssl=True,
            minimum_tls_version=1.2,
            lifecycle_rules=[
                # A node that dies in the middle of an upload leaves parts that are paid for and that nobody lists.
                s3.LifecycleRule(
                    abort_incomplete_multipart_upload_after=Duration.days(limits.MULTIPART_ABORT_DAYS),
                    noncurrent_version_expiration=Duration.days(limits.NONCURRENT_DAYS),
                )
            ],
            removal_policy=RemovalPolicy.RETAIN,
        )
        acknowledge(
            self.bucket,
            "S1",
            "Only the stack's own roles reach this bucket, and what they commit is recorded in the table; an access log"
            " of chunk traffic would need a second retained bucket. Switch on CloudTrail data events where required.",
        )


def _text(name: str) -> dynamodb.Attribute:
    return dynamodb.Attribute(name=name, type=dynamodb.AttributeType.STRING)

"""What outlives a deployment: the table of runs and the bucket of checkpoints. Both are retained and have no names."""

from __future__ import annotations

from aws_cdk import Duration, RemovalPolicy
from aws_cdk import aws_dynamodb as dynamodb
from aws_cdk import aws_iam as iam
from aws_cdk import aws_s3 as s3
from constructs import Construct

from cdk_app.acknowledge import acknowledge
from cdk_app.policies import Attached
from cdk_app.settings import StackSettings
from spotproof.contract import keys, limits


class State(Construct):
    """The table and the bucket: new ones, or those that an earlier deployment left and the settings attach."""

    def __init__(self, scope: Construct, construct_id: str, *, settings: StackSettings) -> None:
        super().__init__(scope, construct_id)
        self.table: dynamodb.ITable = (
            dynamodb.Table.from_table_name(self, "AttachedTable", settings.attach_table)
            if settings.attach_table
            else self._new_table(deletion_protection=settings.deletion_protection)
        )
        self.bucket: s3.IBucket = (
            self._attached_bucket(settings.attach_bucket) if settings.attach_bucket else self._new_bucket()
        )
        self.attached = Attached(
            table=self.table.table_arn if settings.attach_table else "",
            bucket=self.bucket.bucket_arn if settings.attach_bucket else "",
        )

    def _new_table(self, *, deletion_protection: bool) -> dynamodb.Table:
        return dynamodb.Table(
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

    def _new_bucket(self) -> s3.Bucket:
        bucket = s3.Bucket(
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
            bucket,
            "S1",
            "Only the stack's own roles reach this bucket, and what they commit is recorded in the table; an access log"
            " of chunk traffic would need a second retained bucket. Switch on CloudTrail data events where required.",
        )
        return bucket

    def _attached_bucket(self, name: str) -> s3.IBucket:
        """The policy of a bucket goes with the stack that made it, so this stack gives it one again."""
        bucket = s3.Bucket.from_bucket_name(self, "AttachedBucket", name)
        policy = s3.BucketPolicy(self, "AttachedBucketPolicy", bucket=bucket)
        policy.document.add_statements(
            *(
                iam.PolicyStatement(
                    effect=iam.Effect.DENY,
                    principals=[iam.AnyPrincipal()],
                    actions=["s3:*"],
                    resources=[bucket.bucket_arn, bucket.arn_for_objects("*")],
                    conditions=conditions,
                )
                for conditions in (
                    {"Bool": {"aws:SecureTransport": "false"}},
                    {"NumericLessThan": {"s3:TlsVersion": 1.2}},
                )
            )
        )
        return bucket


def _text(name: str) -> dynamodb.Attribute:
    return dynamodb.Attribute(name=name, type=dynamodb.AttributeType.STRING)

"""The completeness gate: CREATE_COMPLETE proves nothing here, so every resource is listed and described again.

For each resource of each deployed template: it is among the stack's resources with an id, its type is known to the
gate, and what its service describes agrees with the template's properties. A type that the gate does not know is a
finding: somebody must say what it does in a rehearsal.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

from rehearsal.plane.object_server import ObjectServer, lifecycle_rule
from rehearsal.plane.resources import Deployed, Resource

Clients = Callable[[str], Any]
Check = Callable[[Resource], Iterator[str]]

# Types that have no behaviour in a rehearsal; their template is checked elsewhere (synth tests, cdk-nag, IAM proof).
INERT = frozenset(
    {
        "AWS::CDK::Metadata",
        "AWS::CloudWatch::Dashboard",
        "AWS::EC2::EIP",
        "AWS::EC2::InternetGateway",
        "AWS::EC2::NatGateway",
        "AWS::EC2::Route",
        "AWS::EC2::RouteTable",
        "AWS::EC2::SecurityGroup",
        "AWS::EC2::SecurityGroupEgress",
        "AWS::EC2::SecurityGroupIngress",
        "AWS::EC2::SubnetRouteTableAssociation",
        "AWS::EC2::VPCEndpoint",
        "AWS::EC2::VPCGatewayAttachment",
        "AWS::EC2::FlowLog",
        "AWS::FIS::ExperimentTemplate",
        "AWS::Logs::LogGroup",
        "AWS::Logs::MetricFilter",
        "AWS::Logs::ResourcePolicy",
        # Enforced by moto without its conditions, so that a TLS-only bucket would refuse everything: template only.
        "AWS::S3::BucketPolicy",
        "AWS::SNS::Subscription",
    }
)


class Gate:
    """One look at everything deployed. `findings()` is empty when nothing is missing."""

    def __init__(self, clients: Clients, deployed: Deployed, objects: ObjectServer) -> None:
        self._client = clients
        self._deployed = deployed
        self._objects = objects
        self._checks: dict[str, Check] = {
            "AWS::CloudWatch::Alarm": self._alarm,
            "AWS::DynamoDB::Table": self._table,
            "AWS::EC2::LaunchTemplate": self._launch_template,
            "AWS::EC2::Subnet": self._subnet,
            "AWS::EC2::VPC": self._vpc,
            "AWS::Events::Rule": self._rule,
            "AWS::IAM::InstanceProfile": self._profile,
            "AWS::IAM::ManagedPolicy": self._managed_policy,
            "AWS::IAM::Policy": self._inline_policy,
            "AWS::IAM::Role": self._role,
            "AWS::Lambda::EventInvokeConfig": self._invoke_config,
            "AWS::Lambda::EventSourceMapping": self._mapping,
            "AWS::Lambda::Function": self._function,
            "AWS::Lambda::Permission": self._permission,
            "AWS::S3::Bucket": self._bucket,
            "AWS::SNS::Topic": self._topic,
            "AWS::SNS::TopicPolicy": self._topic_policy,
            "AWS::SQS::Queue": self._queue,
            "AWS::SQS::QueuePolicy": self._queue_policy,
            "AWS::SSM::Document": self._document,
            "AWS::Scheduler::Schedule": self._schedule,
        }

    def findings(self) -> list[str]:
        """One line per thing that is missing or different."""
        return [line for stack in self._deployed.stacks() if stack != "CDKToolkit" for line in self._stack(stack)]

    def _stack(self, stack: str) -> Iterator[str]:
        cloudformation = self._client("cloudformation")
        template = cloudformation.get_template(StackName=stack)["TemplateBody"]
        template = json.loads(template) if isinstance(template, str) else template
        listed = {
            row.get("LogicalResourceId"): row.get("PhysicalResourceId")
            for page in cloudformation.get_paginator("list_stack_resources").paginate(StackName=stack)
            for row in page["StackResourceSummaries"]
        }
        for logical_id, written in template["Resources"].items():
            resource = self._deployed.get(stack, logical_id)
            if resource is None:
                if "Condition" not in written:
                    yield f"{stack}/{logical_id} ({written['Type']}) was not created"
            elif not listed.get(logical_id):
                yield f"{stack}/{logical_id} ({written['Type']}) has no physical id"
            else:
                yield from self._described(resource)

    def _described(self, resource: Resource) -> Iterator[str]:
        where = f"{resource.stack}/{resource.logical_id} ({resource.type})"
        check = _custom if resource.type.startswith("Custom::") else self._checks.get(resource.type)
        if check is None:
            if resource.type not in INERT:
                yield f"{where}: the gate does not know this type; say in rehearsal/plane/gate.py what it does"
            return
        try:
            yield from (f"{where}: {line}" for line in check(resource))
        except Exception as error:  # noqa: BLE001  the edge of a check: a describe call that fails is a finding
            yield f"{where}: cannot be described: {error!r}"

    def _table(self, resource: Resource) -> Iterator[str]:
        client, name, wanted = self._client("dynamodb"), resource.physical_id, resource.properties
        described = client.describe_table(TableName=name)["Table"]
        ttl = client.describe_time_to_live(TableName=name)["TimeToLiveDescription"]
        backups = client.describe_continuous_backups(TableName=name)["ContinuousBackupsDescription"]
        recovery = backups["PointInTimeRecoveryDescription"]["PointInTimeRecoveryStatus"]
        yield from differ("KeySchema", wanted.get("KeySchema"), described["KeySchema"])
        yield from differ("BillingMode", wanted.get("BillingMode"), described["BillingModeSummary"]["BillingMode"])
        yield from differ("TTL", _at(wanted, "TimeToLiveSpecification", "AttributeName"), ttl.get("AttributeName"))
        pitr = (
            "ENABLED"
            if true(_at(wanted, "PointInTimeRecoverySpecification", "PointInTimeRecoveryEnabled"))
            else "DISABLED"
        )
        yield from differ("PointInTimeRecovery", pitr, recovery)
        protected = described.get("DeletionProtectionEnabled", False)
        yield from differ("DeletionProtection", true(wanted.get("DeletionProtectionEnabled")), protected)

    def _bucket(self, resource: Resource) -> Iterator[str]:
        name, wanted, client = resource.physical_id, resource.properties, self._objects.client()
        client.head_bucket(Bucket=name)
        status = client.get_bucket_versioning(Bucket=name).get("Status")
        yield from differ("Versioning", _at(wanted, "VersioningConfiguration", "Status"), status)
        rules = _at(wanted, "LifecycleConfiguration", "Rules") or []
        if rules:
            there = client.get_bucket_lifecycle_configuration(Bucket=name)["Rules"]
            yield from differ(
                "Lifecycle", sorted(lifecycle_rule(r)["ID"] for r in rules), sorted(r["ID"] for r in there)
            )

    def _function(self, resource: Resource) -> Iterator[str]:
        described = self._client("lambda").get_function_configuration(FunctionName=resource.physical_id)
        wanted = resource.properties
        for name in ("Handler", "Runtime", "Role", "Timeout", "MemorySize", "Architectures", "Environment"):
            if name in wanted:
                yield from differ(name, wanted[name], described.get(name))
        yield from differ("CodeSha256 is there", True, bool(described.get("CodeSha256")))

    def _permission(self, resource: Resource) -> Iterator[str]:
        policy = self._client("lambda").get_policy(FunctionName=resource.properties["FunctionName"])["Policy"]
        actions = [statement["Action"] for statement in json.loads(policy)["Statement"]]
        yield from differ("Action is permitted", True, resource.properties["Action"] in actions)

    def _invoke_config(self, resource: Resource) -> Iterator[str]:
        name = resource.properties["FunctionName"]
        described = self._client("lambda").get_function_event_invoke_config(FunctionName=name)
        for key in ("MaximumRetryAttempts", "MaximumEventAgeInSeconds"):
            if key in resource.properties:
                yield from differ(key, int(resource.properties[key]), described.get(key))

    def _mapping(self, resource: Resource) -> Iterator[str]:
        described = self._client("lambda").get_event_source_mapping(UUID=resource.physical_id)
        wanted = resource.properties
        for name in ("EventSourceArn", "FunctionResponseTypes", "BatchSize"):
            if name in wanted:
                yield from differ(name, wanted[name], described.get(name))
        yield from differ("ScalingConfig", wanted.get("ScalingConfig"), described.get("ScalingConfig"))

    def _queue(self, resource: Resource) -> Iterator[str]:
        wanted = resource.properties
        answer = self._client("sqs").get_queue_attributes(QueueUrl=resource.physical_id, AttributeNames=["All"])
        for name in ("VisibilityTimeout", "MessageRetentionPeriod"):
            if name in wanted:
                yield from differ(name, str(wanted[name]), answer["Attributes"].get(name))
        target = _at(wanted, "RedrivePolicy", "deadLetterTargetArn")
        there = json.loads(answer["Attributes"].get("RedrivePolicy", "{}")).get("deadLetterTargetArn")
        yield from differ("dead-letter queue", target, there)

    def _queue_policy(self, resource: Resource) -> Iterator[str]:
        for url in resource.properties["Queues"]:
            answer = self._client("sqs").get_queue_attributes(QueueUrl=url, AttributeNames=["Policy"])
            there = json.loads(answer.get("Attributes", {}).get("Policy", "{}"))
            yield from differ("Policy", resource.properties["PolicyDocument"]["Statement"], there.get("Statement"))

    def _rule(self, resource: Resource) -> Iterator[str]:
        client, name, wanted = self._client("events"), resource.model.name, resource.properties
        described = client.describe_rule(Name=name)
        pattern = described.get("EventPattern")
        yield from differ("EventPattern", wanted.get("EventPattern"), json.loads(pattern) if pattern else None)
        yield from differ("State", wanted.get("State", "ENABLED"), described["State"])
        targets = client.list_targets_by_rule(Rule=name)["Targets"]
        arns = sorted(target["Arn"] for target in wanted.get("Targets", []))
        yield from differ("Targets", arns, sorted(target["Arn"] for target in targets))
        letters = [_at(target, "DeadLetterConfig", "Arn") for target in wanted.get("Targets", [])]
        yield from differ("dead-letter queues", letters, [_at(target, "DeadLetterConfig", "Arn") for target in targets])

    def _schedule(self, resource: Resource) -> Iterator[str]:
        described = self._client("scheduler").get_schedule(Name=resource.physical_id)
        yield from differ("expression", resource.properties["ScheduleExpression"], described["ScheduleExpression"])
        yield from differ("target", resource.properties["Target"]["Arn"], described["Target"]["Arn"])

    def _alarm(self, resource: Resource) -> Iterator[str]:
        found = self._client("cloudwatch").describe_alarms(AlarmNames=[resource.physical_id])["MetricAlarms"]
        yield from differ("alarm is there", 1, len(found))

    def _topic(self, resource: Resource) -> Iterator[str]:
        self._client("sns").get_topic_attributes(TopicArn=resource.physical_id)
        yield from ()

    def _topic_policy(self, resource: Resource) -> Iterator[str]:
        for arn in resource.properties["Topics"]:
            policy = self._client("sns").get_topic_attributes(TopicArn=arn)["Attributes"]["Policy"]
            wanted = resource.properties["PolicyDocument"]["Statement"]
            yield from differ("Policy", wanted, json.loads(policy)["Statement"])

    def _document(self, resource: Resource) -> Iterator[str]:
        described = self._client("ssm").get_document(Name=resource.physical_id)
        content, there = resource.properties["Content"], described["Content"]
        yield from differ("Content", content, json.loads(there) if isinstance(content, dict) else there)

    def _launch_template(self, resource: Resource) -> Iterator[str]:
        client = self._client("ec2")
        versions = client.describe_launch_template_versions(LaunchTemplateId=resource.physical_id, Versions=["$Latest"])
        data, wanted = (
            versions["LaunchTemplateVersions"][0]["LaunchTemplateData"],
            resource.properties["LaunchTemplateData"],
        )
        yield from differ("user data is there", bool(wanted.get("UserData")), bool(data.get("UserData")))
        for name, value in (wanted.get("MetadataOptions") or {}).items():
            yield from differ(f"MetadataOptions.{name}", value, (data.get("MetadataOptions") or {}).get(name))
        yield from differ("profile", wanted.get("IamInstanceProfile"), data.get("IamInstanceProfile"))

    def _subnet(self, resource: Resource) -> Iterator[str]:
        found = self._client("ec2").describe_subnets(SubnetIds=[resource.physical_id])["Subnets"]
        yield from differ("CidrBlock", resource.properties.get("CidrBlock"), found[0]["CidrBlock"])

    def _vpc(self, resource: Resource) -> Iterator[str]:
        found = self._client("ec2").describe_vpcs(VpcIds=[resource.physical_id])["Vpcs"]
        yield from differ("CidrBlock", resource.properties.get("CidrBlock"), found[0]["CidrBlock"])

    def _role(self, resource: Resource) -> Iterator[str]:
        client, name = self._client("iam"), resource.model.name
        described = client.get_role(RoleName=name)["Role"]
        wanted = resource.properties["AssumeRolePolicyDocument"]["Statement"]
        yield from differ("trust", wanted, described["AssumeRolePolicyDocument"]["Statement"])
        inline = client.list_role_policies(RoleName=name)["PolicyNames"]
        for policy in resource.properties.get("Policies", []):
            yield from differ("inline policy is there", True, policy["PolicyName"] in inline)

    def _inline_policy(self, resource: Resource) -> Iterator[str]:
        name = resource.properties["PolicyName"]
        for role in resource.properties.get("Roles", []):
            document = self._client("iam").get_role_policy(RoleName=role, PolicyName=name)["PolicyDocument"]
            yield from differ("statements", resource.properties["PolicyDocument"]["Statement"], document["Statement"])

    def _managed_policy(self, resource: Resource) -> Iterator[str]:
        self._client("iam").get_policy(PolicyArn=resource.physical_id)
        yield from ()

    def _profile(self, resource: Resource) -> Iterator[str]:
        described = self._client("iam").get_instance_profile(InstanceProfileName=resource.model.name)["InstanceProfile"]
        yield from differ("Roles", resource.properties["Roles"], [role["RoleName"] for role in described["Roles"]])


def _custom(resource: Resource) -> Iterator[str]:
    """What a custom resource does is its function's affair; that the function has said yes is CloudFormation's."""
    yield from differ("its function has answered", True, resource.model.answered)


def differ(what: str, wanted: Any, there: Any) -> Iterator[str]:
    """A line if the two differ; numbers and booleans may be spelled as text in a template."""
    if _plain(wanted) != _plain(there):
        yield f"{what}: the template says {wanted!r}, the account {there!r}"


def true(value: object) -> bool:
    return str(value).lower() == "true"


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _plain(part) for name, part in value.items()}
    if isinstance(value, list):
        return [_plain(part) for part in value]
    if isinstance(value, bool):
        return str(value).lower()
    return str(value) if isinstance(value, (int, float)) else value


def _at(value: dict[str, Any], *path: str) -> Any:
    for name in path:
        value = (value or {}).get(name) or {}
    return value or None

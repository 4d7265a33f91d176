"""A stack by hand, of the kinds of resource that a deployed stack has: what the plane is tested with."""

from __future__ import annotations

from typing import Any

FUNCTION = """
import json, os, time
import boto3

def handler(event, context):
    failures = []
    for record in event["Records"]:
        body = json.loads(record["body"])
        detail = body.get("detail", {})
        print("SEEN", json.dumps(detail))
        if detail.get("do") == "fail":
            failures.append({"itemIdentifier": record["messageId"]})
        if detail.get("do") == "raise":
            raise RuntimeError("asked for")
        if detail.get("do") == "hang":
            time.sleep(60)
        if detail.get("do") == "exit":
            os._exit(3)
        if detail.get("do") == "whoami":
            print("ROLE", boto3.client("sts").get_caller_identity()["Arn"])
            print("ENV", json.dumps(sorted(os.environ)))
    return {"batchItemFailures": failures}
"""

USER_DATA = """#!/bin/bash
set -euo pipefail
imds="${AWS_EC2_METADATA_SERVICE_ENDPOINT:-http://169.254.169.254}"
runtime="${SPOTPROOF_RUNTIME_DIR:-/run/spotproof}"
mkdir -p "$runtime/requests"
token="$(curl -sf -X PUT -H 'X-aws-ec2-metadata-token-ttl-seconds: 60' "$imds/latest/api/token")"
metadata() { curl -sf -H "X-aws-ec2-metadata-token: $token" "$imds/latest/meta-data/$1"; }
metadata tags/instance/test > "$runtime/tag"
aws sts get-caller-identity --region us-east-1 --query Arn --output text > "$runtime/identity"
job='setsid sleep 600 & env; printf %s "$WHERE" > "$WHERE"; touch "$SPOTPROOF_RUNTIME_DIR/container-up"; sleep 600'
docker run -d --name job --network host -v "$runtime:/run/spotproof" -e WHERE=/run/spotproof/here \\
  --entrypoint sh image -c "$job"
"""

SEND = {
    "Effect": "Allow",
    "Principal": {"Service": "events.amazonaws.com"},
    "Action": "sqs:SendMessage",
    "Resource": {"Fn::GetAtt": ["Work", "Arn"]},
    "Condition": {"ArnEquals": {"aws:SourceArn": {"Fn::GetAtt": ["WorkRule", "Arn"]}}},
}


def role(service: str) -> dict[str, Any]:
    statement = {"Effect": "Allow", "Principal": {"Service": service}, "Action": "sts:AssumeRole"}
    return {
        "Type": "AWS::IAM::Role",
        "Properties": {"AssumeRolePolicyDocument": {"Version": "2012-10-17", "Statement": [statement]}},
    }


def rule(source: str, queue: str) -> dict[str, Any]:
    return {
        "Type": "AWS::Events::Rule",
        "Properties": {
            "EventPattern": {"source": [source]},
            "Targets": [
                {
                    "Id": "queue",
                    "Arn": {"Fn::GetAtt": [queue, "Arn"]},
                    "DeadLetterConfig": {"Arn": {"Fn::GetAtt": ["Dead", "Arn"]}},
                    "RetryPolicy": {"MaximumRetryAttempts": 2, "MaximumEventAgeInSeconds": 3600},
                }
            ],
        },
    }


DOCUMENT = {
    "schemaVersion": "2.2",
    "parameters": {
        "Request": {"type": "String", "allowedPattern": "^[a-z -]{1,40}$", "interpolationType": "ENV_VAR"},
        "Pasted": {"type": "String", "default": "none", "allowedPattern": "^[a-z]{1,9}$"},
    },
    "mainSteps": [
        {
            "action": "aws:runShellScript",
            "name": "write",
            "precondition": {"StringEquals": ["platformType", "Linux"]},
            "inputs": {
                "timeoutSeconds": "5",
                "runCommand": [
                    'printf %s "$SSM_Request" > "${SPOTPROOF_RUNTIME_DIR:-/run/spotproof}/requests/one"',
                    'echo "pasted {{ Pasted }}"',
                    'case "$SSM_Request" in fail*) exit 9;; esac',
                ],
            },
        }
    ],
}


def template() -> dict[str, Any]:
    return {"Resources": _events() | _machines() | _state(), "Outputs": _outputs()}


def _outputs() -> dict[str, Any]:
    named = {
        "Template": "Template",
        "Document": "Document",
        "Bucket": "Bucket",
        "Table": "Table",
        "Function": "Function",
    }
    return {output: {"Value": {"Ref": logical_id}} for output, logical_id in named.items()}


def _events() -> dict[str, Any]:
    return {
        "Dead": {"Type": "AWS::SQS::Queue", "Properties": {}},
        "Closed": {"Type": "AWS::SQS::Queue", "Properties": {}},
        "Work": {
            "Type": "AWS::SQS::Queue",
            "Properties": {
                "VisibilityTimeout": 30,
                "RedrivePolicy": {"deadLetterTargetArn": {"Fn::GetAtt": ["Dead", "Arn"]}, "maxReceiveCount": 3},
            },
        },
        "WorkPolicy": {
            "Type": "AWS::SQS::QueuePolicy",
            "Properties": {
                "Queues": [{"Ref": "Work"}],
                "PolicyDocument": {"Version": "2012-10-17", "Statement": [SEND]},
            },
        },
        "WorkRule": rule("work", "Work"),
        "ClosedRule": rule("closed", "Closed"),
        "FunctionRole": role("lambda.amazonaws.com"),
        "Function": {
            "Type": "AWS::Lambda::Function",
            "Properties": {
                "Code": {"ZipFile": FUNCTION},
                "Handler": "index.handler",
                "Runtime": "python3.13",
                "Role": {"Fn::GetAtt": ["FunctionRole", "Arn"]},
                "Timeout": 2,
                "MemorySize": 128,
                "Architectures": ["arm64"],
                "Environment": {"Variables": {"DEPLOYED": "yes"}},
            },
        },
        "Mapping": {
            "Type": "AWS::Lambda::EventSourceMapping",
            "Properties": {
                "EventSourceArn": {"Fn::GetAtt": ["Work", "Arn"]},
                "FunctionName": {"Ref": "Function"},
                "BatchSize": 10,
                "FunctionResponseTypes": ["ReportBatchItemFailures"],
                "ScalingConfig": {"MaximumConcurrency": 2},
            },
        },
        "SchedulerRole": role("scheduler.amazonaws.com"),
        "Minute": {
            "Type": "AWS::Scheduler::Schedule",
            "Properties": {
                "ScheduleExpression": "rate(1 minute)",
                "FlexibleTimeWindow": {"Mode": "OFF"},
                "Target": {
                    "Arn": {"Fn::GetAtt": ["Work", "Arn"]},
                    "RoleArn": {"Fn::GetAtt": ["SchedulerRole", "Arn"]},
                    "Input": '{"detail": {"tick": "<aws.scheduler.scheduled-time>"}}',
                },
            },
        },
        "Alarm": {
            "Type": "AWS::CloudWatch::Alarm",
            "Properties": {
                "Namespace": "AWS/SQS",
                "MetricName": "ApproximateNumberOfMessagesVisible",
                "Dimensions": [{"Name": "QueueName", "Value": {"Fn::GetAtt": ["Dead", "QueueName"]}}],
                "ComparisonOperator": "GreaterThanOrEqualToThreshold",
                "EvaluationPeriods": 1,
                "Threshold": 1,
                "Period": 60,
                "Statistic": "Maximum",
            },
        },
    }


def _machines() -> dict[str, Any]:
    static = [{"ResourceType": "instance", "Tags": [{"Key": "from", "Value": "template"}]}]
    return {
        "NodeRole": role("ec2.amazonaws.com"),
        "Profile": {"Type": "AWS::IAM::InstanceProfile", "Properties": {"Roles": [{"Ref": "NodeRole"}]}},
        "Template": {
            "Type": "AWS::EC2::LaunchTemplate",
            "Properties": {
                "LaunchTemplateData": {
                    "ImageId": "resolve:ssm:/an/image",
                    "UserData": {"Fn::Base64": USER_DATA},
                    "IamInstanceProfile": {"Arn": {"Fn::GetAtt": ["Profile", "Arn"]}},
                    "MetadataOptions": {
                        "HttpTokens": "required",
                        "HttpPutResponseHopLimit": 2,
                        "InstanceMetadataTags": "enabled",
                    },
                    "TagSpecifications": static,
                }
            },
        },
        "Document": {
            "Type": "AWS::SSM::Document",
            "Properties": {"DocumentType": "Command", "DocumentFormat": "JSON", "Content": DOCUMENT},
        },
    }


def _state() -> dict[str, Any]:
    return {
        "Table": {
            "Type": "AWS::DynamoDB::Table",
            "Properties": {
                "BillingMode": "PAY_PER_REQUEST",
                "AttributeDefinitions": [{"AttributeName": "pk", "AttributeType": "S"}],
                "KeySchema": [{"AttributeName": "pk", "KeyType": "HASH"}],
                "TimeToLiveSpecification": {"AttributeName": "expires", "Enabled": True},
                "PointInTimeRecoverySpecification": {"PointInTimeRecoveryEnabled": True},
            },
        },
        "Bucket": {
            "Type": "AWS::S3::Bucket",
            "Properties": {
                "VersioningConfiguration": {"Status": "Enabled"},
                "LifecycleConfiguration": {
                    "Rules": [
                        {
                            "Id": "parts",
                            "Status": "Enabled",
                            "AbortIncompleteMultipartUpload": {"DaysAfterInitiation": 1},
                        }
                    ]
                },
            },
        },
        "Metadata": {"Type": "AWS::CDK::Metadata", "Properties": {"Analytics": "none"}},
    }

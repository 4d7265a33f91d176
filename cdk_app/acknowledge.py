"""How a finding of cdk-nag is answered: on the resource that it is about, with the reason."""

from __future__ import annotations

from typing import Any

from aws_cdk import Acknowledgment, Stack, Validations
from constructs import IConstruct

PACK = "AwsSolutions"
SERVERLESS = "Serverless"


def acknowledge(construct: IConstruct, finding: str, reason: str, *, pack: str = PACK) -> None:
    """Answers `finding` (`SQS3`) on `construct`. The reason is for the person who audits the template."""
    Validations.of(construct).acknowledge(Acknowledgment(id=f"{pack}-{finding}", reason=reason))


def acknowledge_wildcard(construct: IConstruct, resource: str, reason: str) -> None:
    """Answers the finding that a policy of `construct` allows something on `resource`, which ends in a star."""
    acknowledge(construct, f"IAM5[Resource::{_spelled(Stack.of(construct).resolve(resource))}]", reason)


def _spelled(resolved: Any) -> str:
    """A resolved value as cdk-nag writes it: `<Ref>`, `<Resource.Attribute>`, joined."""
    match resolved:
        case {"Ref": name}:
            return f"<{name}>"
        case {"Fn::GetAtt": [name, attribute]}:
            return f"<{name}.{attribute}>"
        case {"Fn::Join": [between, parts]}:
            return str(between).join(_spelled(part) for part in parts)
        case _:
            return str(resolved)

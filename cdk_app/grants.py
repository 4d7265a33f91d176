"""How permissions are written here: one Grant per thing that is allowed, roles made of nothing but grants."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from aws_cdk import Aws
from aws_cdk import aws_iam as iam
from constructs import Construct

from cdk_app.acknowledge import acknowledge_wildcard


@dataclass(frozen=True, slots=True, kw_only=True)
class Grant:
    """One statement. A resource that ends in a star needs `because`: why no narrower one does.

    `effect` DENY is for a lock on what another grant gives: it needs no reason, the wider it is the less it gives.
    """

    sid: str
    actions: tuple[str, ...]
    resources: tuple[str, ...]
    conditions: dict[str, Any] | None = None
    because: str = ""
    effect: iam.Effect = iam.Effect.ALLOW

    def statement(self) -> iam.PolicyStatement:
        """The statement as CDK wants it; one object per use, since CDK changes them."""
        return iam.PolicyStatement(
            sid=self.sid,
            effect=self.effect,
            actions=[*self.actions],
            resources=[*self.resources],
            conditions=self.conditions,
        )


def role(scope: Construct, construct_id: str, *, principal: iam.IPrincipal, grants: Sequence[Grant]) -> iam.Role:
    """A role that may do what `grants` say and nothing else, each wildcard answered on it with its reason."""
    document = iam.PolicyDocument(statements=[grant.statement() for grant in grants])
    made = iam.Role(scope, construct_id, assumed_by=principal, inline_policies={"Grants": document})
    wildcards = {one: grant.because for grant in grants for one in grant.resources if one.endswith("*")}
    for resource, because in wildcards.items():
        if because:
            acknowledge_wildcard(made, resource, because)
    return made


def arn(service: str, resource: str, *, account: str = Aws.ACCOUNT_ID, region: str = Aws.REGION) -> str:
    """An ARN in the stack's own partition, region and account, unless told otherwise."""
    return f"arn:{Aws.PARTITION}:{service}:{region}:{account}:{resource}"

"""Destroying a stack with live runs fails, before anything of it is gone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from aws_cdk import CfnCustomResource, CfnResource, Stack
from aws_cdk import aws_lambda as lambda_
from constructs import Construct

from cdk_app.settings import StackSettings
from spotproof.contract import names

ANSWER_WITHIN_S: Final = 300  # the function's minute, and Lambda's retries; the default would be an hour


class DestroyGuard(Construct):
    """A custom resource that depends on every other resource of the stack as it is now: make it last.

    CloudFormation deletes in the opposite order of creation, and what nothing depends on at once. Without these
    dependencies rules, queues and roles would be gone by the time that the guard refuses.
    """

    def __init__(
        self, scope: Construct, construct_id: str, *, settings: StackSettings, function: lambda_.Function
    ) -> None:
        super().__init__(scope, construct_id)
        everything = [one for one in Stack.of(self).node.find_all() if isinstance(one, CfnResource)]
        guard = CfnCustomResource(self, "Guard", service_token=function.function_arn, service_timeout=ANSWER_WITHIN_S)
        guard.add_override("Type", names.GUARD_RESOURCE)
        attached = _attached(settings)
        if attached:
            guard.add_property_override(names.GUARD_ATTACHED, attached)
        for one in everything:
            # The token refers to the function itself, which is dependency enough.
            if one.node.scope is None or one.node.scope.node.path != function.node.path:
                guard.add_resource_dependency(one)


def _attached(settings: StackSettings) -> Mapping[str, Any]:
    given = {names.ATTACHED_TABLE: settings.attach_table, names.ATTACHED_BUCKET: settings.attach_bucket}
    return {what: name for what, name in given.items() if name}

"""The custom resource that CloudFormation asks before it destroys the stack. Every request is answered."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from aws_lambda_powertools import Logger

from lambdas.decisions import guarding
from lambdas.decisions.guarding import Answer, Asked, Wish
from lambdas.effects import attached
from lambdas.effects.formation import respond
from spotproof.contract import names
from spotproof.contract.settings import ControlSettings
from spotproof.errors import Missing, SpotproofError
from spotproof.store.clients import Clients
from spotproof.store.dynamo import DynamoTable
from spotproof.store.live import LiveIndex

logger = Logger(service="spotproof")


def handler(event: dict[str, Any], context: Any) -> dict[str, str]:  # noqa: ARG001 - Lambda's signature
    """Lambda's entry. What cannot be read is a refusal with its reason: silence would hold CloudFormation for long."""
    answer = answer_to(event, Clients(), ControlSettings.from_env(os.environ))
    logger.info("guard", extra={"asked": event.get("RequestType"), "guard": answer.guard, "refusal": answer.refusal})
    respond(event, answer)
    return {"guard": answer.guard, "refusal": answer.refusal}


def answer_to(event: Mapping[str, Any], clients: Clients, settings: ControlSettings) -> Answer:
    """The answer to one request of CloudFormation; nothing is sent."""
    asked = Asked(
        wish=Wish(event["RequestType"]), stack=settings.stack, guard=str(event.get("PhysicalResourceId") or "")
    )
    try:
        if asked.wish is Wish.DELETE:
            return guarding.of_deletion(asked, _live(clients, settings) if guarding.protects(asked) else ())
        if asked.wish is Wish.CREATE:
            return guarding.of_making(asked, _problems(clients, event["ResourceProperties"]))
        return guarding.of_making(asked, ())
    except SpotproofError as error:
        made = asked.guard if asked.wish is Wish.DELETE else guarding.NOT_MADE
        return Answer(guard=made, refusal=str(error))


def _live(clients: Clients, settings: ControlSettings) -> tuple[str, ...]:
    """Runs that the sweep still looks at: those that may have nodes. A table that is gone has none."""
    try:
        entries = LiveIndex(DynamoTable(clients.dynamodb, settings.table)).due(now=2**40)
    except Missing:
        return ()
    return tuple(entry.run for entry in entries)


def _problems(clients: Clients, properties: Mapping[str, Any]) -> tuple[str, ...]:
    found: list[str] = []
    given = properties.get(names.GUARD_ATTACHED) or {}
    if table := given.get(names.ATTACHED_TABLE):
        found += guarding.problems_of_table(attached.table_of(clients.dynamodb, table))
    if bucket := given.get(names.ATTACHED_BUCKET):
        found += guarding.problems_of_bucket(attached.bucket_of(clients.s3, bucket))
    return tuple(found)

"""The effects of a deployed stack. Clients are made at their first call."""

from __future__ import annotations

from lambdas.effects.effects import Effects
from lambdas.effects.errands import Beside
from lambdas.effects.fleet import Fleet
from lambdas.effects.lazy import Lazy, LazyObjects
from lambdas.effects.machines import Machines
from lambdas.effects.meter import Meter
from lambdas.effects.notify import Notices
from lambdas.effects.queue import RepairQueue
from lambdas.effects.quotes import Quotes
from lambdas.effects.ssm import PATIENCE, Commands
from lambdas.effects.stores import stores_of
from spotproof.contract.settings import ControlSettings
from spotproof.store.clients import Clients
from spotproof.store.dynamo import DynamoTable


def effects_of(settings: ControlSettings, clients: Clients) -> Effects:
    """Everything that acts on what the settings name."""
    ec2 = Lazy(clients, "ec2")
    commands = Commands(
        Lazy(clients, "ssm"),
        stack=settings.stack,
        document=settings.document,
        version=settings.document_version,
        patience=PATIENCE,
    )
    return Effects(
        stores=stores_of(DynamoTable(Lazy(clients, "dynamodb"), settings.table), LazyObjects(clients, settings.bucket)),
        fleet=Fleet(ec2),
        machines=Machines(ec2),
        quotes=Quotes(ec2),
        commands=commands,
        notices=Notices(Lazy(clients, "sns"), settings.topic, stack=settings.stack),
        meter=Meter(settings.stack),
        queue=RepairQueue(Lazy(clients, "sqs"), settings.repair_queue),
        errands=Beside(),
    )

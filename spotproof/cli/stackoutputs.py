"""What a deployed stack says of itself: its outputs, from CloudFormation or from a file."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from spotproof.contract import names
from spotproof.contract.runspec import Placement
from spotproof.errors import BadSettings, Missing
from spotproof.store.awserrors import aws_failures, error_for
from spotproof.store.clients import Clients
from spotproof.store.dynamo import DynamoTable
from spotproof.store.erase import Eraser, S3Eraser
from spotproof.store.objects import Objects
from spotproof.store.s3 import Checksum, S3Objects
from spotproof.store.table import Table

_NEEDED = (
    names.OUTPUT_TABLE,
    names.OUTPUT_REGION,
    names.OUTPUT_TEMPLATE_ID,
    names.OUTPUT_TEMPLATE_VERSION,
    names.OUTPUT_SUBNETS,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Stack:
    """The part of the outputs that operators need."""

    table: str
    region: str
    placement: Placement
    bucket: str = ""
    queues: Mapping[str, str] = field(default_factory=dict)  # URL by name; empty of a stack from before they were told

    def open_table(self) -> Table:
        """The stack's table."""
        return DynamoTable(Clients(region=self.region).dynamodb, self.table)

    def open_bucket(self) -> tuple[Objects, Eraser]:
        """The stack's bucket, and what deletes in it where the credentials may. Raises BadSettings: it tells none."""
        if not self.bucket:
            raise BadSettings("the stack does not tell its bucket", next_step="deploy it with this version")
        client = Clients(region=self.region).s3
        return S3Objects(client, self.bucket, checksum=Checksum.CRC32), S3Eraser(client, self.bucket)


def stack_of(*, name: str | None, file: Path | None) -> Stack:
    """The stack that the options name.

    Raises BadSettings: none or two are named, or outputs are missing. Missing: there is no such stack.
    """
    if (name is None) == (file is None):
        raise BadSettings("it is not said which stack is meant", next_step="give either --stack NAME or --outputs FILE")
    outputs = _described(name) if name is not None else _from_file(Path(str(file)))
    missing = [one for one in _NEEDED if not outputs.get(one)]
    if missing:
        where = f"stack {name}" if name is not None else str(file)
        raise BadSettings(f"{where} has no output {', '.join(missing)}", next_step="deploy it with this version")
    subnets = tuple(one for one in outputs[names.OUTPUT_SUBNETS].split(",") if one)
    placement = Placement(
        template=outputs[names.OUTPUT_TEMPLATE_ID],
        template_version=outputs[names.OUTPUT_TEMPLATE_VERSION],
        subnets=subnets,
    )
    told = (one.partition("=") for one in outputs.get(names.OUTPUT_QUEUES, "").split(",") if one)
    return Stack(
        table=outputs[names.OUTPUT_TABLE],
        bucket=outputs.get(names.OUTPUT_BUCKET, ""),
        region=outputs[names.OUTPUT_REGION],
        placement=placement,
        queues={name: url for name, _, url in told},
    )


def _described(name: str) -> Mapping[str, str]:
    client = Clients().get("cloudformation")
    try:
        answer = client.describe_stacks(StackName=name)
    except aws_failures() as failure:
        raise error_for(failure, doing=f"describe stack {name}") from failure
    found = answer.get("Stacks", [])
    if not found:
        raise Missing(f"there is no stack {name} here", next_step="check the name, the region and the account")
    return {one["OutputKey"]: one["OutputValue"] for one in found[0].get("Outputs", [])}


def _from_file(path: Path) -> Mapping[str, str]:
    """`cdk deploy --outputs-file` writes {stack: {output: value}}; a plain {output: value} is read too."""
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise BadSettings(f"{path} cannot be read as JSON: {error}") from error
    if isinstance(document, dict) and len(document) == 1 and isinstance(next(iter(document.values())), dict):
        document = next(iter(document.values()))
    if not isinstance(document, dict):
        raise BadSettings(f"{path} holds no outputs", next_step="write it with cdk deploy --outputs-file")
    return {str(key): str(value) for key, value in document.items()}

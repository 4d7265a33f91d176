"""`spotproof submit run.yaml`: writes a run into a stack. The first launch is the replacement path.

Order of the writes: SPEC, slots, HEAD, LIVE. Nobody looks at a run before its LIVE entry, and each write is success if
the same is there already, so a submit that was cut off is repaired by the same submit.
"""

from __future__ import annotations

import dataclasses
import time
from pathlib import Path
from typing import Any

import click

from spotproof.cli.main import say_json
from spotproof.cli.stackoutputs import Stack, stack_of
from spotproof.cli.where import json_option, of_stack
from spotproof.contract import runspec
from spotproof.contract.history import HistoryKind
from spotproof.contract.items import Head, History
from spotproof.contract.runspec import RunSpec
from spotproof.contract.states import RunStatus
from spotproof.errors import BadRunSpec, Lost
from spotproof.plan import accelerators
from spotproof.store.head import Heads
from spotproof.store.history import Histories
from spotproof.store.live import LiveIndex
from spotproof.store.slots import Slots
from spotproof.store.spec import Specs
from spotproof.store.table import Table


@click.command(name="submit")
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False))
@of_stack
@click.option("--dry-run", is_flag=True, help="Show the spec that would be written, write nothing.")
@json_option
def command(*, file: Path, stack_name: str | None, outputs: Path | None, dry_run: bool, as_json: bool) -> None:
    """Write the run that FILE describes. Running it again changes nothing; another run needs another id."""
    spec = read_spec(file)  # what is wrong in the file is said without asking AWS
    stack = stack_of(name=stack_name, file=outputs)
    spec = placed(spec, stack)
    if not dry_run:
        write(spec, stack.open_table(), now=int(time.time()))
    document: dict[str, Any] = {"run": spec.run, "written": not dry_run, "spec": runspec.to_document(spec)}
    if as_json:
        say_json(document)
    elif dry_run:
        say_json(document["spec"])
    else:
        click.echo(f"run {spec.run} is submitted; see `spotproof status {spec.run}`")


def read_spec(file: Path) -> RunSpec:
    """The spec in a YAML file; warnings go to stderr. Raises BadRunSpec, naming the file and the key."""
    import yaml

    try:
        document = yaml.safe_load(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise BadRunSpec(f"{file}: {error.strerror}") from error
    except yaml.YAMLError as error:
        raise BadRunSpec(f"{file} is not YAML: {error}") from error
    try:
        spec = runspec.parse(document)
        warnings = accelerators.check(spec)
    except BadRunSpec as error:
        raise BadRunSpec(f"{file}: {error.what}", next_step=error.next_step) from error
    for warning in warnings:
        click.echo(f"{file}: {warning}", err=True)
    return spec


def placed(spec: RunSpec, stack: Stack) -> RunSpec:
    """The spec with the stack's template and subnets pinned. Raises BadRunSpec for a zone without a subnet."""
    if spec.placement is not None:
        raise BadRunSpec("placement: submit pins it from the stack", next_step="leave it out")
    zones = {subnet.partition("=")[2] for subnet in stack.placement.subnets}
    unknown = sorted(set(spec.pools.zones) - zones)
    if unknown:
        raise BadRunSpec(
            f"pools.zones: the stack has no subnet in {', '.join(unknown)}",
            next_step=f"choose from {', '.join(sorted(zones))}",
        )
    return dataclasses.replace(spec, placement=stack.placement)


def write(spec: RunSpec, table: Table, *, now: int) -> None:
    """Write the run; see the module for the order. Raises BadRunSpec if the id is another run's, or this run ended."""
    try:
        Specs(table).create(spec)
    except Lost as error:
        raise BadRunSpec(f"run: {spec.run} exists with another spec", next_step="choose another run id") from error
    Slots(table).create(spec.run, spec.places)
    head = Heads(table).read(spec.run) or _create_head(spec, table, now)
    if not head.status.is_live:
        raise BadRunSpec(f"run: {spec.run} is {head.status}", next_step="choose another run id")
    LiveIndex(table).hasten(spec.run, due_at=now)


def _create_head(spec: RunSpec, table: Table, now: int) -> Head:
    """The run's HEAD; of two submits at once the first one's."""
    Histories(table).add(History(run=spec.run, at_ms=now * 1000, what=HistoryKind.SUBMITTED))
    head = Head(
        run=spec.run,
        status=RunStatus.ACTIVE,
        status_at=now,
        submitted_at=now,
        slots=spec.slots,
        standby=spec.standby,
        least=spec.least if spec.elastic else 0,
    )
    try:
        Heads(table).create(head)
    except Lost:
        return Heads(table).read(spec.run) or head
    return head

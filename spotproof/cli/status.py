"""`spotproof status RUN`: where a run is, from the table."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import click

from spotproof.cli.main import say_json
from spotproof.cli.stackoutputs import stack_of
from spotproof.contract import ids
from spotproof.contract.items import Slot, to_item
from spotproof.errors import BadSettings, Missing
from spotproof.store.head import Heads
from spotproof.store.members import Memberships
from spotproof.store.nodes import Nodes
from spotproof.store.pointer import Pointers
from spotproof.store.slots import Slots
from spotproof.store.table import Table


@click.command(name="status")
@click.argument("run")
@click.option("--stack", "stack_name", metavar="NAME", help="The stack, as CloudFormation knows it.")
@click.option(
    "--outputs", metavar="FILE", type=click.Path(path_type=Path, dir_okay=False), help="Its outputs, as JSON."
)
@click.option("--local", metavar="DIR", type=click.Path(path_type=Path), help="A local run's folder.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document on stdout.")
def command(*, run: str, stack_name: str | None, outputs: Path | None, local: Path | None, as_json: bool) -> None:
    """Show status, slots, nodes and the newest durable step of RUN."""
    ids.run_id(run)
    document = describe(run, _table(stack_name, outputs, local))
    if as_json:
        say_json(document)
        return
    for line in lines_of(document, now=int(time.time())):
        click.echo(line)


def _table(stack_name: str | None, outputs: Path | None, local: Path | None) -> Table:
    if local is None:
        return stack_of(name=stack_name, file=outputs).open_table()
    if stack_name is not None or outputs is not None:
        raise BadSettings("a run is local or in a stack, not both", next_step="leave out --local or the stack")
    from spotproof.agent.main import TABLE_FILE
    from spotproof.store.local import LocalTable

    if not (local / TABLE_FILE).is_file():
        raise Missing(f"{local} holds no run", next_step="give the folder that `spotproof run --local` was given")
    table = LocalTable(local / TABLE_FILE)
    click.get_current_context().call_on_close(table.close)
    return table


def describe(run: str, table: Table) -> dict[str, Any]:
    """Everything as plain values. Raises Missing if nobody knows the run."""
    head, pointer, newest = Heads(table).read(run), Pointers(table).read(run), Memberships(table).newest(run)
    if head is None and newest is None:
        raise Missing(f"there is no run {run} here", next_step="check the id, and the stack or folder")
    slots = Slots(table).list(run)
    nodes = Nodes(table).list(run, slots=max(1, len(slots)))
    return {
        "run": run,
        "status": None if head is None else head.status.value,
        "head": None if head is None else to_item(head),
        "generation": None if newest is None else newest.generation,
        "committed": None if pointer is None else to_item(pointer),
        "slots": [to_item(slot) for slot in slots],
        "nodes": [to_item(node) for node in nodes],
        "waiting": [slot.slot for slot in slots if _is_waiting(slot)],
    }


def _is_waiting(slot: Slot) -> bool:
    return slot.successor_instance is not None


def lines_of(document: dict[str, Any], *, now: int) -> list[str]:
    """The same for people."""
    head, committed = document["head"] or {}, document["committed"]
    status = document["status"] or "local"
    because = f" ({head['cause']}: {head.get('reason', '')})" if head.get("cause") else ""
    lines = [f"run {document['run']}: {status}{because}"]
    if committed is None:
        lines.append("nothing is committed yet")
    else:
        age_s = now - committed["committed_at"]
        lines.append(f"step {committed['step']} is committed (generation {committed['generation']}, {age_s} s ago)")
    for node in document["nodes"]:
        age_s = now - node.get("beat_at", now)
        flush = f", flush {node['flush']}" if "flush" in node else ""
        lines.append(
            f"slot {node['slot']} incarnation {node['incarnation']}: {node['instance']} {node['phase']}, "
            f"step {node.get('step', 0)}{flush}, beat {age_s} s ago"
        )
    if document["waiting"]:
        lines.append(f"waiting for a successor: slots {', '.join(str(one) for one in document['waiting'])}")
    return lines

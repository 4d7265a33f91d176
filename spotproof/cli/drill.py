"""`spotproof drill RUN`: rehearse an interruption of a run's nodes. They flush and are replaced as if EC2 took them.

The event takes the way of a real warning: rule, queue, handler. The old node is ended by the stack once its successor
has joined, unless it was tagged by hand.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from spotproof.cli.main import say_json
from spotproof.cli.stackoutputs import stack_of
from spotproof.cli.where import json_option, of_stack
from spotproof.contract import ids
from spotproof.contract.events import drill_detail
from spotproof.contract.items import NO_INSTANCE, Slot
from spotproof.contract.limits import DRILL_NOTICE_MAX_S, NOTICE_S
from spotproof.errors import BadSettings, Missing
from spotproof.store.clients import Clients
from spotproof.store.drills import Drills
from spotproof.store.head import Heads
from spotproof.store.slots import Slots
from spotproof.store.table import Table


@click.command(name="drill")
@click.argument("run")
@click.option("--slot", "slots", metavar="N", type=click.IntRange(0), multiple=True, help="A slot; again for more. [0]")
@click.option("--all", "everybody", is_flag=True, help="All slots of the run at once.")
@click.option(
    "--notice",
    "notice_s",
    metavar="S",
    type=click.IntRange(1, DRILL_NOTICE_MAX_S),
    default=NOTICE_S,
    show_default=True,
    help="Seconds.",
)
@of_stack
@click.option("--dry-run", is_flag=True, help="Show whom it would concern, and put no event.")
@json_option
def command(
    *,
    run: str,
    slots: tuple[int, ...],
    everybody: bool,
    notice_s: int,
    stack_name: str | None,
    outputs: Path | None,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Rehearse an interruption of RUN's nodes: flush, replacement, and the end of the old node."""
    ids.run_id(run)
    if slots and everybody:
        raise BadSettings("--slot and --all contradict each other", next_step="leave one of them out")
    stack = stack_of(name=stack_name, file=outputs)
    concerned = holders(run, stack.open_table(), slots=() if everybody else slots or (0,))
    details = [drill_detail(str(slot.holder_instance), notice_s=notice_s) for slot in concerned]
    if not dry_run:
        Drills(Clients(region=stack.region).get("events")).put(details)
    _say(run, concerned, details, put=not dry_run, as_json=as_json)


def holders(run: str, table: Table, *, slots: Sequence[int]) -> list[Slot]:
    """The slots that a drill concerns; () for all of the run. Raises Missing or BadSettings where one has no node."""
    head = Heads(table).read(run)
    if head is None:
        raise Missing(f"there is no run {run} here", next_step="check the id, and the stack")
    if not head.status.wants_nodes:
        raise BadSettings(f"run {run} is {head.status}: nobody would be replaced", next_step="drill an active run")
    found = {slot.slot: slot for slot in Slots(table).list(run)}
    chosen = sorted(set(slots)) or sorted(found)
    unknown = [number for number in chosen if number not in found]
    if unknown:
        raise Missing(f"run {run} has no slot {unknown[0]}", next_step=f"its slots are 0 to {len(found) - 1}")
    empty = [n for n in chosen if found[n].holder_instance in (None, NO_INSTANCE) or found[n].successor_instance]
    if empty:
        raise BadSettings(
            f"slot {empty[0]} of run {run} has no node that works undisturbed",
            next_step="wait until its node has joined: `spotproof status` shows it",
        )
    return [found[number] for number in chosen]


def _say(run: str, slots: Sequence[Slot], details: Sequence[dict[str, Any]], *, put: bool, as_json: bool) -> None:
    if as_json:
        say_json({"run": run, "put": put, "slots": [slot.slot for slot in slots], "events": list(details)})
        return
    for slot, detail in zip(slots, details, strict=True):
        verb = "is told to leave" if put else "would be told to leave"
        click.echo(f"slot {slot.slot}: {slot.holder_instance} {verb} within {detail['notice-s']} s")
    if not put:
        click.echo(json.dumps(details))

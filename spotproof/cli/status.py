"""`spotproof status RUN`: where a run is, from the table, and what to do next."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import click

from spotproof.cli.advice import next_steps
from spotproof.cli.main import say_json
from spotproof.cli.statuslines import lines_of
from spotproof.cli.where import json_option, of_stack_or_folder, place_of
from spotproof.contract import ids
from spotproof.contract.items import Head, Node, Pool, to_item
from spotproof.contract.times import Moment, times_of
from spotproof.errors import Missing
from spotproof.report.model import Recovery
from spotproof.store.head import Heads
from spotproof.store.members import Memberships
from spotproof.store.nodes import Nodes
from spotproof.store.pointer import Pointers
from spotproof.store.pools import Pools
from spotproof.store.slots import Slots
from spotproof.store.stories import story_from
from spotproof.store.table import Table

ENTRIES_AT_MOST = 2_000  # of the timeline: the newest recoveries
RECOVERIES = 5


@click.command(name="status")
@click.argument("run")
@of_stack_or_folder
@json_option
def command(*, run: str, stack_name: str | None, outputs: Path | None, local: Path | None, as_json: bool) -> None:
    """Show status, slots, nodes, recoveries and the newest durable step of RUN, and what to do next."""
    ids.run_id(run)
    place = place_of(stack_name=stack_name, outputs=outputs, local=local)
    document = describe(run, place.table, region=place.region, where=place.words)
    if as_json:
        say_json(document)
        return
    for line in lines_of(document, now=document["now"]):
        click.echo(line)


def describe(run: str, table: Table, *, region: str = "", where: str = "", now: float | None = None) -> dict[str, Any]:
    """Everything as plain values. Raises Missing if nobody knows the run."""
    at = int(time.time() if now is None else now)
    head, pointer, newest = Heads(table).read(run), Pointers(table).read(run), Memberships(table).newest(run)
    if head is None and newest is None:
        raise Missing(f"there is no run {run} here", next_step="check the id, and the stack or folder")
    slots = Slots(table).list(run)
    nodes = Nodes(table).list(run, slots=max(1, len(slots)))
    told = story_from(table, run, now=at, entries_at_most=ENTRIES_AT_MOST)
    cooling = [pool for pool in Pools(table).list(region) if pool.until > at] if region else []
    return {
        "run": run,
        "now": at,
        "status": None if head is None else head.status.value,
        "head": None if head is None else to_item(head) | _sets_as_lists(head),
        "generation": None if newest is None else newest.generation,
        "committed": None if pointer is None else to_item(pointer),
        "slots": [to_item(slot) for slot in slots],
        "nodes": [to_item(node) | {"phases": _phases(node)} for node in _in_charge(nodes)],
        "waiting": [slot.slot for slot in slots if slot.successor_instance is not None],
        "pools_cooling": [_pool(pool, at) for pool in cooling],
        "recoveries": [_recovery(one) for one in told.recoveries[-RECOVERIES:]],
        "recoveries_told": len(told.recoveries),
        "next": next_steps(run, head, slots, nodes, now=at, where=where),
    }


def _sets_as_lists(head: Head) -> dict[str, Any]:
    return {name: sorted(value) for name, value in to_item(head).items() if isinstance(value, set)}


def _in_charge(nodes: tuple[Node, ...]) -> list[Node]:
    """The newest two of each slot: who works there, and who worked there or is about to."""
    by_slot: dict[int, list[Node]] = {}
    for node in nodes:
        by_slot.setdefault(node.slot, []).append(node)
    return [node for of in by_slot.values() for node in of[-2:]]


def _phases(node: Node) -> dict[str, float]:
    """Seconds from each moment of the node's start to the next; {} before the first."""
    times = times_of(node.times or "").at_ms
    names = ("park", "restore", "first step")
    return {
        name: (times[moment] - times[moment - 1]) / 1000
        for name, moment in zip(names, list(Moment)[1:], strict=True)
        if moment < len(times)
    }


def _pool(pool: Pool, now: int) -> dict[str, Any]:
    return {
        "type": pool.instance_type,
        "zone": pool.zone,
        "market": pool.market.value,
        "because": pool.verdict,
        "seconds_left": pool.until - now,
    }


def _recovery(one: Recovery) -> dict[str, Any]:
    return {
        "slot": one.slot,
        "incarnation": one.incarnation,
        "cause": one.cause,
        "lost": one.lost,
        "replacement": one.replacement,
        "began_at": one.begin_at,
        "steps_lost": one.steps_lost,
        "standstill_s": one.standstill_s,
        "stages": {span.stage.value: round(span.seconds, 3) for span in one.stages},
    }

"""`spotproof pause`, `resume` and `stop`: what a person decides about a run. The stack does the rest.

Each writes the run's status and brings the sweep's next look forward; each can be repeated, and cut off at any point.
The index entry is written before the status and after it: a run that is active stands in it, whoever dies when.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import click

from spotproof.cli.main import say_json
from spotproof.cli.stackoutputs import stack_of
from spotproof.cli.where import dry_run_option, json_option, of_stack
from spotproof.contract import ids
from spotproof.contract.history import HistoryKind
from spotproof.contract.items import Head, History
from spotproof.contract.states import Cause, RunStatus, may_move
from spotproof.errors import BadSettings, Lost, Missing, Unavailable
from spotproof.store.head import Heads
from spotproof.store.history import Histories
from spotproof.store.live import LiveIndex
from spotproof.store.table import Table

TRIES: Final = 5  # the stack may move the run at the same moment
WAIT_LOOK_S: Final = 5.0
WAIT_LIMIT_S: Final = 1800.0  # nodes have ten minutes for their last checkpoint


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """What is wanted of a run, what it says when it is done, and why it cannot be."""

    verb: str
    to: RunStatus
    done: frozenset[RunStatus]  # in these the wish is fulfilled already
    says: str
    next_step: str


PAUSE: Final = Wish(
    verb="pause",
    to=RunStatus.PAUSED,
    done=frozenset({RunStatus.PAUSED}),
    says="is paused: its nodes save, and end; `spotproof resume` goes on from there",
    next_step="`spotproof status` says what it waits for",
)
RESUME: Final = Wish(
    verb="resume",
    to=RunStatus.ACTIVE,
    done=frozenset({RunStatus.ACTIVE}),
    says="is active: its nodes are launched within a minute, its budgets begin anew",
    next_step="submit it under another id",
)
STOP: Final = Wish(
    verb="stop",
    to=RunStatus.STOPPING,
    done=frozenset({RunStatus.STOPPING, RunStatus.STOPPED}),
    says="stops: its nodes save, and end; the checkpoints stay",
    next_step="nothing has to be done",
)


def _command(wish: Wish, text: str) -> Callable[[Callable[..., None]], click.Command]:
    """The options that the three have in common."""

    def made(function: Callable[..., None]) -> click.Command:
        reason = click.option("--reason", default="", help="For whoever looks at the run later.")
        function = click.argument("run")(of_stack(reason(dry_run_option(json_option(function)))))
        return click.command(name=wish.verb, help=text)(function)

    return made


@_command(PAUSE, "Let RUN save and end its nodes; launch none until it is resumed.")
def pause(*, run: str, **how: Any) -> None:
    """See the command's help."""
    _carry_out(run, PAUSE, **how)


@_command(RESUME, "Let RUN go on from its newest commit, also after it was blocked, failed or stopped.")
def resume(*, run: str, **how: Any) -> None:
    """See the command's help."""
    _carry_out(run, RESUME, **how)


@_command(STOP, "Let RUN save and end its nodes for good; its checkpoints stay.")
@click.option("--wait", "waits", is_flag=True, help="Return when its nodes have ended.")
def stop(*, run: str, waits: bool, **how: Any) -> None:
    """See the command's help."""
    table = _carry_out(run, STOP, **how)
    if waits and not how["dry_run"]:
        wait_until_stopped(run, table, clock=time.monotonic, sleep=time.sleep)
        click.echo(f"run {run} is stopped", err=True)


def _carry_out(
    run: str, wish: Wish, *, stack_name: str | None, outputs: Path | None, reason: str, dry_run: bool, as_json: bool
) -> Table:
    ids.run_id(run)
    table = stack_of(name=stack_name, file=outputs).open_table()
    if dry_run:
        before = after = checked(run, table, wish)
    else:
        before, after = carry_out(run, table, wish, reason=reason, now=int(time.time()))
    if as_json:
        say_json({"run": run, "was": before.status.value, "is": after.status.value, "written": not dry_run})
    elif dry_run:
        click.echo(f"run {run} is {before.status}; it would become {wish.to}")
    else:
        click.echo(f"run {run} {wish.says}")
    return table


def checked(run: str, table: Table, wish: Wish) -> Head:
    """The run as it stands. Raises Missing if there is none, BadSettings if the wish cannot be fulfilled."""
    head = Heads(table).read(run)
    if head is None:
        raise Missing(f"there is no run {run} here", next_step="check the id, and the stack")
    if head.status not in wish.done and not may_move(head.status, wish.to):
        raise BadSettings(f"run {run} is {head.status}: it cannot {wish.verb}", next_step=wish.next_step)
    return head


def carry_out(run: str, table: Table, wish: Wish, *, reason: str, now: int) -> tuple[Head, Head]:
    """Move the run; returns it as it was and as it is. Raises as `checked`, and Unavailable."""
    live = LiveIndex(table)
    for _ in range(TRIES):
        seen = checked(run, table, wish)
        live.watch(run, due_at=now)
        if seen.status in wish.done:
            return seen, seen
        try:
            moved = Heads(table).move(seen, wish.to, cause=Cause.USER, reason=reason or f"{wish.verb} by hand", now=now)
        except Lost:
            continue
        live.watch(run, due_at=now)  # a look in between may have taken an ended run out
        told = f"{wish.to}: {reason}" if reason else f"{wish.to} by hand"
        entry = History(run=run, at_ms=now * 1000, what=HistoryKind.STATUS, cause=Cause.USER, detail=told)
        Histories(table).add(entry)
        return seen, moved
    raise Unavailable(f"run {run} is moved by somebody else again and again", next_step="look at it, and try again")


def wait_until_stopped(run: str, table: Table, *, clock: Callable[[], float], sleep: Callable[[float], None]) -> None:
    """Return when the run is over. Raises Unavailable after half an hour."""
    until = clock() + WAIT_LIMIT_S
    while True:
        head = Heads(table).read(run)
        if head is None or not head.status.is_live:
            return
        if clock() >= until:
            raise Unavailable(f"run {run} is still {head.status}", next_step=f"`spotproof status {run}` says why")
        sleep(WAIT_LOOK_S)

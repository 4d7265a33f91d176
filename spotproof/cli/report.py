"""`spotproof report RUN`: the run's story, as one HTML page or as a summary on the terminal."""

from __future__ import annotations

import os
import time
from pathlib import Path

import click

from spotproof.cli.where import FILE, of_stack_or_folder, place_of
from spotproof.contract import ids
from spotproof.errors import BadSettings, ContractError, Missing
from spotproof.report import html, text
from spotproof.report.losses import by_process, placed, read_log
from spotproof.report.model import Point, Segment, Story
from spotproof.store.head import Heads
from spotproof.store.members import Memberships
from spotproof.store.stories import starts_of, story_from
from spotproof.store.table import Table


@click.command(name="report")
@click.argument("run")
@of_stack_or_folder
@click.option("-o", "--output", metavar="FILE", type=FILE, help="Write the page here, as one file of HTML.")
@click.option("--losses", metavar="FILE", type=FILE, help="A loss log (JSON lines) that the run's trainers wrote.")
@click.option("--reference", metavar="FILE", type=FILE, help="The loss log of an uninterrupted run, to compare with.")
def command(
    *,
    run: str,
    stack_name: str | None,
    outputs: Path | None,
    local: Path | None,
    output: Path | None,
    losses: Path | None,
    reference: Path | None,
) -> None:
    """Tell what happened to RUN: its nodes, its recoveries with their stages, its losses, what it cost."""
    ids.run_id(run)
    table = place_of(stack_name=stack_name, outputs=outputs, local=local).table
    told = story_of(run, table, losses=losses, reference=reference, now=time.time())
    if output is not None:
        write_page(told, output)
    click.echo(text.summary(told), nl=False)
    if output is not None:
        click.echo(f"the page: {output}")


def story_of(run: str, table: Table, *, losses: Path | None, reference: Path | None, now: float) -> Story:
    """The story, with the losses of the logs. Raises Missing: nobody knows the run; BadSettings: a log is no log."""
    if Heads(table).read(run) is None and Memberships(table).newest(run) is None:
        raise Missing(f"there is no run {run} here", next_step="check the id, and the stack or folder")
    segments: tuple[Segment, ...] = ()
    if losses is not None:
        segments = placed(by_process(_log(losses)), starts_of(table, run))
    points: tuple[Point, ...] = () if reference is None else _log(reference)
    return story_from(table, run, now=now, segments=segments, reference=points)


def write_page(told: Story, output: Path) -> None:
    """The page in one piece: a reader never finds half of it. Raises BadSettings where it cannot be written."""
    beside = output.with_name(f".{output.name}.{os.getpid()}")
    try:
        beside.write_text(html.page(told), encoding="utf-8")
        beside.replace(output)
    except OSError as error:
        beside.unlink(missing_ok=True)
        raise BadSettings(f"{output} cannot be written: {error.strerror}", next_step="choose another file") from error


def _log(file: Path) -> tuple[Point, ...]:
    try:
        with file.open(encoding="utf-8") as lines:
            return read_log(lines)
    except (OSError, UnicodeDecodeError, ContractError) as error:
        raise BadSettings(f"{file} is no loss log: {error}") from error

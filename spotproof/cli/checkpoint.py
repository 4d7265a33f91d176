"""`spotproof checkpoint`: what a run has in the bucket, whether it is whole, and how to take it elsewhere."""

from __future__ import annotations

import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import click

from spotproof.checkpoint import export, inventory
from spotproof.checkpoint import pull as pulling
from spotproof.checkpoint.inventory import Entry, Progress, Standing
from spotproof.cli.main import say_json
from spotproof.cli.where import dry_run_option, json_option, of_stack_or_folder, place_of
from spotproof.contract import ids
from spotproof.contract.exits import ExitCode
from spotproof.errors import BadManifest, Damaged, Missing
from spotproof.plan.candidates import Order
from spotproof.store import collecting
from spotproof.store.checkpoints import Checkpoints
from spotproof.store.erase import Eraser
from spotproof.store.members import Memberships
from spotproof.store.objects import Objects
from spotproof.store.pointer import Pointers
from spotproof.store.spec import Specs
from spotproof.store.starts import Stores
from spotproof.store.table import Table

LOCAL_KEEP: Final = 3  # of a local run, which has no spec
_UNITS: Final = ("bytes", "KB", "MB", "GB", "TB")


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """A run's checkpoints, where they are."""

    run: str
    table: Table
    objects: Objects
    eraser: Eraser

    def pointer(self) -> Order | None:
        """The newest commit."""
        found = Pointers(self.table).read(self.run)
        return None if found is None else (found.generation, found.step)

    def entries(self) -> tuple[Entry, ...]:
        """Every checkpoint, oldest first."""
        quarantined = Checkpoints(self.table).quarantined(self.run)
        found, _ = inventory.entries(self.objects, self.run, pointer=self.pointer(), quarantined=quarantined)
        return found

    def chosen(self, name: str | None) -> Order:
        """The checkpoint that a command means: GENERATION-STEP, STEP, or the newest. Raises Missing."""
        if name is None and (pointer := self.pointer()) is not None:
            return pointer
        whole = [entry for entry in self.entries() if entry.standing is not Standing.INCOMPLETE]
        named = [entry for entry in whole if name in (None, entry.name, str(entry.order[1]))]
        if not named:
            raise Missing(
                f"run {self.run} has no checkpoint {name or 'at all'}",
                next_step=f"`spotproof checkpoint ls {self.run}` lists them",
            )
        return named[-1].order


def _options(function: Callable[..., None]) -> Callable[..., None]:
    return click.argument("run")(of_stack_or_folder(json_option(function)))


_at = click.option("--at", "name", metavar="STEP", help="STEP or GENERATION-STEP; default: the newest commit.")


def kept_of(run: str, **where: Any) -> Kept:
    """Raises BadSettings: two places are named, or none; Missing: there is no such stack or folder."""
    ids.run_id(run)
    place = place_of(**where)
    objects, eraser = place.bucket()
    return Kept(run=run, table=place.table, objects=objects, eraser=eraser)


@click.group(name="checkpoint")
def command() -> None:
    """List, verify, fetch, export and clear a run's checkpoints."""


@command.command(name="ls")
@_options
def ls(*, run: str, as_json: bool, **where: Any) -> None:
    """List the checkpoints of RUN, oldest first."""
    found = kept_of(run, **where).entries()
    if as_json:
        say_json({"run": run, "checkpoints": [_plain(entry) for entry in found]})
        return
    for entry in found:
        age = _ago(time.time() - entry.committed_at)
        size = f"{size_of(entry.bytes)} ({size_of(entry.own_bytes)} new)"
        reason = f"  {entry.reason}" if entry.reason else ""
        click.echo(f"{entry.name:>16}  {entry.standing:<11}  {entry.world} ranks  {size:<26}  {age}{reason}")
    if not found:
        click.echo(f"run {run} has no checkpoint")


@command.command(name="verify")
@_options
@_at
def verify(*, run: str, name: str | None, as_json: bool, **where: Any) -> None:
    """Read every byte of a checkpoint of RUN. Exit status 1, and a line each, if something is not what it should be."""
    kept = kept_of(run, **where)
    order = kept.chosen(name)
    with _progress("verified", kept, order) as progress:
        damages = inventory.verify(kept.objects, run, order, progress=progress)
    if as_json:
        found = [{"key": damage.key, "what": damage.what} for damage in damages]
        say_json({"run": run, "generation": order[0], "step": order[1], "damages": found})
    else:
        for damage in damages:
            click.echo(f"{damage.key}: {damage.what}")
        click.echo(f"{order[0]}-{order[1]}: {'damaged' if damages else 'whole'}")
    if damages:
        raise SystemExit(int(ExitCode.FAILED))


@command.command(name="pull")
@_options
@_at
@click.option("-o", "--to", "folder", required=True, type=click.Path(path_type=Path), help="A folder to be made.")
def pull(*, run: str, name: str | None, folder: Path, as_json: bool, **where: Any) -> None:
    """Fetch a checkpoint of RUN into a folder that stock torch DCP loads. Cut off, it goes on where it was."""
    kept = kept_of(run, **where)
    order = kept.chosen(name)
    with _progress("fetched", kept, order) as progress:
        manifest = pulling.pull(kept.objects, run, order, folder, progress=progress)
    document = {"run": run, "generation": order[0], "step": order[1], "folder": str(folder), "bytes": manifest.bytes}
    if as_json:
        say_json(document)
    else:
        click.echo(f'{folder}: load it with torch.distributed.checkpoint.load(state, checkpoint_id="{folder}")')


@command.command(name="export")
@_options
@_at
@click.option("-o", "--to", "file", required=True, type=click.Path(path_type=Path), help="A file to be made.")
@click.option("--only", metavar="NAME", help="One tracked object; default: every module.")
def export_(*, run: str, name: str | None, file: Path, only: str | None, as_json: bool, **where: Any) -> None:
    """Write the weights in a checkpoint of RUN as safetensors."""
    kept = kept_of(run, **where)
    order = kept.chosen(name)
    file.absolute().parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".pull-", dir=file.absolute().parent) as made:
        folder = Path(made) / "pulled"
        with _progress("fetched", kept, order) as progress:
            pulling.pull(kept.objects, run, order, folder, progress=progress)
        written = export.export(folder, file, only=only)
    if as_json:
        say_json({"file": str(file), "tensors": written.tensors, "bytes": written.bytes, "step": order[1]})
    else:
        click.echo(f"{file}: {written.tensors} tensors, {size_of(written.bytes)}")


@command.command(name="gc")
@_options
@click.option("--keep", type=click.IntRange(1), help="The newest so many; default: what the run's spec says.")
@dry_run_option
def gc(*, run: str, keep: int | None, dry_run: bool, as_json: bool, **where: Any) -> None:
    """Delete old checkpoints of RUN and what only they needed. The newest and the last hours' always stay."""
    kept = kept_of(run, **where)
    if keep is None:
        spec = Specs(kept.table).read(run)
        keep = LOCAL_KEEP if spec is None else spec.checkpoint.keep
    stores = Stores(
        objects=kept.objects,
        checkpoints=Checkpoints(kept.table),
        pointers=Pointers(kept.table),
        memberships=Memberships(kept.table),
    )
    planned = collecting.plan(stores, run, keep=keep, now=time.time())
    if not dry_run:
        collecting.collect(planned, kept.objects, kept.eraser)
    verdict = planned.verdict
    if as_json:
        stays = {f"{order[0]}-{order[1]}": why for order, why in sorted(verdict.kept.items())}
        dropped = [f"{order[0]}-{order[1]}" for order in sorted(verdict.dropped)]
        say_json({"kept": stays, "dropped": dropped, "objects": len(planned.keys), "bytes": planned.bytes})
        return
    for order, why in sorted(verdict.kept.items()):
        click.echo(f"{order[0]}-{order[1]}: kept, {why}")
    done = "would be deleted" if dry_run else "deleted"
    what = f"{len(verdict.dropped)} checkpoints, {len(planned.keys)} objects, {size_of(planned.bytes)}"
    click.echo(f"{what} {done}; {size_of(planned.kept_bytes)} stay")


@contextmanager
def _progress(verb: str, kept: Kept, order: Order) -> Iterator[Progress]:
    """A bar on stderr where a person looks, and what was moved in what time."""
    try:
        total = sum(chunk.bytes for chunk in inventory.read_manifest(kept.objects, kept.run, order).chunks())
    except (Missing, Damaged, BadManifest):  # the command itself says what is wrong with the manifest
        total = 0
    lock, begun = threading.Lock(), time.monotonic()
    moved = 0
    with click.progressbar(length=total, label=f"{order[0]}-{order[1]}", file=sys.stderr) as bar:

        def progress(count: int) -> None:
            nonlocal moved
            with lock:
                moved += count
                bar.update(count)

        yield progress
    seconds = max(0.001, time.monotonic() - begun)
    click.echo(f"{verb} {size_of(moved)} in {seconds:.1f} s ({size_of(int(moved / seconds))}/s)", err=True)


def size_of(count: int) -> str:
    """Bytes for people: 1.2 GB."""
    value, unit = float(count), _UNITS[0]
    for unit in _UNITS:
        if value < 1000 or unit == _UNITS[-1]:
            break
        value /= 1000
    return f"{value:.0f} {unit}" if unit == _UNITS[0] else f"{value:.1f} {unit}"


def _ago(seconds: float) -> str:
    for length, unit in ((86_400, "days"), (3600, "hours"), (60, "minutes")):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit} ago"
    return f"{max(0, seconds):.0f} s ago"


def _plain(entry: Entry) -> dict[str, Any]:
    return {
        "name": entry.name,
        "generation": entry.order[0],
        "step": entry.order[1],
        "standing": entry.standing.value,
        "world": entry.world,
        "bytes": entry.bytes,
        "own_bytes": entry.own_bytes,
        "committed_at": int(entry.committed_at),
        "reason": entry.reason,
    }

"""Which stack, or which local folder, a command means: the options that commands share, and what they open."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar

import click

from spotproof.cli.stackoutputs import stack_of
from spotproof.contract import names
from spotproof.errors import BadSettings, Missing
from spotproof.store.erase import Eraser, FolderEraser
from spotproof.store.objects import Objects
from spotproof.store.table import Table

FILE: Final = click.Path(path_type=Path, dir_okay=False)
Command = TypeVar("Command", bound=Callable[..., Any])

json_option = click.option("--json", "as_json", is_flag=True, help="One JSON document on stdout.")
dry_run_option = click.option("--dry-run", is_flag=True, help="Say what would be done, change nothing.")
_stack = click.option("--stack", "stack_name", metavar="NAME", help="The stack, as CloudFormation knows it.")
_outputs = click.option("--outputs", metavar="FILE", type=FILE, help="Its outputs, as JSON.")
_local = click.option("--local", metavar="DIR", type=click.Path(path_type=Path), help="A local run's folder.")


def of_stack(function: Command) -> Command:
    """`--stack` and `--outputs`: the parameters `stack_name` and `outputs`."""
    return _stack(_outputs(function))


def of_stack_or_folder(function: Command) -> Command:
    """Those, and `--local`: what `place_of` takes."""
    return of_stack(_local(function))


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """An opened stack or folder. `region` is '' for a folder: it has no pools. `words` repeat the options.

    `bucket` opens the objects, and what deletes them where that is allowed.
    """

    table: Table
    region: str
    words: str
    bucket: Callable[[], tuple[Objects, Eraser]]


def place_of(*, stack_name: str | None, outputs: Path | None, local: Path | None) -> Place:
    """What the options name; it is closed when the command ends.

    Raises BadSettings: none or two are named. Missing: there is no such stack, or the folder holds no run.
    """
    if local is not None:
        if stack_name is not None or outputs is not None:
            raise BadSettings("a run is local or in a stack, not both", next_step="leave out --local or the stack")
        return _folder(local)
    stack = stack_of(name=stack_name, file=outputs)
    words = f"--stack {stack_name}" if stack_name is not None else f"--outputs {outputs}"
    return Place(table=stack.open_table(), region=stack.region, words=words, bucket=stack.open_bucket)


def _folder(local: Path) -> Place:
    from spotproof.store.local import LocalTable

    file = local / names.LOCAL_TABLE
    if not file.is_file():
        raise Missing(f"{local} holds no run", next_step="give the folder that `spotproof run --local` was given")
    table = LocalTable(file)
    click.get_current_context().call_on_close(table.close)
    return Place(table=table, region="", words=f"--local {local}", bucket=partial(_objects, local))


def _objects(local: Path) -> tuple[Objects, Eraser]:
    from spotproof.store.folder import FolderObjects

    root = local / names.LOCAL_OBJECTS
    return FolderObjects(root), FolderEraser(root)

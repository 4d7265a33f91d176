"""`spotproof run -- CMD`: the command starts when this node has its place, and its end is judged by the commits."""

from __future__ import annotations

import os
import sys

import click

from spotproof.cli.launcher import Launcher
from spotproof.contract.settings import variable


@click.command(name="run", context_settings={"ignore_unknown_options": True})
@click.option("--local", "local_dir", metavar="DIR", help="Off AWS: where checkpoints go (default: .spotproof).")
@click.option("--run", "run_id", metavar="RUN", help="Id of a local run (default: local).")
@click.option("--every-s", type=click.IntRange(min=1), help="Local: seconds between checkpoints (default: 180).")
@click.option("--every-steps", type=click.IntRange(min=1), help="Local: save after this many optimizer steps too.")
@click.argument("words", nargs=-1, type=click.UNPROCESSED, metavar="[--] [COMMAND]...")
def command(
    words: tuple[str, ...], local_dir: str | None, run_id: str | None, every_s: int | None, every_steps: int | None
) -> None:
    """Run COMMAND (on EC2: the run spec's, if none is given) so that it survives interruptions.

    Exit codes: 0 done, 75 preempted after a committed flush, 76 preempted without one, 77 paused by a budget,
    78 bad configuration, else the command's own.
    """
    chosen = {
        "local_dir": local_dir,
        "run": run_id,
        "checkpoint_every_s": every_s,
        "checkpoint_every_steps": every_steps,
    }
    environ = {**os.environ, **{variable(name): str(value) for name, value in chosen.items() if value is not None}}
    sys.exit(Launcher(words=words, environ=environ).run())

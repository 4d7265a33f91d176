"""`spotproof preflight run.yaml --state-gb N`: whether a flush fits into a Spot notice, before anything is launched."""

from __future__ import annotations

from pathlib import Path

import click

from spotproof.cli.main import say_json
from spotproof.cli.submit import read_spec
from spotproof.cli.where import json_option
from spotproof.contract.runspec import RunSpec
from spotproof.errors import BadRunSpec
from spotproof.plan import network, preflight
from spotproof.plan.preflight import Outlook


@click.command(name="preflight")
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False))
@click.option(
    "--state-gb",
    type=click.FloatRange(min=0.0, min_open=True),
    required=True,
    help="What a checkpoint of the whole run holds, in GB: AdamW in fp32 has 12 bytes for each parameter.",
)
@click.option("--step-s", type=click.FloatRange(min=0.0), default=0.0, help="Seconds of an optimizer step.")
@click.option("--replicated", is_flag=True, help="Every node has all of it (DDP); else each has its share (FSDP).")
@json_option
def command(*, file: Path, state_gb: float, step_s: float, replicated: bool, as_json: bool) -> None:
    """Say for each instance type of the run in FILE whether its flush fits into a notice. Exit code 78: not all do.

    Once the run has begun, its agent says the same from the real layout.
    """
    spec = read_spec(file)
    found = outlooks(spec, state_bytes=int(state_gb * 1e9), step_s=step_s, is_replicated=replicated)
    if as_json:
        say_json({name: {"fits": one.fits, "says": one.says, "helps": list(one.helps)} for name, one in found.items()})
    else:
        for name, one in found.items():
            click.echo(f"{name}: {'fits' if one.fits else 'DOES NOT FIT'}: {one.says}")
            for help_ in one.helps:
                click.echo(f"  would help: {help_}")
    if not all(one.fits for one in found.values()):
        raise click.exceptions.Exit(78)


def outlooks(spec: RunSpec, *, state_bytes: int, step_s: float, is_replicated: bool) -> dict[str, Outlook]:
    """By instance type. Raises BadRunSpec for a type whose network is not known."""
    unknown = [name for name in spec.pools.types if network.bytes_s_of(name) is None]
    if unknown:
        raise BadRunSpec(
            f"pools.types: the network of {', '.join(unknown)} is not known here",
            next_step="leave it out of the preflight; the agent measures it at the first save",
        )
    share = state_bytes if is_replicated else state_bytes // spec.slots
    return {
        name: preflight.outlook(
            preflight.Layout(
                image_bytes=share,
                wire_bytes_s=network.bytes_s_of(name) or 1.0,
                step_s=step_s,
                every_s=spec.checkpoint.every_s,
                is_sharded=not is_replicated,
            )
        )
        for name in spec.pools.types
    }

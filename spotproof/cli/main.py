"""The command line. Commands live in files of their own and are loaded when they are called."""

from __future__ import annotations

import importlib
import json
import sys
from typing import Any, Final

import click

import spotproof
from spotproof.contract.exits import ExitCode
from spotproof.errors import ArenaRefused, ContractError, DiskFull, SpotproofError

_COMMANDS: Final = {
    "run": ("spotproof.cli.run", "Run a training command so that it survives interruptions."),
    "agent": ("spotproof.cli.agent", "Run the node's agent: the host service, or one for a local folder."),
    "preflight": ("spotproof.cli.preflight", "Say whether a run's flush fits into a Spot notice, and what would help."),
    "submit": ("spotproof.cli.submit", "Write a run into a stack; its nodes are launched within a minute."),
    "status": ("spotproof.cli.status", "Show where a run is, and what to do next."),
    "report": ("spotproof.cli.report", "Draw a run's story: nodes, recoveries, losses, money."),
    "pause": ("spotproof.cli.lifecycle:pause", "Let a run save and end its nodes until it is resumed."),
    "resume": ("spotproof.cli.lifecycle:resume", "Let a run go on that was paused, blocked, failed or stopped."),
    "stop": ("spotproof.cli.lifecycle:stop", "Let a run save and end its nodes for good."),
    "checkpoint": ("spotproof.cli.checkpoint", "List, verify, fetch, export and clear a run's checkpoints."),
    "drill": ("spotproof.cli.drill", "Rehearse an interruption of a run's nodes."),
    "dlq": ("spotproof.cli.dlq", "Look at dead letters, send them back, or drop them."),
}
_A_PERSON_HAS_TO_ACT: Final = (ContractError, ArenaRefused, DiskFull)


class _Commands(click.Group):
    """Loads a command's file when it is asked for: `spotproof --version` costs no more than click."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 -- click's signature
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002 -- click's
        if cmd_name not in _COMMANDS:
            return None
        module, _, attribute = _COMMANDS[cmd_name][0].partition(":")
        command: click.Command = getattr(importlib.import_module(module), attribute or "command")
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002 -- click's
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in _COMMANDS.items()])


@click.command(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(spotproof.__version__, prog_name="spotproof")
def commands() -> None:
    """Training on EC2 Spot that goes on from exactly the step where it stopped."""


def main() -> None:
    """The entry point: every error of ours is one line on stderr and an exit code that means something."""
    try:
        commands.main(prog_name="spotproof", standalone_mode=True)
    except SpotproofError as error:
        click.echo(f"spotproof: {error}", err=True)
        sys.exit(exit_code_of(error))


def exit_code_of(error: SpotproofError) -> int:
    """78 where a person has to change something, else 1."""
    return int(ExitCode.BAD_CONFIGURATION if isinstance(error, _A_PERSON_HAS_TO_ACT) else ExitCode.FAILED)


def say_json(document: dict[str, Any]) -> None:
    """The one JSON document that a command with --json writes to stdout; everything else goes to stderr."""
    click.echo(json.dumps(document, indent=2, sort_keys=True))


if __name__ == "__main__":
    main()

"""`spotproof agent`: the host service of a node, or the agent of a local folder."""

from __future__ import annotations

import os
import sys

import click

from spotproof.agent.main import run_agent
from spotproof.contract.settings import variable


@click.command(name="agent")
@click.option("--local", "local_dir", metavar="DIR", help="Off AWS: this folder stands for table and bucket.")
@click.option("--run", "run_id", metavar="RUN", help="Id of the local run (default: local).")
def command(local_dir: str | None, run_id: str | None) -> None:
    """Hear notices, give memory for checkpoints, upload, beat. On EC2 everything comes from the environment."""
    environ = dict(os.environ)
    if local_dir:
        environ[variable("local_dir")] = local_dir
    if run_id:
        environ[variable("run")] = run_id
    sys.exit(run_agent(environ))

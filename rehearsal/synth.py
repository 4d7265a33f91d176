"""`cdk synth` as `make synth` does it: no account, no credentials, no network."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Final

from rehearsal.deploy import REPOSITORY, Toolchain
from rehearsal.processes import Processes

LIMIT_S: Final = 300.0


class SynthFailed(Exception):
    """The CDK CLI did not synthesize; the text is the end of its log."""


def synthesize(processes: Processes, folder: Path) -> Path:
    """Synthesizes the stack into `folder/cdk.out` and returns that. Raises SynthFailed."""
    toolchain, out, log = Toolchain.find(), folder / "cdk.out", folder / "cdk-synth.log"
    app = f"{sys.executable} -m cdk_app.app"
    words = ["synth", "--quiet", "--no-notices", "--no-lookups", "--no-color", "--app", app, "--output", str(out)]
    command = [str(toolchain.node), str(toolchain.cdk), *words]
    child = processes.start(command, env=_environment(toolchain, folder), cwd=REPOSITORY, log=log)
    try:
        code = child.wait(LIMIT_S)
    except subprocess.TimeoutExpired:
        child.kill()
        code = -1
    if code != 0:
        raise SynthFailed(f"cdk synth ended with {code}; log {log}:\n{log.read_text(errors='replace')[-2000:]}")
    return out


def _environment(toolchain: Toolchain, folder: Path) -> dict[str, str]:
    return {
        "PATH": f"{toolchain.node.parent}:{os.environ.get('PATH', os.defpath)}",
        "HOME": os.environ.get("HOME", str(folder)),
        "CDK_DISABLE_CLI_TELEMETRY": "true",
        "CDK_DISABLE_VERSION_CHECK": "true",
        "JSII_SILENCE_WARNING_UNTESTED_NODE_VERSION": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
    }

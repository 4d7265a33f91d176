"""The one zip of all functions: our packages that functions need, and the pure wheels that `make setup` cached.

No Docker and no network: uv unpacks the wheels from the cache. The output is the same for the same input, and CDK
hashes the output, so that a changed pin changes the asset.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

import jsii
from aws_cdk import AssetHashType, BundlingOptions, DockerImage, ILocalBundling
from aws_cdk import aws_lambda as lambda_

from spotproof.errors import BadSettings

ROOT: Final = Path(__file__).resolve().parents[1]
WHEELS: Final = ROOT / ".cache" / "wheels"
REQUIREMENTS: Final = ROOT / "lambdas" / "requirements.txt"
RUNTIME: Final = lambda_.Runtime.PYTHON_3_14
PYTHON: Final = "3.14"
PLATFORM: Final = "aarch64-manylinux2014"
# The rooms of spotproof that functions may import (R11 in the import rules).
OURS: Final = (
    "spotproof/__init__.py",
    "spotproof/errors.py",
    "spotproof/contract",
    "spotproof/plan",
    "spotproof/report",
    "spotproof/store",
    "lambdas",
)
INSTALLERS_NOTES: Final = ("RECORD", "INSTALLER", "REQUESTED", "direct_url.json", "uv_cache.json")
NOT_SHIPPED: Final = ("__pycache__", "*.pyc", "requirements.txt")


@jsii.implements(ILocalBundling)
class LocalBundle:
    """Fills the asset's folder in this process; CDK then never looks for Docker."""

    def try_bundle(self, output_dir: str, *, image: DockerImage, **_: Any) -> bool:
        """Writes the content of the zip into `output_dir`. Raises BadSettings if the wheel cache is not filled."""
        del image
        bundle(Path(output_dir))
        return True


def function_code() -> lambda_.Code:
    """The code asset that all functions share."""
    return lambda_.Code.from_asset(
        str(ROOT / "lambdas"),
        asset_hash_type=AssetHashType.OUTPUT,
        exclude=["**/__pycache__"],
        bundling=BundlingOptions(image=DockerImage.from_registry("never-pulled"), local=LocalBundle()),
    )


def bundle(target: Path) -> None:
    """Wheels and our packages into `target`."""
    if not list(WHEELS.glob("*.whl")):
        raise BadSettings(f"no wheels in {WHEELS.relative_to(ROOT)}", next_step="run `make setup` once, with network")
    _unpack_wheels(target)
    for name in OURS:
        source, place = ROOT / name, target / name
        if source.is_dir():
            shutil.copytree(source, place, ignore=shutil.ignore_patterns(*NOT_SHIPPED), dirs_exist_ok=True)
        else:
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, place)


def _unpack_wheels(target: Path) -> None:
    command = [sys.executable, "-m", "uv", "pip", "install", "--quiet", "--target", str(target)]
    command += ["--offline", "--no-index", "--find-links", str(WHEELS), "--no-cache", "--no-config"]
    command += ["--only-binary", ":all:", "--no-compile", "--link-mode", "copy", "--python", sys.executable]
    command += ["--python-version", PYTHON, "--python-platform", PLATFORM, "--requirement", str(REQUIREMENTS)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise BadSettings(f"the wheel cache does not fit: {done.stderr.strip()}", next_step="run `make setup` again")
    _forget_this_machine(target)


def _forget_this_machine(target: Path) -> None:
    """Without what an installer notes about itself, when and where it ran: paths and times would change the asset."""
    shutil.rmtree(target / "bin", ignore_errors=True)
    for name in (".lock", ".gitignore", *(f"*.dist-info/{note}" for note in INSTALLERS_NOTES)):
        for note in target.glob(name):
            note.unlink()

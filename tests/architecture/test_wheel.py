"""What people install: a wheel with the package only, whose first command works without any extra."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.architecture.tree import ROOT

START = """
import sys
sys.path.insert(0, {folder!r})
import spotproof
from spotproof.cli.main import main
print(spotproof.__file__)
sys.argv = ["spotproof", "--help"]
main()
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    subprocess.run(
        [
            sys.executable,
            "-m",
            "pip",
            "wheel",
            "-q",
            "--no-build-isolation",
            "--no-deps",
            "--no-index",
            "-w",
            str(folder),
            ".",
        ],
        cwd=ROOT,
        check=True,
        capture_output=True,
    )
    return next(folder.glob("spotproof-*.whl"))


def test_the_wheel_ships_only_the_package(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        tops = {name.split("/")[0] for name in archive.namelist()}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"spotproof"}


def test_the_wheel_is_typed_and_licensed(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    assert "spotproof/py.typed" in names
    assert [name for name in names if name.endswith("licenses/LICENSE")]


def test_the_command_line_of_the_wheel_starts_outside_the_checkout(wheel: Path, tmp_path: Path) -> None:
    """Unpacked in a folder of its own and run from there, so that nothing of the checkout can help."""
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path)
    done = subprocess.run(
        [sys.executable, "-P", "-c", START.format(folder=str(tmp_path))],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert str(tmp_path) in done.stdout
    assert "Usage" in done.stdout

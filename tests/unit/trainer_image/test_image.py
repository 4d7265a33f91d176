"""The image: what it copies exists, and its entrypoint starts what the command line asks for."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
DOCKERFILE = (ROOT / "trainer_image" / "Dockerfile").read_text()

# Says its own name and its arguments, one a line.
STUB = """#!/bin/sh
echo "${0##*/}"
for word in "$@"; do echo "$word"; done
"""


def entrypoint() -> list[str]:
    found = re.search(r"^ENTRYPOINT (\[.*\])$", DOCKERFILE, re.MULTILINE)
    assert found is not None, "the entrypoint is an exec-form line"
    words = json.loads(found[1])
    assert all(isinstance(word, str) for word in words)
    return list(words)


@pytest.fixture
def started(tmp_path: Path) -> Path:
    """A folder for PATH whose `spotproof` and `python` tell how they were called."""
    for name in ("spotproof", "python"):
        (tmp_path / name).write_text(STUB)
        (tmp_path / name).chmod(0o755)
    return tmp_path


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        pytest.param([], "spotproof run --", id="nothing: the spec's command"),
        pytest.param(["python", "mine.py"], "spotproof run -- python mine.py", id="a command"),
        pytest.param(["spotproof", "agent"], "spotproof agent", id="a spotproof command"),
        pytest.param(["spotproof-like"], "spotproof run -- spotproof-like", id="a name that begins alike"),
    ],
)
def test_the_entrypoint_starts_what_is_asked(started: Path, command: list[str], expected: str) -> None:
    assert said(started, command) == expected.split()


def test_the_entrypoint_keeps_words_apart(started: Path) -> None:
    assert said(started, ["python", "two words", "", "$HOME"])[-3:] == ["two words", "", "$HOME"]


def said(started: Path, command: list[str]) -> list[str]:
    words = [*entrypoint(), *command]
    return subprocess.run(
        words, env={"PATH": str(started)}, capture_output=True, text=True, check=True
    ).stdout.splitlines()


def test_the_entrypoint_ends_with_the_code_of_what_it_started(started: Path) -> None:
    (started / "spotproof").write_text("#!/bin/sh\nexit 75\n")
    assert subprocess.run(entrypoint(), env={"PATH": str(started)}, check=False).returncode == 75


def copied() -> list[str]:
    lines = re.findall(r"^COPY (.+)$", DOCKERFILE, re.MULTILINE)
    return [source for line in lines for source in line.split()[:-1]]


def test_what_the_image_copies_is_in_the_repository() -> None:
    assert copied()
    assert not [source for source in copied() if not (ROOT / source).exists()]


def test_what_the_image_copies_reaches_the_builder() -> None:
    # The ignore file lets nothing through that it does not name.
    ignore = (ROOT / "trainer_image" / "Dockerfile.dockerignore").read_text().splitlines()
    let_through = {line[1:] for line in ignore if line.startswith("!")}
    assert "*" in ignore
    assert let_through == set(copied())


def test_the_image_installs_the_extra_that_the_package_has() -> None:
    project = (ROOT / "pyproject.toml").read_text()
    assert re.findall(r'pip install "\.\[(\w+)\]"', DOCKERFILE) == ["torch"]
    assert re.search(r"^torch = \[", project, re.MULTILINE)


def test_the_text_is_what_its_script_writes() -> None:
    command = [sys.executable, "trainer_image/make_corpus.py", "--check"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr

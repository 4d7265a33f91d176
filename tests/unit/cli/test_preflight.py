from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from spotproof.cli.main import commands

SPEC = """
run: mini
image: 111122223333.dkr.ecr.us-east-1.amazonaws.com/train@sha256:{digest}
command: [python, train.py]
slots: {slots}
pools: {{types: [{types}]}}
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "run.yaml"


def run(file: Path, *words: str, types: str = "g5.xlarge, g6.xlarge", slots: int = 1) -> tuple[int, str]:
    file.write_text(SPEC.format(digest="0" * 64, types=types, slots=slots))
    found = CliRunner().invoke(commands, ["preflight", str(file), *words])
    return found.exit_code, found.output


def test_a_state_that_fits_is_said_for_each_type(file: Path) -> None:
    code, says = run(file, "--state-gb", "10")
    assert code == 0
    assert "g5.xlarge: fits: a flush of 10.0 GB needs 37 s of 90 s" in says
    assert "g6.xlarge: fits" in says


def test_one_that_does_not_says_what_would_help_and_ends_with_78(file: Path) -> None:
    code, says = run(file, "--state-gb", "98", "--step-s", "2")
    assert code == 78
    assert "g5.xlarge: DOES NOT FIT" in says
    assert "would help: instance types with at least" in says


def test_nodes_share_a_state_unless_it_is_replicated(file: Path) -> None:
    assert run(file, "--state-gb", "98", slots=8)[0] == 0
    assert run(file, "--state-gb", "98", "--replicated", slots=8)[0] == 78


def test_programs_get_json(file: Path) -> None:
    code, says = run(file, "--state-gb", "98", "--json")
    assert code == 78
    assert json.loads(says)["g5.xlarge"]["fits"] is False


def test_a_type_whose_network_is_unknown_is_named(file: Path) -> None:
    file.write_text(SPEC.format(digest="0" * 64, types="m5.large", slots=1))
    found = CliRunner().invoke(commands, ["preflight", str(file), "--state-gb", "1"])
    assert "m5.large" in str(found.exception)

"""What submit says about a run's instance types, before anything is written."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from spotproof.cli.submit import read_spec
from spotproof.errors import BadRunSpec


def written(folder: Path, *types: str) -> Path:
    document = {
        "run": "mini",
        "image": "registry.example/train@sha256:" + "0f" * 32,
        "command": ["python", "train.py"],
        "pools": {"types": list(types)},
    }
    file = folder / "run.yaml"
    file.write_text(yaml.safe_dump(document))
    return file


def test_types_that_do_not_fit_together_are_refused_with_the_file(tmp_path: Path) -> None:
    with pytest.raises(BadRunSpec, match=r"run\.yaml: pools\.types: g5\.xlarge has 1, g5\.12xlarge has 4"):
        read_spec(written(tmp_path, "g5.xlarge", "g5.12xlarge"))


def test_unknown_types_are_warned_of_on_stderr_and_go(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert read_spec(written(tmp_path, "x99.xlarge")).pools.types == ("x99.xlarge",)
    said = capsys.readouterr()
    assert "x99.xlarge" in said.err
    assert said.out == ""

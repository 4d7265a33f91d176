"""What import-linter cannot see: the standard library as the only source, and what an import costs."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.architecture.tree import ROOT, in_room

IMPORT_CPU_S = 0.060

# Import in a process of its own and report the CPU that the import took and what came along.
MEASURE = """
import json, sys, time
before = time.process_time()
import {module}
print(json.dumps([time.process_time() - before, sorted({{name.split(".")[0] for name in sys.modules}})]))
"""


def imported_names(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module or ""


def cost_of(module: str) -> tuple[float, set[str]]:
    done = subprocess.run(
        [sys.executable, "-c", MEASURE.format(module=module)], cwd=ROOT, capture_output=True, text=True, check=True
    )
    seconds, names = json.loads(done.stdout)
    return float(seconds), set(names)


@pytest.mark.parametrize("room", ["spotproof/errors.py", "spotproof/contract", "spotproof/plan"])
def test_the_contract_uses_the_standard_library_only(room: str) -> None:
    assert in_room(room), f"{room} is gone: this test looks at nothing"
    foreign = [
        f"{path.relative_to(ROOT)}: {name}"
        for path in in_room(room)
        for name in imported_names(path)
        if name.split(".")[0] not in {*sys.stdlib_module_names, "spotproof"}
    ]
    assert not foreign


def test_importing_spotproof_costs_little_and_loads_neither_torch_nor_boto3() -> None:
    # CPU time on a loaded machine only ever errs upwards: the best of a few is the import's own.
    measured = [cost_of("spotproof") for _ in range(5)]
    assert min(seconds for seconds, _ in measured) < IMPORT_CPU_S
    assert not measured[0][1] & {"torch", "boto3", "botocore", "numpy"}


@pytest.mark.parametrize("module", ["spotproof.cli.main", "spotproof.agent.main"])
def test_the_agent_and_the_command_line_start_without_torch_and_boto3(module: str) -> None:
    _, names = cost_of(module)
    assert not names & {"torch", "boto3", "botocore", "numpy", "aws_cdk"}

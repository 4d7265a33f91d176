"""Rehearsals: a real training on the deployed stack survives an interruption with notice, also if only IMDS tells it.

The other scenarios take longer; `make show-control` plays all of them, and their sabotages.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from rehearsal import verdicts
from tests.architecture.tree import ROOT
from tests.synth.template import Assembly

LIMIT_S = 420
JUDGED = {
    verdicts.NOTHING_LOST,
    verdicts.BIT_EQUAL,
    verdicts.SAMPLES,
    verdicts.ONE_REPLACEMENT,
    verdicts.COMMITS,
    verdicts.TAGGED,
    verdicts.FINISHED,
    verdicts.NOTHING_LEFT,
    verdicts.DEPLOYED,
    verdicts.EXERCISED,
    verdicts.PERMISSIONS,
    verdicts.NO_SURPRISES,
}


def rehearse(*words: str, page: Path) -> tuple[int, list[dict[str, Any]]]:
    """Exit status and verdicts of `python -m rehearsal`, as a person starts it."""
    command = [sys.executable, "-m", "rehearsal", "--json", "--page", str(page), *words]
    environment = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False, timeout=LIMIT_S
    )
    assert done.stdout, done.stderr[-3000:]
    return done.returncode, json.loads(done.stdout)


@pytest.mark.slow
@pytest.mark.rehearsal
def test_a_short_rehearsal_keeps_every_promise(assembly: Assembly, tmp_path: Path) -> None:
    page = tmp_path / "rehearsal.html"
    status, judged = rehearse("--short", "--cdk-out", str(assembly.folder), page=page)
    assert [verdict for verdict in judged if not verdict["passed"]] == []
    assert {verdict["name"] for verdict in judged} == JUDGED
    assert status == 0
    assert page.read_text().startswith("<!doctype html>")


@pytest.mark.slow
@pytest.mark.rehearsal
@pytest.mark.parametrize("name", ["agent-alone"])
def test_a_scenario_keeps_every_promise(name: str, assembly: Assembly, tmp_path: Path) -> None:
    words = ("--scenario", name, "--cdk-out", str(assembly.folder))
    status, (played,) = rehearse(*words, page=tmp_path / "rehearsal.html")
    assert [verdict for verdict in played["verdicts"] if not verdict["passed"]] == []
    assert played["scenario"] == name
    assert played["passed"] is True
    assert status == 0

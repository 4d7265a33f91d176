"""The uninterrupted run: the same trainer, without spotproof, in a process of its own."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Final

from rehearsal import losses
from rehearsal.deploy import REPOSITORY
from rehearsal.plan import Plan
from rehearsal.processes import Child, Processes
from spotproof.report.model import Point

LIMIT_S: Final = 300.0


class ReferenceFailed(Exception):
    """The uninterrupted run did not finish; the text is the end of its log."""


class Reference:
    """Starts at once, in the background; `result` waits for it. Runs of equal length share one folder."""

    def __init__(self, processes: Processes, plan: Plan, folder: Path) -> None:
        name = f"reference-{plan.steps}-{plan.slots}"
        self._log, self._output = folder / f"{name}.jsonl", folder / f"{name}.log"
        self._child: Child | None = None
        self._steps = plan.steps
        if losses.last_step(self._log) < plan.steps:
            self._log.unlink(missing_ok=True)
            self._child = processes.start(self._command(plan), env=_environment(), cwd=REPOSITORY, log=self._output)

    def _command(self, plan: Plan) -> list[str]:
        words = plan.training("--loss-log", str(self._log), "--untracked")
        ranks = ["--standalone", "--nproc-per-node", str(plan.slots)]
        launcher = [] if plan.slots == 1 else ["-m", "torch.distributed.run", *ranks]
        return [sys.executable, *launcher, *words]

    def result(self) -> tuple[Point, ...]:
        """Every step of the uninterrupted run. Raises ReferenceFailed."""
        code = 0 if self._child is None else self._child.wait(LIMIT_S)
        points = losses.read(self._log)
        if code != 0 or len(points) != self._steps:
            said = self._output.read_text(errors="replace")[-1000:]
            raise ReferenceFailed(f"the uninterrupted run ended with {code} after {len(points)} steps:\n{said}")
        return points


def _environment() -> dict[str, str]:
    return {
        "PATH": os.environ.get("PATH", os.defpath),
        "PYTHONPATH": str(REPOSITORY),
        "PYTHONDONTWRITEBYTECODE": "1",
        "OMP_NUM_THREADS": "1",
        "GLOO_SOCKET_IFNAME": "lo",
    }

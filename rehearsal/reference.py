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
        self._steps, self._logs = plan.steps, plan.logs(self._log)
        if any(losses.last_step(log) < plan.steps for log in self._logs):
            for log in self._logs:
                log.unlink(missing_ok=True)
            self._child = processes.start(self._command(plan), env=_environment(), cwd=REPOSITORY, log=self._output)

    def _command(self, plan: Plan) -> list[str]:
        words = plan.training("--loss-log", str(self._log), "--untracked")
        ranks = ["--standalone", "--nproc-per-node", str(plan.slots)]
        launcher = [] if plan.slots == 1 else ["-m", "torch.distributed.run", *ranks]
        return [sys.executable, *launcher, *words]

    def result(self) -> tuple[tuple[Point, ...], ...]:
        """Every step of the uninterrupted run, rank by rank. Raises ReferenceFailed."""
        code = 0 if self._child is None else self._child.wait(LIMIT_S)
        ranks = tuple(losses.read(log) for log in self._logs)
        if code != 0 or any(len(points) != self._steps for points in ranks):
            said = self._output.read_text(errors="replace")[-1000:]
            counted = ", ".join(str(len(points)) for points in ranks)
            raise ReferenceFailed(f"the uninterrupted run ended with {code} after {counted} steps:\n{said}")
        return ranks


def _environment() -> dict[str, str]:
    return {
        "PATH": os.environ.get("PATH", os.defpath),
        "PYTHONPATH": str(REPOSITORY),
        "PYTHONDONTWRITEBYTECODE": "1",
        "OMP_NUM_THREADS": "1",
        "GLOO_SOCKET_IFNAME": "lo",
    }

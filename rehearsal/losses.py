"""The loss log that the trainer appends to: what really ran, step by step, by which process.

It lies outside the nodes' disks, because a node's disk goes with the node. A process is one segment; a step that
stands in two segments was trained twice.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One optimizer step. `loss` is float.hex(), exact; `samples` are the ids that the step saw; `at` is Unix time."""

    step: int
    loss: str
    samples: tuple[int, ...]
    at: float
    pid: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """What one process trained, in order of time."""

    pid: int
    lines: tuple[Line, ...]

    @property
    def first(self) -> int:
        return self.lines[0].step

    @property
    def last(self) -> int:
        return self.lines[-1].step


def read(path: Path) -> tuple[Line, ...]:
    """Every whole line; a last line that a SIGKILL cut short is left out."""
    if not path.exists():
        return ()
    return tuple(_line(text) for text in path.read_text().splitlines(keepends=True) if text.endswith("\n"))


def _line(text: str) -> Line:
    body = json.loads(text)
    return Line(
        step=int(body["step"]),
        loss=str(body["loss"]),
        samples=tuple(body["samples"]),
        at=float(body["at"]),
        pid=int(body["pid"]),
    )


def segments(lines: Iterable[Line]) -> tuple[Segment, ...]:
    """The lines by process, ordered by when each process made its first step."""
    by_pid: dict[int, list[Line]] = {}
    for line in lines:
        by_pid.setdefault(line.pid, []).append(line)
    found = [Segment(pid=pid, lines=tuple(own)) for pid, own in by_pid.items()]
    return tuple(sorted(found, key=lambda segment: segment.lines[0].at))


def last_step(path: Path) -> int:
    """The newest step in the log, 0 before the first."""
    lines = read(path)
    return lines[-1].step if lines else 0

"""The loss log that the trainer appends to: what really ran, step by step, by which process.

It lies outside the nodes' disks, because a node's disk goes with the node. A process is one piece; a step that stands
in two pieces was trained twice.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from spotproof.report import losses
from spotproof.report.model import Point


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """What one process trained, in order of time."""

    points: tuple[Point, ...]

    @property
    def pid(self) -> int:
        return self.points[0].pid or 0

    @property
    def first(self) -> int:
        return self.points[0].step

    @property
    def last(self) -> int:
        return self.points[-1].step

    @property
    def begin_at(self) -> float:
        return when(self.points[0])


def when(point: Point) -> float:
    """Unix time of a step; the rehearsal's trainer always notes it."""
    if point.at is None:
        raise ValueError(f"step {point.step} of the loss log has no time")
    return point.at


def read(path: Path) -> tuple[Point, ...]:
    """Every whole line; a last line that a SIGKILL cut short is left out. Empty before the first step."""
    if not path.exists():
        return ()
    with path.open() as lines:
        return losses.read_log(lines)


def pieces(points: Iterable[Point]) -> tuple[Piece, ...]:
    """The points by process, ordered by when each process made its first step."""
    return tuple(sorted((Piece(points=own) for own in losses.by_process(points)), key=lambda piece: piece.begin_at))


def last_step(path: Path) -> int:
    """The newest step in the log, 0 before the first."""
    points = read(path)
    return points[-1].step if points else 0

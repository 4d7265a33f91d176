"""Loss logs: reading them, joining the pieces of several nodes, and comparing them with an uninterrupted run."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from spotproof.errors import ContractError
from spotproof.report.model import Point, Segment


def read_log(lines: Iterable[str]) -> tuple[Point, ...]:
    """The points of a loss log: JSON lines {step, loss (float.hex or a number), samples?, at?, pid?}, in their order.

    A last line without its line end is one that a dying node could not finish: it is left out.

    Raises:
        ContractError: another line does not parse; the message has its number.
    """
    points: list[Point] = []
    for number, line in enumerate(lines, start=1):
        if not line.endswith("\n"):
            break
        try:
            points.append(_point(line))
        except (ValueError, KeyError, TypeError) as error:
            raise ContractError(f"line {number} of the loss log does not parse: {line[:80]!r}") from error
    return tuple(points)


def _point(line: str) -> Point:
    body = json.loads(line)
    loss, at, pid = body["loss"], body.get("at"), body.get("pid")
    return Point(
        step=int(body["step"]),
        loss=float.fromhex(loss) if isinstance(loss, str) else float(loss),
        samples=tuple(int(sample) for sample in body.get("samples", ())),
        at=None if at is None else float(at),
        pid=None if pid is None else int(pid),
    )


def by_process(points: Iterable[Point]) -> tuple[tuple[Point, ...], ...]:
    """The points of a log that several trainers appended to, one tuple for each, in the order they came."""
    pieces: dict[int | None, list[Point]] = {}
    for point in points:
        pieces.setdefault(point.pid, []).append(point)
    return tuple(tuple(piece) for piece in pieces.values())


def placed(pieces: Sequence[tuple[Point, ...]], starts: Mapping[tuple[int, int], float]) -> tuple[Segment, ...]:
    """The pieces as segments of the run's nodes: each to the newest node that had joined when its first step was done.

    `starts` is (slot, incarnation) -> when it joined. Without times, the n-th piece is the n-th node's of slot 0. A
    trainer that was started again on its node goes on in the node's segment.
    """
    segments: dict[tuple[int, int], tuple[Point, ...]] = {}
    for number, piece in enumerate(pieces, start=1):
        at = piece[0].at
        before = [] if at is None else [node for node, joined_at in starts.items() if joined_at <= at]
        node = max(before, key=lambda one: starts[one], default=(0, number))
        segments[node] = (*segments.get(node, ()), *piece)
    return tuple(
        Segment(slot=slot, incarnation=incarnation, points=points)
        for (slot, incarnation), points in sorted(segments.items())
    )


def joined(segments: Sequence[Segment]) -> dict[int, Point]:
    """Step -> point of the whole run. Where a step was done again, the newest incarnation's counts."""
    curve: dict[int, Point] = {}
    for segment in sorted(segments, key=lambda one: one.incarnation):
        curve.update({point.step: point for point in segment.points})
    return dict(sorted(curve.items()))


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """How a run's steps stand to those of the uninterrupted run. Repeated steps are compared each time."""

    compared: int
    different: tuple[int, ...]  # steps whose loss or samples differ in any bit
    missing: tuple[int, ...]  # steps of the uninterrupted run that this run never did
    extra: tuple[int, ...]  # steps that the uninterrupted run has not

    @property
    def is_equal(self) -> bool:
        """Whether every step of both runs is there and the same to the last bit."""
        return self.compared > 0 and not (self.different or self.missing or self.extra)


def compare(segments: Sequence[Segment], reference: Sequence[Point]) -> Comparison:
    """Every point of `segments` beside the one of `reference` with its step. NaN equals NaN here."""
    wanted = {point.step: point for point in reference}
    points = [point for segment in segments for point in segment.points]
    done = {point.step for point in points}
    both = [point for point in points if point.step in wanted]
    return Comparison(
        compared=len(both),
        different=tuple(sorted({point.step for point in both if not _same(point, wanted[point.step])})),
        missing=tuple(sorted(wanted.keys() - done)),
        extra=tuple(sorted(done - wanted.keys())),
    )


def _same(one: Point, other: Point) -> bool:
    if one.samples and other.samples and one.samples != other.samples:
        return False
    return one.loss.hex() == other.loss.hex()

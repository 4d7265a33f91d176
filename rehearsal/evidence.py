"""What was measured, from outside the product: the input of every verdict."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from rehearsal.auditor import Commit
from rehearsal.losses import Piece, pieces, when
from rehearsal.permissions.proof import Proof
from spotproof.report.model import Point


class DepartureKind(StrEnum):
    """How a node went."""

    NOTICE = "notice"
    SILENT = "silent"
    FROZEN = "frozen"


@dataclass(frozen=True, slots=True, kw_only=True)
class Departure:
    """A node that the script took away. `good_step` is the newest undamaged commit at that moment (0: none)."""

    act: str
    kind: DepartureKind
    instance: str
    at: float
    good_step: int
    damaged: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """An instance that was launched, as the account knows it at the end."""

    instance: str
    tags: Mapping[str, str]
    launched_at: float
    state: str
    by_hand: bool = False  # a person started it: not ours to tag, to count or to end


@dataclass(frozen=True, slots=True, kw_only=True)
class Coverage:
    """What was deployed and not used; every tuple must be empty."""

    gate_findings: tuple[str, ...]
    rules_silent: tuple[str, ...]
    queues_unused: tuple[str, ...]
    functions_unused: tuple[str, ...]
    document_steps_unused: tuple[str, ...]
    resources: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """Everything that one rehearsal measured. `interval_steps` is the committed interval that the run asked for."""

    run: str
    steps: int
    interval_steps: int
    reference: tuple[Point, ...]
    points: tuple[Point, ...]
    departures: tuple[Departure, ...]
    commits: tuple[Commit, ...]
    audit_problems: tuple[str, ...]
    machines: tuple[Machine, ...]
    left_running: tuple[str, ...]
    coverage: Coverage | None
    woken_committed: tuple[Commit, ...]  # commits of a frozen node's generation after its replacement had joined
    woken_ended: bool | None  # whether the woken node ended by itself; None: nobody was frozen
    run_status: str
    dead_letters: Mapping[str, int]
    plane_problems: tuple[str, ...]
    permissions: Proof | None = None
    first: int = 1  # nodes that the stack launched for the run before anything happened to it
    extras: tuple[str, ...] = ()  # instances beyond one per loss that the script calls for, each with its reason
    explained: Mapping[str, int] = field(default_factory=dict)  # trouble that the script made, by its reason

    @property
    def launched(self) -> tuple[Machine, ...]:
        """What the stack launched."""
        return tuple(machine for machine in self.machines if not machine.by_hand)

    def pieces(self) -> tuple[Piece, ...]:
        """What each process trained."""
        return pieces(self.points)


def around(evidence: Evidence, departure: Departure) -> tuple[Piece, Piece] | None:
    """The piece that ended with this departure and the next one; None if nobody went on after it.

    A frozen node may train a few steps after it woke: they count for no one, so the old piece ends where the next one
    begins.
    """
    found = evidence.pieces()
    before = [piece for piece in found if piece.begin_at <= departure.at]
    after = [piece for piece in found if piece.begin_at > departure.at]
    if not before or not after:
        return None
    old, new = before[-1], after[0]
    return Piece(points=tuple(point for point in old.points if when(point) <= new.begin_at)), new


def steps_lost(evidence: Evidence, departure: Departure) -> int | None:
    """Optimizer steps that had to be trained again because of this departure; None if nobody went on."""
    pair = around(evidence, departure)
    return None if pair is None else pair[0].last - (pair[1].first - 1)

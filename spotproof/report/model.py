"""What a run's story is made of: plain values, ready to be drawn. Times are Unix seconds, durations seconds."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Phase(StrEnum):
    """What a node is doing, as the timeline colours it."""

    BOOTING = "booting"  # from EC2's answer until its agent speaks
    PREPARING = "preparing"  # image, imports, read-ahead
    PARKED = "parked"  # ready; waits until the leaver's flush is final
    RESTORING = "restoring"  # from the sealed membership to the first step
    TRAINING = "training"
    FLUSHING = "flushing"  # the emergency checkpoint
    DRAINING = "draining"  # has flushed; waits for its end
    FROZEN = "frozen"  # alive and silent


class MarkKind(StrEnum):
    """Moments that the timeline marks."""

    NOTICE = "notice"
    ADVICE = "advice"  # at risk: worth a checkpoint, ends nothing
    KILLED = "killed"  # ended by EC2, or by whoever plays it
    LOST = "lost"  # found missing without a notice
    FROZEN = "frozen"
    WOKEN = "woken"
    SUPERSEDED = "superseded"  # came back and found a newer generation
    DAMAGED = "damaged"  # a checkpoint was found damaged and passed over
    ENDED = "ended"  # ended by us, or found ended
    DONE = "done"


class Stage(StrEnum):
    """The stages of a recovery. Flush runs beside request and boot; the others follow each other."""

    NOTICE = "notice"  # until the control plane acts: from the sign, or from the last step where there was none
    FLUSH = "flush"
    REQUEST = "request"
    BOOT = "boot"
    PARK = "park"
    RESTORE = "restore"
    FIRST_STEP = "first step"


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """A node was in `phase` from `begin_at` to `end_at`."""

    phase: Phase
    begin_at: float
    end_at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """Something happened to a node; `says` is for people."""

    kind: MarkKind
    at: float
    says: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeLine:
    """One node's life. `place` tells where it came from, e.g. `g5.xlarge, us-east-1a, spot`."""

    instance: str
    slot: int
    incarnation: int
    place: str = ""
    spans: tuple[Span, ...] = ()
    marks: tuple[Mark, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Commit:
    """A checkpoint became durable."""

    step: int
    at: float
    generation: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """The loss of one optimizer step, exactly as the trainer had it; `at` and `pid` where somebody noted them."""

    step: int
    loss: float
    samples: tuple[int, ...] = ()
    at: float | None = None
    pid: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """The losses that one node wrote, in the order it wrote them."""

    slot: int
    incarnation: int
    points: tuple[Point, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class StageSpan:
    """How long a stage of a recovery took, and when."""

    stage: Stage
    begin_at: float
    end_at: float

    @property
    def seconds(self) -> float:
        """Length of the stage."""
        return self.end_at - self.begin_at


@dataclass(frozen=True, slots=True, kw_only=True)
class Recovery:
    """A node went and another took its place.

    `begin_at` is the notice, or the moment the loss was seen; `stopped_at` the last moment of training before, None
    where nobody knows; `end_at` the first new step, None if there was none. `last_step` is what the lost node had
    done, `resumed_step` what its replacement began from.
    """

    slot: int
    incarnation: int
    cause: str
    lost: str
    replacement: str = ""
    begin_at: float
    stopped_at: float | None = None
    end_at: float | None = None
    stages: tuple[StageSpan, ...] = ()
    last_step: int | None = None
    resumed_step: int | None = None
    remarks: tuple[str, ...] = ()

    @property
    def origin_at(self) -> float:
        """When the first of its stages began."""
        return min((span.begin_at for span in self.stages), default=self.begin_at)

    @property
    def steps_lost(self) -> int | None:
        """Steps that had to be done again; None where one of the two ends is not known."""
        if self.last_step is None or self.resumed_step is None:
            return None
        return max(0, self.last_step - self.resumed_step)

    @property
    def standstill_s(self) -> float | None:
        """Seconds in which nobody trained."""
        if self.end_at is None:
            return None
        return max(0.0, self.end_at - (self.begin_at if self.stopped_at is None else self.stopped_at))


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """A promise, what was measured, and whether it was kept."""

    promise: str
    kept: bool
    measured: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Money:
    """What the run cost, beside the same hours on demand."""

    spent_usd: float
    on_demand_usd: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Story:
    """Everything that the page tells. `reference` is the uninterrupted run, if there was one to compare with."""

    title: str
    run: str
    begin_at: float
    end_at: float
    lead: str = ""  # one or two sentences under the title
    nodes: tuple[NodeLine, ...] = ()
    commits: tuple[Commit, ...] = ()
    segments: tuple[Segment, ...] = ()
    reference: tuple[Point, ...] = ()
    recoveries: tuple[Recovery, ...] = ()
    verdicts: tuple[Verdict, ...] = ()
    money: Money | None = None

    @property
    def broken(self) -> tuple[Verdict, ...]:
        """The promises that were not kept."""
        return tuple(verdict for verdict in self.verdicts if not verdict.kept)

"""What the node says of itself: its NODE item, each heartbeat and at each change of phase; its metrics as EMF lines."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Final, Protocol

from spotproof.contract import emf
from spotproof.contract.emf import Sample
from spotproof.contract.items import Node
from spotproof.contract.metrics import Metric
from spotproof.contract.states import FlushOutcome, NodePhase
from spotproof.contract.times import Times
from spotproof.errors import StoreError, Superseded


class WritesNode(Protocol):
    """The part of `store.nodes.Nodes` that is needed here."""

    def beat(self, node: Node) -> None:
        """Write the node's state. Raises Superseded if another instance beats in this place."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Which node this is."""

    run: str
    slot: int
    incarnation: int
    instance: str


NOTHING_YET: Final = Times()


@dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
    """What a beat tells beside the place."""

    phase: NodePhase = NodePhase.BOOTING
    generation: int = 0
    step: int = 0
    loss: float | None = None
    flush: FlushOutcome | None = None
    flush_step: int | None = None
    flush_why: str | None = None  # what was chosen at the notice, and from which numbers
    exit_code: int | None = None
    times: Times = NOTHING_YET
    step_s: float | None = None  # the newest optimizer step; for metrics, not in the item


@dataclass(frozen=True, slots=True, kw_only=True)
class Vitals:
    """The node's metrics: one line of its log for each beat, with what it tells of itself beside the values."""

    stack: str
    write: Callable[[str], None]
    now: Callable[[], float]

    def tell(self, place: Place, condition: Condition, *, missed: int) -> None:
        """Write the line. A loss that is no finite number is counted and left out; the other values stand."""
        samples = [Sample(metric=Metric.BEATS_MISSED, value=missed)]
        if condition.step_s is not None:
            samples.append(Sample(metric=Metric.STEP, value=condition.step_s))
        about: dict[str, str | float] = {
            "run": place.run,
            "slot": place.slot,
            "incarnation": place.incarnation,
            "phase": condition.phase.value,
            "step": condition.step,
        }
        if condition.loss is not None:
            about["loss"] = condition.loss
            samples.append(Sample(metric=Metric.NONFINITE_LOSS, value=int(not math.isfinite(condition.loss))))
        for line in emf.lines(self.stack, samples, now_ms=int(self.now() * 1000), about=about):
            self.write(line)


@dataclass(slots=True)
class Heart:
    """Beats from a thread of its own; the loop only says what has changed.

    A beat that fails is counted and made up by the next one: training never waits for it.
    """

    nodes: WritesNode
    place: Place
    now: Callable[[], float]
    on_superseded: Callable[[str], None]
    vitals: Vitals | None = None  # None: nobody reads this node's log for metrics
    missed: int = 0
    _condition: Condition = field(default_factory=Condition)
    _beats: int = 0
    _written: Condition | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def condition(self) -> Condition:
        """What the next beat will tell."""
        return self._condition

    def say(self, condition: Condition) -> bool:
        """Change what beats tell; True if this should not wait for the next beat (phase, flush, exit code)."""
        before = self._condition
        self._condition = condition
        urgent = (condition.phase, condition.flush, condition.exit_code, condition.generation)
        return urgent != (before.phase, before.flush, before.exit_code, before.generation)

    def beat(self) -> None:
        """Write one beat."""
        with self._lock:
            condition = self._condition
            self._beats += 1
            missed = self.missed
            try:
                self.nodes.beat(self._node(condition))
            except Superseded as error:
                self.on_superseded(str(error))
            except StoreError:
                self.missed += 1
            else:
                self._written = condition
            if self.vitals is not None:
                self.vitals.tell(self.place, condition, missed=self.missed - missed)

    def is_told(self) -> bool:
        """Whether the newest condition has been written."""
        return self._written == self._condition

    def _node(self, condition: Condition) -> Node:
        loss = condition.loss
        return Node(
            run=self.place.run,
            slot=self.place.slot,
            incarnation=self.place.incarnation,
            instance=self.place.instance,
            phase=condition.phase,
            beat_at=int(self.now()),
            beats=self._beats,
            generation=condition.generation,
            step=condition.step,
            loss=None if loss is None or not math.isfinite(loss) else round(loss, 6),  # the table knows no NaN
            flush=condition.flush,
            flush_step=condition.flush_step,
            flush_why=condition.flush_why,
            exit_code=condition.exit_code,
            times=condition.times.text() or None,
        )


def changed(condition: Condition, **changes: object) -> Condition:
    """`condition` with some of its fields changed."""
    return replace(condition, **changes)  # type: ignore[arg-type]  # dataclasses.replace checks the names

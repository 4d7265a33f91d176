"""What the node says of itself: its NODE item, every heartbeat and at each change of phase; metrics as EMF lines."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Protocol

from spotproof.contract.items import Node
from spotproof.contract.states import FlushOutcome, NodePhase
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
    """What a beat tells beside the place."""

    phase: NodePhase = NodePhase.BOOTING
    generation: int = 0
    step: int = 0
    loss: float | None = None
    flush: FlushOutcome | None = None
    flush_step: int | None = None
    exit_code: int | None = None


@dataclass(slots=True)
class Heart:
    """Beats from a thread of its own; the loop only says what has changed.

    A beat that fails is counted and made up by the next one: training never waits for it.
    """

    nodes: WritesNode
    place: Place
    now: Callable[[], float]
    on_superseded: Callable[[str], None]
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
            try:
                self.nodes.beat(self._node(condition))
            except Superseded as error:
                self.on_superseded(str(error))
            except StoreError:
                self.missed += 1
            else:
                self._written = condition

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
            loss=None if loss is None else round(loss, 6),
            flush=condition.flush,
            flush_step=condition.flush_step,
            exit_code=condition.exit_code,
        )


def changed(condition: Condition, **changes: object) -> Condition:
    """`condition` with some of its fields changed."""
    return replace(condition, **changes)  # type: ignore[arg-type]  # dataclasses.replace checks the names

"""States and their legal moves. A move that is not listed here is refused by the store."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Final


class RunStatus(StrEnum):
    """Status of a run, in HEAD."""

    ACTIVE = "active"  # has nodes or wants them
    PAUSED = "paused"  # a budget or a person: no launches, nothing deleted
    BLOCKED = "blocked"  # cannot be filled before a person changes something
    STOPPING = "stopping"  # a person asked for the end; the last checkpoint is on its way
    DONE = "done"
    FAILED = "failed"
    STOPPED = "stopped"

    @property
    def is_live(self) -> bool:
        """Whether the sweep still looks at it."""
        return self not in {RunStatus.DONE, RunStatus.FAILED, RunStatus.STOPPED}

    @property
    def wants_nodes(self) -> bool:
        """Whether lost nodes are replaced."""
        return self is RunStatus.ACTIVE


class Cause(StrEnum):
    """Why something happened; causes have separate budgets and metrics and are never mixed."""

    SUBMIT = "submit"
    INTERRUPTION = "interruption"
    REBALANCE = "rebalance"
    MAINTENANCE = "maintenance"
    BLOCK_EXPIRY = "block-expiry"
    SILENCE = "silence"
    DISAPPEARED = "disappeared"
    NEVER_JOINED = "never-joined"
    CAPACITY = "capacity"
    THROTTLE = "throttle"
    QUOTA = "quota"
    CONFIGURATION = "configuration"
    TRAINER_ERROR = "trainer-error"
    NODE_FAULT = "node-fault"
    USER = "user"
    DRILL = "drill"
    BUDGET = "budget"
    FAILBACK = "failback"  # a planned move from on-demand back to Spot


class NoticeKind(StrEnum):
    """The signs that a node will go or has gone."""

    INTERRUPTION = "interruption"
    REBALANCE = "rebalance"
    MAINTENANCE = "maintenance"
    BLOCK_EXPIRY = "block-expiry"
    SILENCE = "silence"


class InterruptionAction(StrEnum):
    """What EC2 will do with the instance."""

    TERMINATE = "terminate"
    STOP = "stop"
    HIBERNATE = "hibernate"
    UNKNOWN = "unknown"  # IMDS answered 200 with a body that names neither (EV-03)


class SlotState(StrEnum):
    """A slot as derived from its holder and successor."""

    EMPTY = "empty"  # neither: only before submit has claimed it
    HELD = "held"  # a holder, no successor
    OPEN = "open"  # a successor without an instance: somebody has to launch
    REPLACING = "replacing"  # a successor with an instance that has not joined yet
    CLOSED = "closed"  # the run has ended


class LaunchState(StrEnum):
    """A launch record. It is unfinished until its answer is written and its instances are bound."""

    INTENDED = "intended"  # written before CreateFleet
    ANSWERED = "answered"  # the answer is in the record; binding may be incomplete
    CLOSED = "closed"  # every instance is bound, ended or refused


class NodePhase(StrEnum):
    """What a node says of itself in its NODE item: a hint for the control plane, never an order."""

    BOOTING = "booting"
    PREPARING = "preparing"
    PARKED = "parked"  # ready, waits for its turn to join
    TRAINING = "training"
    FLUSHING = "flushing"
    DRAINING = "draining"  # has flushed; waits for its end, still beating
    DONE = "done"
    FAILED = "failed"
    SUPERSEDED = "superseded"  # woke up and found a newer generation

    @property
    def is_final(self) -> bool:
        """Whether a disappearance after it is no loss."""
        return self in {NodePhase.DONE, NodePhase.FAILED}


class FlushOutcome(StrEnum):
    """How an emergency checkpoint ended; final once written."""

    PENDING = "pending"
    COMMITTED = "committed"
    KEPT_LAST = "kept-last"  # nothing newer could be durable in time; the newest commit stands
    FAILED = "failed"
    MISSED = "missed"  # the notice came when the node was already gone

    @property
    def is_final(self) -> bool:
        """Whether a successor may join."""
        return self is not FlushOutcome.PENDING


class SaveKind(StrEnum):
    """Why a checkpoint is taken."""

    PERIODIC = "periodic"
    EXTRA = "extra"  # a rebalance recommendation or maintenance notice
    FLUSH = "flush"
    FINAL = "final"
    MANUAL = "manual"


class WhenBusy(StrEnum):
    """What becomes of a periodic save for which no arena is free, because earlier ones are still being uploaded."""

    WAIT = "wait"  # it is taken at the first step that finds an arena
    SKIP = "skip"  # the next one is taken when it is due; for a wire that is slower than the interval


class Market(StrEnum):
    """Where an instance's capacity comes from."""

    SPOT = "spot"
    ON_DEMAND = "on-demand"
    CAPACITY_BLOCK = "capacity-block"


class ArenaState(StrEnum):
    """Header state of an arena."""

    FREE = "free"
    FILLING = "filling"
    COMPLETE = "complete"
    UPLOADING = "uploading"


_R = RunStatus
RUN_MOVES: Final[Mapping[RunStatus, frozenset[RunStatus]]] = {
    _R.ACTIVE: frozenset({_R.PAUSED, _R.BLOCKED, _R.STOPPING, _R.DONE, _R.FAILED, _R.STOPPED}),
    _R.PAUSED: frozenset({_R.ACTIVE, _R.STOPPING, _R.STOPPED, _R.DONE}),
    _R.BLOCKED: frozenset({_R.ACTIVE, _R.STOPPING, _R.STOPPED, _R.DONE}),
    _R.STOPPING: frozenset({_R.STOPPED, _R.DONE, _R.FAILED}),
    _R.DONE: frozenset(),
    _R.FAILED: frozenset({_R.ACTIVE}),
    _R.STOPPED: frozenset({_R.ACTIVE}),
}

_L = LaunchState
LAUNCH_MOVES: Final[Mapping[LaunchState, frozenset[LaunchState]]] = {
    _L.INTENDED: frozenset({_L.ANSWERED}),
    _L.ANSWERED: frozenset({_L.CLOSED}),
    _L.CLOSED: frozenset(),
}

_A = ArenaState
ARENA_MOVES: Final[Mapping[ArenaState, frozenset[ArenaState]]] = {
    _A.FREE: frozenset({_A.FILLING}),
    _A.FILLING: frozenset({_A.COMPLETE, _A.FREE}),
    _A.COMPLETE: frozenset({_A.UPLOADING, _A.FREE}),
    _A.UPLOADING: frozenset({_A.FREE}),
}


def may_move(status: RunStatus, to: RunStatus) -> bool:
    """Whether a run may go from `status` to `to`."""
    return to in RUN_MOVES[status]

"""What the agent knows: one mutable value that only its loop touches."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from spotproof.agent.heartbeat import Condition, Heart, Place, changed
from spotproof.agent.notices import Notices
from spotproof.agent.server import Peer, Server
from spotproof.agent.threads import Repeating
from spotproof.agent.uploads import Uploads
from spotproof.checkpoint.fetch import Fetched
from spotproof.contract.items import Generation
from spotproof.contract.protocol import Frame, Role
from spotproof.contract.runspec import RunSpec
from spotproof.contract.states import FlushOutcome, NodePhase, SaveKind
from spotproof.contract.times import Moment


@dataclass(slots=True, kw_only=True)
class Saves:
    """Checkpoints of this node: asked, committed, lost. Steps are -1 where there is none."""

    committed_generation: int = -1
    committed_step: int = -1
    staged_step: int = -1
    asked_step: int = -1
    asked_kind: SaveKind | None = None
    lost_step: int = -1
    lost_reason: str = ""
    flush_asked_step: int = -1
    parted: tuple[int, int] = (-1, -1)  # the newest checkpoint whose part of this node is in, others' were not yet

    @property
    def waits_for_others(self) -> bool:
        """Whether a checkpoint is whole as soon as other nodes' parts are there."""
        return self.parted > (self.committed_generation, self.committed_step)

    @property
    def is_last_lost(self) -> bool:
        """Whether the newest save that was asked did not become durable."""
        return self.asked_step > self.committed_step and self.lost_step >= self.asked_step


@dataclass(slots=True, kw_only=True)
class Training:
    """What the trainer told."""

    step: int = -1
    loss: float | None = None
    step_s: float | None = None
    step_at: float = 0.0  # when it was told that `step` had ended; at most once a second
    finished_step: int = -1
    failures: int = 0  # ends with an error since the last progress
    failed_at_commit: tuple[int, int] = (-1, -1)
    died_in: int = 0  # of many nodes: the newest generation in which a worker here ended before it was over
    is_hopeless: bool = False  # of many nodes: it fails again and again


@dataclass(slots=True, kw_only=True)
class Situation:
    """Everything together. `place` is None until this node has one, `generation` 0 until it has joined."""

    runtime_dir: Path
    now: Callable[[], float]
    log: Callable[[str], None]
    server: Server
    is_local: bool
    place: Place | None = None
    spec: RunSpec | None = None
    generation: int = 0
    joined_in: int = 0  # the first generation with this node, where that is sure; 0: unknown
    fetched: Fetched | None = None
    is_ready: bool = False  # one of many nodes: its launcher may go into the rendezvous
    sealed: Generation | None = None  # one of many nodes: the membership of `generation`
    is_over: bool = False  # ... which has ended: its members form the next one
    looked_at: float = 0.0  # ... when the newest look at the table began
    looking: Repeating | None = None
    heart: Heart | None = None
    beating: Repeating | None = None
    uploads: Uploads | None = None
    notices: Notices = field(default_factory=Notices)
    saves: Saves = field(default_factory=Saves)
    training: Training = field(default_factory=Training)
    others_leave_until: float = 0.0  # of many nodes: the deadline of the newest order that names others
    outcome: FlushOutcome | None = None
    outcome_step: int = -1
    superseded: str = ""
    is_paused: bool = False
    refusal: Exception | None = None  # why this node has no place

    @property
    def has_joined(self) -> bool:
        """Whether the membership with this node in it is sealed."""
        return self.generation > 0

    @property
    def is_together(self) -> bool:
        """Whether this is one of many nodes, whose launchers' rendezvous seals."""
        return self.spec is not None and self.spec.slots > 1

    @property
    def may_start(self) -> bool:
        """Whether the training command may start."""
        return self.is_ready or self.has_joined

    @property
    def is_leaving(self) -> bool:
        """Whether this node has been told to go."""
        return self.notices.leaving is not None

    @property
    def is_saving(self) -> bool:
        """Whether an upload is under way or asked for, or other nodes' parts of a checkpoint are."""
        return (self.uploads is not None and bool(self.uploads.pending)) or self.saves.waits_for_others

    def peers(self, role: Role) -> list[Peer]:
        """Connected processes of one role."""
        return [peer for peer in self.server.peers if peer.hello is not None and peer.hello.role is role]

    def tell_all(self, role: Role, frame: Frame) -> None:
        """Send a frame to every process of a role."""
        for peer in self.peers(role):
            self.server.send(peer, frame)

    def say(self, **changes: Any) -> None:  # Any: the fields of a Condition
        """Change what the heartbeat tells; at once where others wait for it."""
        if self.heart is None:
            return
        is_urgent = self.heart.say(changed(self.heart.condition, **changes))
        if is_urgent and self.beating is not None:
            self.beating.nudge()

    def look_now(self) -> None:
        """Look at the table now instead of at the end of the period."""
        if self.looking is not None:
            self.looking.nudge()

    def passed(self, moment: Moment) -> None:
        """Note when a moment of this node's start was; only the first time counts."""
        if self.heart is not None:
            self.say(times=self.heart.condition.times.passed(moment, int(self.now() * 1000)))

    def enter(self, phase: NodePhase) -> None:
        """Go to a phase; a final one stays."""
        condition = self.heart.condition if self.heart is not None else Condition()
        if not (condition.phase.is_final or condition.phase is NodePhase.SUPERSEDED):
            self.say(phase=phase)

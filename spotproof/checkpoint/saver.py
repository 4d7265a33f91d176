"""When the training loop saves, and what it hands to the agent. Called at boundaries only.

Order of calls at a boundary: `listen`, `due`, `save`; at the end of training `finish`.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from spotproof.checkpoint.arena import check_memory, memory_limits
from spotproof.checkpoint.dcp import ImagePlan, Peers
from spotproof.checkpoint.overlap import Copy
from spotproof.checkpoint.session import Session
from spotproof.checkpoint.sharded import gathered
from spotproof.checkpoint.snapshot import Snapshotter, estimate_bytes
from spotproof.contract.arena import HEADER_BYTES
from spotproof.contract.protocol import Notice, Saved, SaveFailed
from spotproof.contract.states import SaveKind, WhenBusy
from spotproof.errors import CheckpointError, NoAgent

LISTEN_S: Final = 0.2
AGENT_BACK_S: Final = 15.0  # a host starts a service again within seconds
AFTER_DEADLINE_S: Final = 30.0  # the agent tells the outcome at the deadline; after this it is not there any more
ALREADY_HANDED_OVER: Final = -1  # as an arena: this step's image is with the agent
_LOG: Final = logging.getLogger("spotproof")


@dataclass(frozen=True, slots=True, kw_only=True)
class Receipt:
    """What a save says of the data besides the state."""

    samples: int = 0
    sample_chain: str = ""


@dataclass(slots=True)
class _Copying:
    """A save whose copy goes on behind the training loop. `told` has it too once the agent has heard of it."""

    copy: Copy
    saved: Saved
    told: list[Saved]


@dataclass(slots=True)
class Saver:
    """Saves of one trainer process. `saved_step` is the newest step that the agent has got (-1: none)."""

    session: Session
    objects: Mapping[str, object]
    saved_step: int = -1
    is_manual_due: bool = False
    _is_overdue: bool = False  # a save by steps found no arena, or was no snapshot: the next boundary is as good
    _copying: _Copying | None = None
    _saved_at: float = field(default_factory=time.monotonic)
    _peers: Peers = field(default_factory=lambda: Peers(gather=gathered))  # outlives an agent that one rank lost
    _snapshotter: Snapshotter = field(init=False)

    def __post_init__(self) -> None:
        """Make the snapshotter; it asks for arenas at the first save."""
        self._snapshotter = self._made()

    def check(self, counters: Mapping[str, object]) -> None:
        """Refuse before the first step what could not be saved after it.

        Raises UnstorableState, with the path of the value; ArenaRefused if the arenas will not fit this process's
        memory: the kernel's answer, an interval later, would be SIGKILL.
        """
        self._snapshotter.check(counters)
        count = self.session.welcome.arenas
        image_bytes = estimate_bytes(self.objects).image_bytes
        check_memory(count * (image_bytes + HEADER_BYTES), arenas=count, limits=memory_limits())

    def restored(self, step: int) -> None:
        """The state of `step` has been loaded. It needs no save, unless it came from a copy that is not durable."""
        self.saved_step = step if self.session.committed[1] >= step else -1

    def listen(self) -> None:
        """Hear the agent; find it again if it has gone; learn of saves that failed."""
        self.settle()
        session = self.session
        session.listen()
        if session.is_lost and session.reconnect():
            _LOG.warning("the agent is back")
            self._snapshotter.close()
            self._snapshotter = self._made()
            if session.committed[1] < self.saved_step:
                self.saved_step = -1  # its memory died with the agent that had it
        self.note_failed()

    def note_failed(self) -> None:
        """Learn of saves that were given up: the same step can be saved again."""
        session = self.session
        for failed in session.failed:
            _LOG.error("the save of step %d failed: %s; it is tried again", failed.step, failed.reason)
            self._saved_at = float("-inf")  # due at once, whatever the interval
            if failed.step == self.saved_step:
                self.saved_step = -1
        session.failed.clear()

    def due(self, step: int) -> SaveKind | None:
        """Why `step` should be saved now; None: it should not."""
        session, welcome = self.session, self.session.welcome
        if session.is_lost or step == 0:
            return None
        if session.notice is not None:
            return SaveKind.FLUSH if session.notice.save and session.flush is None else None
        if session.extra is not None:
            return SaveKind.EXTRA
        if self.is_manual_due:
            return SaveKind.MANUAL
        is_by_steps = self._is_overdue or (welcome.every_steps > 0 and step % welcome.every_steps == 0)
        is_by_time = time.monotonic() - self._saved_at >= welcome.every_s
        return SaveKind.PERIODIC if (is_by_steps or is_by_time) and step != self.saved_step else None

    def save(self, kind: SaveKind, *, step: int, counters: Mapping[str, object], receipt: Receipt) -> None:
        """Copy the state and hand it over. A flush or a final save waits for an arena; others come again later.

        A save that nobody waits for is copied while training goes on (`gate`, `settle`). Raises UnstorableState or
        ArenaRefused, each with what to do.
        """
        self.settle()
        if kind not in (SaveKind.FLUSH, SaveKind.FINAL) and step != self.saved_step:
            self._begin(kind, step=step, counters=counters, receipt=receipt)
            return
        arena: int | None = ALREADY_HANDED_OVER
        if step != self.saved_step:
            arena = self._snapshot(step, counters)
            while arena is None and not self._is_too_late():
                self.session.listen(timeout_s=LISTEN_S)
                arena = self._snapshot(step, counters)
        self._is_overdue = arena is None
        if arena is None or self.session.is_lost:
            return
        saved = self._saved(kind, step, receipt, arena=arena)
        self.session.tell(saved)
        self._is_handed_over(saved)

    def gate(self) -> None:
        """An optimizer is about to step: return when the state may change."""
        if self._copying is not None:
            self._copying.copy.gate()

    def settle(self) -> None:
        """Bring the save that is being copied to its end: handed over, or due again because it is no snapshot."""
        copying, self._copying = self._copying, None
        if copying is None:
            return
        if not self._snapshotter.finish(copying.copy):
            _LOG.warning(
                "%s changed between two optimizer steps: the save of step %d is dropped and taken again; call "
                "run.before_step() before writing to parameters yourself",
                copying.copy.changed,
                copying.saved.step,
            )
            self._is_overdue = True
            return
        if not copying.told:
            self.session.tell(copying.saved)  # notes that the agent has gone
        if not self.session.is_lost:
            self._is_handed_over(copying.saved)

    def finish(self, step: int, hand_over: Callable[[], None]) -> None:
        """Wait until `step` is durable. `hand_over` saves it again for an agent that has been started anew meanwhile.

        Raises CheckpointError if it did not become so: the run must not look done.
        """
        session, until = self.session, time.monotonic() + AGENT_BACK_S
        while step > 0 and session.committed[1] < step and self._lost(step) is None:
            if not session.is_lost:
                session.listen(timeout_s=LISTEN_S)
                continue
            if time.monotonic() >= until:
                break
            time.sleep(LISTEN_S)
            if self._finds_agent():
                hand_over()
        if step > 0 and session.committed[1] < step:
            lost = self._lost(step)
            why = "the agent has ended" if lost is None else lost.reason
            raise CheckpointError(
                f"training has ended, but its step {step} is not durable: {why}",
                next_step="start it again: it goes on from the last commit",
            )

    def is_by_steps(self, step: int) -> bool:
        """Whether every rank saves `step` without a word, because its number says so."""
        every = self.session.welcome.every_steps
        return every > 0 and step % every == 0

    def park(self, step: int, hand_over: Callable[[], None]) -> None:
        """One of many ranks, after the step that all have stopped at: stay until the launcher ends this process.

        What it has saved is kept true meanwhile: handed over again to an agent that has been started anew, or for a
        notice that comes only now. Returns when the launcher has died: nobody else would end this process.
        """
        parent, told = os.getppid(), self.session.notice
        while os.getppid() == parent:
            self.listen()
            is_new_notice = self.session.notice is not None and self.session.notice is not told
            if not self.session.is_lost and (self.saved_step != step or is_new_notice):
                told = self.session.notice
                hand_over()
            self.session.listen(timeout_s=LISTEN_S)
            if self.session.is_lost:
                time.sleep(LISTEN_S)

    def await_outcome(self, notice: Notice, hand_over: Callable[[], None]) -> None:
        """The only rank, after the step that it leaves at: wait until the flush's outcome is final.

        `hand_over` saves again when the agent asks for it: the flush was given up, and another try fits.
        """
        session, told = self.session, notice
        until = notice.deadline_at + AFTER_DEADLINE_S
        while session.flush is None and not session.is_lost and time.time() < until:
            session.listen(timeout_s=LISTEN_S)
            self.note_failed()
            if session.notice is not None and session.notice is not told:
                told = session.notice
                if told.save:
                    hand_over()

    def close(self) -> None:
        """Let go of the arenas; what was handed over is uploaded all the same."""
        self.settle()
        self._snapshotter.close()

    def _begin(self, kind: SaveKind, *, step: int, counters: Mapping[str, object], receipt: Receipt) -> None:
        """Start the copy. Where no arena is free the save waits for one, and says so."""
        told: list[Saved] = []

        def hand_over(arena: int) -> None:  # in the copier's thread: the upload begins within the step
            saved = self._saved(kind, step, receipt, arena=arena)
            if self.session.hand_over(saved):
                told.append(saved)

        generation = self.session.welcome.generation
        try:
            copy = self._snapshotter.begin(step=step, generation=generation, counters=counters, then=hand_over)
        except NoAgent:
            return
        if copy is None:
            self._finds_no_arena(kind, step)
            return
        self._is_overdue = False
        self._copying = _Copying(copy=copy, saved=self._saved(kind, step, receipt, arena=copy.arena), told=told)

    def _finds_no_arena(self, kind: SaveKind, step: int) -> None:
        """The save waits for an arena or is skipped, as the run's spec has it. What somebody asked for always waits."""
        if kind is SaveKind.PERIODIC and self.session.welcome.when_busy is WhenBusy.SKIP:
            _LOG.warning("step %d: every arena is still being uploaded; the save is skipped, the next one is due", step)
            self._is_overdue, self._saved_at = False, time.monotonic()
            return
        if not self._is_overdue:
            _LOG.info("step %d: every arena is still being uploaded; the save waits for one", step)
        self._is_overdue = True

    def _is_handed_over(self, saved: Saved) -> None:
        self.saved_step, self._saved_at = saved.step, time.monotonic()
        self.is_manual_due = False
        self.session.extra = None

    def _lost(self, step: int) -> SaveFailed | None:
        """That the save of `step` is given up; an earlier one that is does not matter any more."""
        return next((failed for failed in self.session.failed if failed.step >= step), None)

    def _finds_agent(self) -> bool:
        self.listen()
        return not self.session.is_lost

    def _made(self) -> Snapshotter:
        return Snapshotter(self.objects, provide=self._provide, rank=self.session.ranks.rank, peers=self._peers)

    def _provide(self, plan: ImagePlan) -> Sequence[int]:
        return self.session.arenas(plan.layout, plan.metadata)

    def _snapshot(self, step: int, counters: Mapping[str, object]) -> int | None:
        """Copy the state; None if no arena is free, or the agent has gone."""
        try:
            return self._snapshotter.save(step=step, generation=self.session.welcome.generation, counters=counters)
        except NoAgent:
            return None

    def _is_too_late(self) -> bool:
        notice = self.session.notice
        return self.session.is_lost or (notice is not None and time.time() >= notice.deadline_at)

    def _saved(self, kind: SaveKind, step: int, receipt: Receipt, *, arena: int) -> Saved:
        return Saved(
            arena=arena,
            step=step,
            kind=kind,
            samples=receipt.samples,
            sample_chain=receipt.sample_chain,
            rank=self.session.ranks.rank,
        )

"""`Run`: what a training script holds. The same code on a laptop and on a Spot node.

    with Run.from_env() as run:
        run.track(model=model, optimizer=optimizer, scheduler=scheduler, loader=loader)
        for batch in run.batches(loader):
            loss = step(batch)
            run.report(loss=loss)

Calls, in order: `track`; then `batches` (or, with a loop of one's own, `restore` once and `boundary` after each
optimizer step); at the end of the `with` the last step is saved and waited for. Nothing here draws from a random
generator, so a tracked and an untracked training are bit-equal.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterable, Iterator, Mapping
from types import TracebackType
from typing import Any, Final, Self, cast

import torch
from torch.utils.data import DataLoader

from spotproof.checkpoint import foreign
from spotproof.checkpoint.restore import counters_of, mark_as_stepped, restore
from spotproof.checkpoint.saver import Receipt, Saver
from spotproof.checkpoint.session import Image, Session
from spotproof.checkpoint.state import Stateful
from spotproof.contract.exits import ExitCode
from spotproof.contract.protocol import Finished, Notice, Progress
from spotproof.contract.settings import START_FROM_VARIABLE
from spotproof.contract.states import FlushOutcome, SaveKind
from spotproof.data.dataset import Feed, position_of
from spotproof.data.worldwide import reseed
from spotproof.errors import (
    ArenaRefused,
    BadSettings,
    CheckpointError,
    MismatchedState,
    NoLoadableCheckpoint,
    UnstorableState,
)
from spotproof.rendezvous.consensus import StopConsensus, Wish

__all__ = ["Preempted", "Run"]

PROGRESS_EVERY_S: Final = 1.0
_LOG: Final = logging.getLogger("spotproof")
_PERSON_HAS_TO_ACT: Final = (ArenaRefused, UnstorableState, MismatchedState, NoLoadableCheckpoint, BadSettings)


class Preempted(SystemExit):
    """This node has to go: its last step is saved (code 75) or not (76). A SystemExit, so that a script just ends."""


class Run:
    """A training that survives. A context manager; make it with `from_env`."""

    def __init__(self, session: Session, *, start_from: str = "") -> None:
        self._session = session
        self._objects: dict[str, object] = {}
        self._hooks: list[Any] = []
        self._saver = Saver(session, self._objects)
        self._consensus: StopConsensus | None = None  # of several ranks
        self._feed: Feed | None = None
        self._image: Image | None = None
        self._start_from = start_from
        self._is_prepared = False
        self._position: Mapping[str, Any] | None = None  # of the restored checkpoint, until a loader takes it
        self._step = 0
        self._next_epoch = 0
        self._loss: float | torch.Tensor | None = None
        self._is_accumulating = False
        self._has_begun = self._has_stepped = False
        self.loss_weight = 1.0  # of the mean loss of what `batches` has just yielded, in the sum for the step
        self._is_inside = False  # of a step: the script has a batch
        self._left_inside = False
        self._is_torn = False
        self._told_at = 0.0
        self._step_began_at = time.monotonic()
        self._step_s = 0.0

    @classmethod
    def from_env(cls, environ: Mapping[str, str] | None = None, *, start_from: str | os.PathLike[str] = "") -> Self:
        """Join the run that the environment names; off AWS a folder (`.spotproof`, or SPOTPROOF_LOCAL_DIR).

        `start_from` (or the run spec's): a checkpoint of others that the run begins with, a path or `s3://BUCKET/PREFIX`.
        Returns when this node has its place. Raises BadSettings or NoAgent, each with what to do.
        """
        known = dict(os.environ if environ is None else environ)
        return cls(Session.open(known), start_from=os.fspath(start_from) or known.get(START_FROM_VARIABLE, ""))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        is_over = False
        try:
            if error is None or (isinstance(error, SystemExit) and not error.code):
                self._finish()  # a script that exits with 0 is done, wherever it does so
                is_over = True
        except _PERSON_HAS_TO_ACT as refusal:
            error = refusal
        finally:
            for hook in self._hooks:
                hook.remove()
            self._saver.close()
            self._session.close(is_over=is_over)
        if isinstance(error, _PERSON_HAS_TO_ACT):
            _LOG.error("%s", error)
            raise SystemExit(int(ExitCode.BAD_CONFIGURATION)) from error

    # ---------------------------------------------------------------------------------------------- what is tracked
    def track(self, **objects: object) -> None:
        """Remember these under their names: modules, optimizers, schedulers, anything with state_dict; and the loader.

        Names and objects must be the same after a restart.
        """
        for name, thing in objects.items():
            if isinstance(thing, DataLoader) or (isinstance(thing, Iterable) and not isinstance(thing, Stateful)):
                continue  # its position is kept by `batches`, which gets the loader itself
            self._objects[name] = thing
            if isinstance(thing, torch.optim.Optimizer):
                self._hooks.append(thing.register_step_pre_hook(lambda *_: self.before_step()))
                self._hooks.append(thing.register_step_post_hook(lambda *_: self._note_step()))

    # ---------------------------------------------------------------------------------------------------- the loop
    def batches(
        self, loader: Iterable[Any], *, accumulate: int = 1, epochs: int | None = None, steps: int | None = None
    ) -> Iterator[Any]:
        """The batches of one more epoch, or of `epochs` more; with `steps` of as many as it takes to reach that step.

        Goes on exactly behind the last saved step; a call for an epoch that is over already yields nothing, so
        `for epoch in range(n): for batch in run.batches(loader)` is right too. With `accumulate` the optimizer steps
        where `run.accumulating` is False; an unfinished accumulation is repeated whole. Saves between the steps.

        Raises Preempted when this node has to go, MismatchedState if the checkpoint does not fit.
        """
        self._prepare()
        feed = self._feed_of(loader, accumulate)
        asked, wanted = 0, 1 if epochs is None and steps is None else epochs
        while wanted is None or asked < wanted:
            number, asked = self._next_epoch, asked + 1
            self._next_epoch += 1
            is_over = self._is_epoch_over(feed, number)
            if steps is not None and self._step >= steps and self._image is None:
                return
            if not is_over:
                yield from self._epoch(feed, steps)

    def restore(self) -> int:
        """Load the newest checkpoint now, if there is one; returns the step that training goes on from (0: none)."""
        self._prepare()
        self._apply()
        return self._step

    def boundary(self) -> None:
        """One optimizer step is done. Saves if one is due, and leaves if this node has to go (raises Preempted)."""
        self._prepare(has_begun=True)
        if self._image is not None:
            step = self._image.restored.step
            raise CheckpointError(f"training has begun without step {step}", next_step=foreign.RESTORE_FIRST)
        now = time.monotonic()
        self._step += 1
        self._step_s, self._step_began_at = now - self._step_began_at, now
        self._has_stepped = self._left_inside = self._is_torn = False
        self._settle()
        self._step_began_at = time.monotonic()

    def poll(self) -> bool:
        """For evaluation loops: hear the agent. True: break off, a notice stands and the next boundary acts on it."""
        self._session.listen()
        return self._session.notice is not None

    def before_step(self) -> None:
        """Return when parameters and optimizer state may change: a save may still be copying them.

        Tracked optimizers call it by themselves, before they step. Call it where something else writes to parameters
        between two boundaries.
        """
        self._saver.gate()

    def save(self) -> None:
        """Save at the next boundary, or when the next epoch begins."""
        self._saver.is_manual_due = True

    def report(self, *, loss: float | torch.Tensor) -> None:
        """Tell the loss of this step; it is shown beside the step. A tensor is read at most once a second."""
        self._loss = loss.detach() if isinstance(loss, torch.Tensor) else loss

    @property
    def step(self) -> int:
        """Optimizer steps that are done, over all interruptions."""
        return self._step

    @property
    def accumulating(self) -> bool:
        """Whether more micro-batches follow before the optimizer steps."""
        return self._is_accumulating

    @property
    def notice(self) -> Notice | None:
        """The notice that makes this node leave, if there is one."""
        return self._session.notice

    @property
    def latest(self) -> int | None:
        """The newest step that is durable, or None."""
        step = self._session.committed[1]
        return None if step < 0 else step

    # -------------------------------------------------------------------------------------------------- restoring
    def _prepare(self, *, has_begun: bool = False) -> None:
        """Refuse state that cannot be stored, and get the image, once, before the first step."""
        if self._is_prepared:
            return
        if self._session.ranks.world > 1 and self._consensus is None:
            self._consensus = StopConsensus()  # before anything that a rank may fail in alone
        self._saver.check(self._counters())
        self._image = self._session.image()
        if self._consensus is not None:
            self._consensus.check_same(0 if self._image is None else self._image.restored.step)
        self._is_prepared = True
        if self._image is not None:
            for reason in self._image.restored.skipped:
                _LOG.warning("checkpoint passed over: %s", reason)
            self._step = self._image.restored.step
            counters = counters_of(self._image.memory, self._image.layout)
            self._position = cast("Mapping[str, Any] | None", counters.get("position"))
            mark_as_stepped(self._objects)
        else:
            foreign.begin(self._start_from, self._objects, has_begun=has_begun)

    def _apply(self) -> None:
        image = self._image
        if image is None:
            return
        restore(self._objects, image.memory, image.layout, step=image.restored.step, parts=self._session.parts(image))
        reseed(image.restored.world, self._session.ranks.rank, self._session.ranks.world, step=self._step)
        self._image = None
        self._saver.restored(self._step)
        if self._feed is not None and self._position is not None:
            self._feed.load(self._position)
            self._position = None
        _LOG.info("restored step %d", self._step)

    def _feed_of(self, loader: Iterable[Any], accumulate: int) -> Feed:
        if self._feed is None:
            self._feed = Feed(loader=loader, accumulate=accumulate)
            if self._image is None and self._position is not None:
                self._feed.load(self._position)
                self._position = None
        elif self._feed.loader is not loader:
            raise BadSettings("run.batches() got a second loader", next_step="iterate over other loaders directly")
        return self._feed

    def _is_epoch_over(self, feed: Feed, number: int) -> bool:
        """Whether epoch `number` of the script is over. Restores when its turn has come, and not earlier: what a
        script does after an epoch that is over is done to fresh objects, and then overwritten."""
        if self._image is None or self._position is None:
            self._apply()
            return number < feed.position.epoch
        position = position_of(self._position)
        is_at_end = position.in_epoch == 0 and not self._position.get("has_begun")
        if number >= position.epoch or (number == position.epoch - 1 and is_at_end):
            self._apply()
        return number < position.epoch

    def _epoch(self, feed: Feed, steps: int | None) -> Iterator[Any]:
        self._break_off(feed)  # if an iterator from before is still held
        self._has_begun, is_ended = True, False
        if self._step > 0:
            self._settle()
        for piece in feed.pieces():
            self._is_accumulating, self.loss_weight = not piece.ends_group, piece.weight
            self._is_inside = True
            try:
                yield piece.batch
            except GeneratorExit:
                self._break_off(feed)
                raise
            self._is_inside = False
            if not piece.ends_group:
                continue
            feed.advance()
            is_ended = feed.is_epoch_over
            if is_ended:
                self._end_epoch(feed)
            self.boundary()
            if steps is not None and self._step >= steps:
                return
        if not is_ended:
            self._end_epoch(feed)

    def _end_epoch(self, feed: Feed) -> None:
        feed.end_epoch()
        self._has_begun = False

    def _break_off(self, feed: Feed) -> None:
        """The script left the loop in the middle. If its optimizer has stepped, the step counts; if not, the state is
        still that of the step before. Where no optimizer is tracked nobody can tell, and the state may be torn."""
        if not self._is_inside:
            return
        self._is_inside = False
        if self._has_stepped:
            feed.advance()
            self._step += 1
            self._has_stepped = False
        else:
            self._left_inside, self._is_torn = True, not self._hooks

    def _note_step(self) -> None:
        self._has_stepped = True

    # ------------------------------------------------------------------------------------------------ at a boundary
    def _settle(self) -> None:
        """At a boundary: hear, tell, save what is due, leave if this node has to go."""
        self._saver.listen()
        self._tell_progress()
        kind = self._saver.due(self._step)
        if self._consensus is not None:
            self._settle_together(self._consensus, kind)
            return
        if kind is not None:
            self._save(kind)
        if self._session.notice is not None:
            if kind is not SaveKind.FLUSH and self._saver.due(self._step) is SaveKind.FLUSH:
                self._save(SaveKind.FLUSH)  # the notice came while that save asked for its arenas
            self._leave(self._session.notice)

    def _settle_together(self, consensus: StopConsensus, own: SaveKind | None) -> None:
        """Several ranks save the same steps and stop at the same one, whoever has heard what."""
        is_by_steps = self._saver.is_by_steps(self._step)
        wants_save = own is not None and not (is_by_steps and own is SaveKind.PERIODIC)
        wish = Wish.STOP if self._session.notice is not None else Wish.SAVE if wants_save else Wish.NOTHING
        agreed = consensus.agree(wish)
        if agreed is Wish.STOP:
            self._save(SaveKind.FLUSH)
            self._saver.park(self._step, lambda: self._save(SaveKind.FLUSH))
            raise Preempted(int(ExitCode.PREEMPTED_LOST))
        if agreed is Wish.SAVE or is_by_steps:
            self._save(own or SaveKind.PERIODIC)

    def _save(self, kind: SaveKind) -> None:
        position = None if self._feed is None else self._feed.position
        receipt = Receipt() if position is None else Receipt(samples=position.samples, sample_chain=position.chain)
        self._saver.save(kind, step=self._step, counters=self._counters(), receipt=receipt)

    def _counters(self) -> dict[str, object]:
        """`has_begun`: what the script does after an epoch has been done, the next one has begun."""
        position = None if self._feed is None else {**self._feed.state(), "has_begun": self._has_begun}
        return {"position": position}

    def _tell_progress(self) -> None:
        now = time.monotonic()
        if now - self._told_at < PROGRESS_EVERY_S:
            return
        self._told_at = now
        loss = None if self._loss is None else float(self._loss)
        samples = 0 if self._feed is None else self._feed.position.samples
        self._session.tell(Progress(step=self._step, loss=loss, samples=samples, step_seconds=self._step_s))

    # ------------------------------------------------------------------------------------------------------- ends
    def _leave(self, notice: Notice) -> None:
        """Park until the flush outcome is final, then end this process."""
        session = self._session
        self._saver.await_outcome(notice, lambda: self._save(SaveKind.FLUSH))
        is_flushed = session.flush is not None and session.flush.outcome is FlushOutcome.COMMITTED
        raise Preempted(int(ExitCode.PREEMPTED_FLUSHED if is_flushed else ExitCode.PREEMPTED_LOST))

    def _finish(self) -> None:
        """The loop ended by itself: its last step is saved and durable when this returns."""
        if self._feed is not None:
            self._break_off(self._feed)  # whoever holds the iterator has not closed it
        elif self._has_stepped:  # a loop of one's own that ended before its boundary
            self._step += 1
        if self._left_inside:
            _LOG.warning("the loop ended inside step %d, which is not saved", self._step + 1)
        if self._consensus is not None:
            self._consensus.end()
        if self._is_torn:
            self._saver.finish(self._saver.saved_step, lambda: None)
        elif self._step > 0 and self._image is None:
            self._saver.listen()
            self._save(SaveKind.FINAL)
            self._saver.finish(self._step, lambda: self._save(SaveKind.FINAL))
        self._session.tell(Finished(step=self._step))

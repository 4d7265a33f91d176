"""The last seconds: from a notice to a flush outcome that others can rely on.

    notice -> decide -> the trainer saves (or not) -> its upload ends -> outcome is written and told -> park

Where a long notice leaves time for it, training goes on after the first flush until the successor is ready, and the
last flush still fits. A flush that was given up is asked again while another try fits.

The node is never ended by us: EC2 does that, and an instance that it interrupts in its first hour is free. The outcome
is written once. A deadline that passes with the flush under way makes it FAILED; the successor has waited longer.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from spotproof.agent.decide import Choice, Decision, Moment, decide
from spotproof.agent.notices import Heard, News, Source
from spotproof.agent.server import Peer
from spotproof.agent.situation import Situation
from spotproof.contract.protocol import FlushDone, Notice, Role
from spotproof.contract.states import FlushOutcome, InterruptionAction, NodePhase

NOTICE_FILE: Final = "notice"
TRIES_MAX: Final = 3
TRY_AGAIN_S: Final = 2.0
WHY_CHARACTERS: Final = 100
PROGRESS_EVERY_S: Final = 1.0  # shorter steps are told together, so that the age of one says nothing


@dataclass(slots=True, kw_only=True)
class Leaving:
    """Acts on notices. `interruptions` counts this node's own end: once, however often it is heard."""

    situation: Situation
    depart: Callable[[], None] = field(default=lambda: None)  # of many nodes: takes this one out for good
    interruptions: int = 0
    decision: Decision | None = None
    is_awaited: bool = False  # the successor is ready: it goes on faster than this node can
    tries: int = 1
    _tried_at: float = 0.0

    def hear(self, heard: Heard) -> None:
        """Take in a notice; what is known already changes nothing."""
        now = self.situation
        if heard.leave and not now.has_joined and heard.source.is_about_the_slot:
            now.notices.forget_before_joining(heard.key)  # it means the node whose place this one takes
            return
        news = now.notices.hear(heard, now=now.now())
        if news is None:
            return
        if news.is_extra:
            now.others_leave_until = news.deadline_at
            now.log(f"{heard.kind} ({heard.source}): an extra checkpoint")
            now.tell_all(Role.TRAINER, _notice(news, leave=False, save=True))
        elif news.is_new_leaving:
            self.interruptions += 1
            self._begin(news)
        elif news.is_earlier and now.outcome is FlushOutcome.PENDING:
            self._tell(news, self._decide())

    def stand_down(self) -> None:
        """The run wants no nodes: one of many that has not joined must not take the place of one that leaves."""
        if self.situation.is_together:
            self.depart()

    def check(self) -> None:
        """Look whether the outcome is known now. Called after every event and at every tick."""
        now = self.situation
        if now.outcome is not FlushOutcome.PENDING:
            return
        if self._trains_on():
            return
        saves = now.saves
        flushed = saves.flush_asked_step
        if flushed >= 0 and saves.committed_step >= flushed:
            self._end(FlushOutcome.COMMITTED, flushed)
        elif not now.is_saving and self._is_nothing_to_come(flushed):
            is_lost = flushed >= 0 and saves.lost_step >= flushed
            if not (is_lost and self._tries_again()):
                self._end(FlushOutcome.FAILED if is_lost else FlushOutcome.KEPT_LAST, saves.committed_step)
        elif now.now() >= now.notices.deadline_at:
            self._end(FlushOutcome.FAILED, saves.committed_step)

    def greet(self, peer: Peer) -> None:
        """A trainer that connects while this node leaves hears of it at once."""
        now = self.situation
        leaving = now.notices.leaving
        if leaving is None:
            return
        news = News(heard=leaving, deadline_at=now.notices.deadline_at)
        now.server.send(peer, _notice(news, leave=True, save=False))
        if now.outcome is not None and now.outcome.is_final:
            now.server.send(peer, FlushDone(outcome=now.outcome, step=now.outcome_step))

    def _trains_on(self) -> bool:
        """Whether the time for the last flush has not come; when it has, the trainer is told."""
        now, decision = self.situation, self.decision
        leaving = now.notices.leaving
        if decision is None or not decision.again_at or leaving is None or not now.peers(Role.TRAINER):
            return False
        if now.now() < decision.again_at and not self._is_relieved():
            return True
        last = self._decide(may_train_on=False)
        now.log(f"the last flush: {last.choice}: {last.reason}")
        self._tell(News(heard=leaving, deadline_at=now.notices.deadline_at), last)
        return False

    def _is_relieved(self) -> bool:
        """Whether the successor waits, and the first flush is durable: it is the last one's net."""
        now = self.situation
        return self.is_awaited and not now.is_saving and now.saves.committed_step >= now.saves.asked_step >= 0

    def _tries_again(self) -> bool:
        """Whether a flush that was given up is asked again: at once, then more slowly, while another try fits."""
        now = self.situation
        leaving = now.notices.leaving
        decision = decide(self._moment())
        if (
            self.tries >= TRIES_MAX
            or decision.choice is not Choice.FLUSH
            or leaving is None
            or not now.peers(Role.TRAINER)
        ):
            return False
        if now.now() >= self._tried_at + TRY_AGAIN_S:
            self.tries, self._tried_at, self.decision = self.tries + 1, now.now(), decision
            now.saves.flush_asked_step = -1
            now.log(f"the flush was given up ({now.saves.lost_reason}), try {self.tries}: {decision.reason}")
            self._tell(News(heard=leaving, deadline_at=now.notices.deadline_at), decision)
        return True

    def _is_nothing_to_come(self, flushed: int) -> bool:
        """Whether no save of the trainer is expected any more, now that no upload is under way."""
        if self.decision is None or self.decision.choice is not Choice.FLUSH:
            return True
        return flushed >= 0 or not self.situation.peers(Role.TRAINER)

    def _begin(self, news: News) -> None:
        now = self.situation
        now.outcome = FlushOutcome.PENDING
        now.saves.flush_asked_step = -1  # of many nodes: it saved for another one that left
        write_notice_file(now.runtime_dir / NOTICE_FILE, news)
        now.enter(NodePhase.FLUSHING)
        now.say(flush=FlushOutcome.PENDING)
        decision = self._decide()
        left_s = news.deadline_at - now.now()
        now.log(
            f"{news.heard.kind} notice ({news.heard.source}), {left_s:.0f} s left: {decision.choice}: {decision.reason}"
        )
        self._tell(news, decision)
        self.check()

    def _decide(self, *, may_train_on: bool = True) -> Decision:
        self.decision = decide(self._moment(may_train_on=may_train_on))
        self.situation.say(flush_why=f"{self.decision.choice}: {self.decision.reason}"[:WHY_CHARACTERS])
        return self.decision

    def _moment(self, *, may_train_on: bool = False) -> Moment:
        now, training, uploads = self.situation, self.situation.training, self.situation.uploads
        pending = uploads.pending if uploads is not None else ()
        is_long_known = training.step_at > 0 and (training.step_s or 0.0) > PROGRESS_EVERY_S
        return Moment(
            now=now.now(),
            deadline_at=now.notices.deadline_at,
            has_trainer=bool(now.peers(Role.TRAINER)),
            step=training.step,
            committed_step=now.saves.committed_step,
            uploading_step=pending[-1].step if pending else -1,
            uploading_bytes_left=uploads.bytes_left if uploads is not None else 0,
            image_bytes=uploads.image_bytes if uploads is not None else None,
            lacking_bytes=uploads.lacking_bytes if uploads is not None else None,
            step_s=training.step_s,
            step_age_s=now.now() - training.step_at if is_long_known else None,
            boundaries=2 if now.is_together else 1,  # the ranks agree on the step after the one that is under way
            rate_bytes_s=uploads.rate_bytes_s if uploads is not None else None,
            may_train_on=may_train_on and self._may_train_on(),
        )

    def _may_train_on(self) -> bool:
        """Only when EC2 itself has said when (a hibernation begins at once), and of one node: the others of a run begin
        anew as soon as this one is out, and a person who stops a run does not want it to go on."""
        now = self.situation
        leaving = now.notices.leaving
        if leaving is None or leaving.source is not Source.METADATA or now.is_together:
            return False
        return leaving.action in (InterruptionAction.TERMINATE, InterruptionAction.STOP)

    def _tell(self, news: News, decision: Decision) -> None:
        frame = _notice(news, leave=not decision.again_at, save=decision.choice is Choice.FLUSH)
        if self.situation.peers(Role.TRAINER):
            self.situation.tell_all(Role.TRAINER, frame)
        else:  # a command that holds no Run: its launcher passes the notice on as a signal
            self.situation.tell_all(Role.LAUNCHER, frame)

    def _end(self, outcome: FlushOutcome, step: int) -> None:
        now = self.situation
        now.outcome, now.outcome_step = outcome, step
        now.log(f"flush outcome: {outcome}, step {step}")
        now.say(flush=outcome, flush_step=None if step < 0 else step)
        now.enter(NodePhase.DRAINING)
        if now.is_together:
            self.depart()
        done = FlushDone(outcome=outcome, step=step)
        now.tell_all(Role.TRAINER, done)
        now.tell_all(Role.LAUNCHER, done)


def _notice(news: News, *, leave: bool, save: bool) -> Notice:
    heard = news.heard
    return Notice(order=heard.key, kind=heard.kind, deadline_at=news.deadline_at, leave=leave, save=save)


def write_notice_file(path: Path, news: News) -> None:
    """What commands that hold no Run can read: kind, deadline, action. Whole or not there."""
    heard = news.heard
    body = {
        "kind": heard.kind.value,
        "deadline_at": news.deadline_at,
        "action": None if heard.action is None else heard.action.value,
        "order": heard.key,
    }
    aside = path.with_name(f".{path.name}-{os.getpid()}")
    aside.write_text(json.dumps(body) + "\n")
    aside.replace(path)

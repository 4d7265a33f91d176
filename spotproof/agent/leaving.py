"""The last seconds: from a notice to a flush outcome that others can rely on.

    notice -> decide -> the trainer saves (or not) -> its upload ends -> outcome is written and told -> park

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
from spotproof.agent.notices import Heard, News
from spotproof.agent.server import Peer
from spotproof.agent.situation import Situation
from spotproof.contract.protocol import FlushDone, Notice, Role
from spotproof.contract.states import FlushOutcome, NodePhase

NOTICE_FILE: Final = "notice"


@dataclass(slots=True, kw_only=True)
class Leaving:
    """Acts on notices. `interruptions` counts this node's own end: once, however often it is heard."""

    situation: Situation
    depart: Callable[[], None] = field(default=lambda: None)  # of many nodes: takes this one out for good
    interruptions: int = 0
    decision: Decision | None = None

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
            self._tell(news, self.decision or self._decide())

    def stand_down(self) -> None:
        """The run wants no nodes: one of many that has not joined must not take the place of one that leaves."""
        if self.situation.is_together:
            self.depart()

    def check(self) -> None:
        """Look whether the outcome is known now. Called after every event and at every tick."""
        now = self.situation
        if now.outcome is not FlushOutcome.PENDING:
            return
        saves = now.saves
        flushed = saves.flush_asked_step
        if flushed >= 0 and saves.committed_step >= flushed:
            self._end(FlushOutcome.COMMITTED, flushed)
        elif not now.is_saving and self._is_nothing_to_come(flushed):
            is_lost = flushed >= 0 and saves.lost_step >= flushed
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

    def _decide(self) -> Decision:
        self.decision = decide(self._moment())
        return self.decision

    def _moment(self) -> Moment:
        now, training = self.situation, self.situation.training
        pending = now.uploads.pending if now.uploads is not None else ()
        image_bytes = now.uploads.image_bytes if now.uploads is not None else None
        return Moment(
            now=now.now(),
            deadline_at=now.notices.deadline_at,
            has_trainer=bool(now.peers(Role.TRAINER)),
            step=training.step,
            committed_step=now.saves.committed_step,
            uploading_step=pending[-1].step if pending else -1,
            uploading_bytes_left=len(pending) * (image_bytes or 0),
            image_bytes=image_bytes,
            step_s=training.step_s,
            rate_bytes_s=now.uploads.rate_bytes_s if now.uploads is not None else None,
        )

    def _tell(self, news: News, decision: Decision) -> None:
        frame = _notice(news, leave=True, save=decision.choice is Choice.FLUSH)
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

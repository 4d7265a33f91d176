"""What a trainer asks and tells, answered. Order of the frames: contract/protocol.py."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from spotproof.agent.server import Peer
from spotproof.agent.situation import Situation
from spotproof.checkpoint.arena import sealed_memory
from spotproof.checkpoint.channel import Received
from spotproof.checkpoint.fetch import Fetched
from spotproof.checkpoint.jobs import Done, GivenUp, Report, Staged, Upload
from spotproof.contract.protocol import (
    Arenas,
    ArenasRefused,
    Committed,
    Finished,
    Frame,
    Progress,
    Restored,
    RestoreFailed,
    Role,
    Saved,
    SaveFailed,
    WantArenas,
    WantRestore,
    Welcome,
)
from spotproof.contract.states import NodePhase, SaveKind
from spotproof.errors import ArenaRefused, ProtocolError

RIVAL_S: Final = 3.0  # for a process that has just died to be seen as gone


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchedAgain:
    """A restore that was read after the start: of a trainer that was started again. `error` where it failed."""

    fetched: Fetched | None = None
    error: Exception | None = None


@dataclass(slots=True, kw_only=True)
class Trainers:
    """The trainer processes of this node. `fetch` reads the newest checkpoint on a thread and posts FetchedAgain."""

    situation: Situation
    fetch: Callable[[], None]
    _waiting: list[Peer] = field(default_factory=list)  # want the image, it is not there yet
    _is_fetching: bool = False
    _has_used_start: bool = False
    _welcomed: set[Peer] = field(default_factory=set)
    _rivals: dict[Peer, float] = field(default_factory=dict)

    def welcome(self, peer: Peer) -> None:
        """Tell a trainer what the run is, once this node has joined; one that comes after a refusal is let go."""
        now, place, spec = self.situation, self.situation.place, self.situation.spec
        if now.refusal is not None:
            now.server.drop(peer)  # it would wait for a welcome for ever, and a local agent for it to go
            return
        if place is None or spec is None or not now.has_joined or self._is_rival(peer):
            return
        self._welcomed.add(peer)
        start = self._start()
        frame = Welcome(
            run=place.run,
            slot=place.slot,
            incarnation=place.incarnation,
            generation=now.generation,
            start_generation=start[0],
            start_step=start[1],
            every_s=spec.checkpoint.every_s,
            every_steps=spec.checkpoint.every_steps,
            arenas=spec.checkpoint.arenas,
        )
        now.server.send(peer, frame)

    def _is_rival(self, peer: Peer) -> bool:
        """Whether another process trains as this rank. It waits, in case that one is just going; then it is refused."""
        others = [one for one in self.situation.peers(Role.TRAINER) if one in self._welcomed and one is not peer]
        if peer.hello is None or all(one.hello is None or one.hello.rank != peer.hello.rank for one in others):
            self._rivals.pop(peer, None)
            return False
        self._rivals.setdefault(peer, self.situation.now())
        return True

    def check(self) -> None:
        """Look again at those who wait for another process of their rank to go."""
        for peer, since in list(self._rivals.items()):
            if peer not in self.situation.server.peers:
                del self._rivals[peer]
            elif self.situation.now() >= since + RIVAL_S:
                del self._rivals[peer]
                reason = f"another process trains this run already, in {self.situation.runtime_dir}"
                self.situation.server.send(peer, RestoreFailed(reason=reason))
            else:
                self.welcome(peer)

    def joined(self) -> None:
        """The membership is sealed: whoever has been waiting is welcome."""
        for peer in self.situation.peers(Role.TRAINER):
            self.welcome(peer)

    def hear(self, peer: Peer, received: Received) -> None:
        """Answer one frame. Raises ProtocolError for one that a trainer does not send."""
        frame: Frame = received.frame
        match frame:
            case WantRestore():
                self._waiting.append(peer)
                self.restore()
            case WantArenas():
                self._make_arenas(peer, frame, received)
            case Saved():
                self._saved(frame)
            case Progress():
                self._progress(frame)
            case Finished(step=step):
                self.situation.training.finished_step = step
            case _:
                raise ProtocolError(f"a trainer does not send {type(frame).__name__}")

    def gone(self, peer: Peer) -> None:
        """A trainer has ended or died: what it had not completed is given back, what it had is still uploaded."""
        self._waiting = [one for one in self._waiting if one is not peer]
        has_trained = peer in self._welcomed  # one that was turned away has no arenas: they are another's, who lives
        self._welcomed.discard(peer)
        if self.situation.uploads is not None and peer.hello is not None and has_trained:
            self.situation.uploads.reclaim(peer.hello.rank)
        if self.situation.training.finished_step >= 0 and not self.situation.peers(Role.LAUNCHER):
            self.situation.say(exit_code=0)  # without a launcher nobody else will tell
            self.situation.enter(NodePhase.DONE)

    def restore(self) -> None:
        """Answer those who wait for the image, or see that it is read; never while an upload may still change it."""
        if not self._waiting or self._is_fetching:
            return
        if not self._has_used_start:
            self._has_used_start = True
            self._answer(self.situation.fetched)
            self.situation.fetched = None
        elif not self.situation.is_saving:
            self._is_fetching = True
            self.fetch()

    def fetched_again(self, event: FetchedAgain) -> None:
        """The image is there, or cannot be had: the trainer must not start from zero then."""
        self._is_fetching = False
        if event.error is None:
            self._walk_back(event.fetched)
            self._answer(event.fetched)
            return
        for peer in self._waiting:
            self.situation.server.send(peer, RestoreFailed(reason=str(event.error)))
        self._waiting.clear()

    def _walk_back(self, fetched: Fetched | None) -> None:
        """What was committed and is damaged now no longer counts: a flush of an earlier step has to be uploaded."""
        saves = self.situation.saves
        if fetched is not None and fetched.order < (saves.committed_generation, saves.committed_step):
            order = fetched.order if fetched.manifest is not None else (-1, -1)
            saves.committed_generation, saves.committed_step = order

    def reported(self, report: Report) -> None:
        """What the uploader says, kept and passed on."""
        saves, now = self.situation.saves, self.situation
        match report:
            case Staged(problem=problem, step=step):
                if problem:
                    now.log(problem)
                else:
                    saves.staged_step = max(saves.staged_step, step)
            case Done(is_committed=True):
                order = max((saves.committed_generation, saves.committed_step), (report.generation, report.step))
                saves.committed_generation, saves.committed_step = order
                frame = Committed(generation=report.generation, step=report.step, seconds=report.seconds)
                now.tell_all(Role.TRAINER, frame)
            case Done():
                now.log(f"step {report.step}: this rank's part is in the bucket, others are missing")
            case GivenUp():
                saves.lost_step, saves.lost_reason = max(saves.lost_step, report.step), report.reason
                now.log(f"step {report.step} was not committed: {report.reason}")
                now.tell_all(Role.TRAINER, SaveFailed(step=report.step, reason=report.reason[:1000]))
        self.restore()

    def _start(self) -> tuple[int, int]:
        saves, fetched = self.situation.saves, self.situation.fetched
        start = (-1, -1) if fetched is None else fetched.order
        own = (self.situation.generation, max(saves.staged_step, saves.asked_step))
        candidates = [start, (saves.committed_generation, saves.committed_step)]
        if own[1] >= 0:
            candidates.append(own)
        return max(candidates)

    def _answer(self, fetched: Fetched | None) -> None:
        server = self.situation.server
        if fetched is None:
            for peer in self._waiting:
                server.send(peer, Restored())
            self._waiting.clear()
            return
        for reason in fetched.skipped:
            self.situation.log(f"passed over: {reason}")
        frame = Restored(
            generation=fetched.order[0],
            step=fetched.order[1],
            is_committed=fetched.manifest is not None,
            samples=fetched.part.receipt.samples,
            sample_chain=fetched.part.receipt.sample_chain,
            image_bytes=fetched.part.image.bytes,
            layout_bytes=len(fetched.layout),
            seconds=fetched.seconds,
            skipped=tuple(reason[:200] for reason in fetched.skipped[:20]),
        )
        layout_fd = sealed_memory(len(fetched.layout), name="layout")
        os.pwrite(layout_fd, fetched.layout, 0)
        for peer in self._waiting:
            server.send(peer, frame, [fetched.image_fd, layout_fd])
        os.close(layout_fd)
        os.close(fetched.image_fd)
        self._waiting.clear()

    def _make_arenas(self, peer: Peer, frame: WantArenas, received: Received) -> None:
        now, spec, uploads = self.situation, self.situation.spec, self.situation.uploads
        if spec is None or uploads is None:
            raise ProtocolError("arenas were asked for before the run had begun")
        count, world = spec.checkpoint.arenas, peer.hello.world if peer.hello is not None else 1
        try:
            fds = uploads.make_arenas(frame, received.take(), count=count, world=world, pid=peer.pid)
        except ArenaRefused as error:
            now.log(str(error))
            now.server.send(peer, ArenasRefused(reason=str(error)))
            return
        now.server.send(peer, Arenas(count=count, image_bytes=frame.image_bytes), fds)

    def _saved(self, frame: Saved) -> None:
        now, saves = self.situation, self.situation.saves
        if now.uploads is None:
            raise ProtocolError("a save came before its arenas")
        saves.asked_step, saves.asked_kind = frame.step, frame.kind
        self._let_go_of_start()
        if frame.kind is SaveKind.FLUSH:
            saves.flush_asked_step = frame.step
        if frame.arena < 0:
            return  # this very step was handed over before; its upload is under way, or has ended
        job = Upload(
            rank=frame.rank,
            arena=frame.arena,
            generation=now.generation,
            step=frame.step,
            kind=frame.kind,
            samples=frame.samples,
            sample_chain=frame.sample_chain,
            until_at=now.notices.deadline_at if now.is_leaving else 0.0,
        )
        now.uploads.submit(job)
        self._progress(Progress(step=frame.step, loss=now.training.loss, samples=frame.samples))

    def _let_go_of_start(self) -> None:
        """A trainer that saves needs no image any more: it outlived an agent, and has its state."""
        self._has_used_start = True
        if self.situation.fetched is not None:
            os.close(self.situation.fetched.image_fd)
            self.situation.fetched = None

    def _progress(self, frame: Progress) -> None:
        training = self.situation.training
        training.step = frame.step
        if frame.loss is not None:
            training.loss = frame.loss
        if frame.step_seconds > 0:
            training.step_s = frame.step_seconds
        self.situation.say(step=frame.step, loss=training.loss)
        if not self.situation.is_leaving:
            self.situation.enter(NodePhase.TRAINING)

"""What a trainer asks and tells, answered. Order of the frames: contract/protocol.py."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from spotproof.agent.server import Peer
from spotproof.agent.shares import Shares, Wanted
from spotproof.agent.situation import Situation
from spotproof.agent.together import node_rank
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
from spotproof.contract.times import Moment
from spotproof.errors import ArenaRefused, ProtocolError
from spotproof.plan import network, preflight

RIVAL_S: Final = 3.0  # for a process that has just died to be seen as gone


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchedAgain:
    """A restore that was read after the start: of a trainer that was started again. `error` where it failed."""

    fetched: Fetched | None = None
    error: Exception | None = None
    wanted: Wanted | None = None  # one rank's part of a given checkpoint; None: the newest, of the only rank


@dataclass(slots=True, kw_only=True)
class Trainers:
    """The trainer processes of this node. `fetch` reads the newest checkpoint on a thread and posts FetchedAgain;
    `fetch_part` one rank's part of one checkpoint."""

    situation: Situation
    fetch: Callable[[], None]
    fetch_part: Callable[[Wanted], None] = field(default=lambda _: None)
    on_damaged: Callable[[str], None] = field(default=lambda _: None)
    on_staged: Callable[[], None] = field(default=lambda: None)
    _waiting: list[Peer] = field(default_factory=list)  # want the image, it is not there yet
    _is_fetching: bool = False
    _has_fitted: bool | None = None  # a flush of the layout into a notice, as it was said last
    _has_used_start: bool = False
    _welcomed: dict[Peer, int] = field(default_factory=dict)  # with the generation that they were told
    _came_at: dict[Peer, float] = field(default_factory=dict)
    _rivals: dict[Peer, float] = field(default_factory=dict)
    _shares: Shares = field(init=False)

    def __post_init__(self) -> None:
        """Shares answer through this."""
        self._shares = Shares(
            situation=self.situation, fetch=self.fetch_part, answer=self._answer, on_damaged=self.on_damaged
        )

    def welcome(self, peer: Peer) -> None:
        """Tell a trainer what the run is, once this node has joined; one that comes after a refusal is let go."""
        now, place, spec = self.situation, self.situation.place, self.situation.spec
        if now.refusal is not None:
            now.server.drop(peer)  # it would wait for a welcome for ever, and a local agent for it to go
            return
        if place is None or spec is None or not now.has_joined or not self._is_expected(peer) or self._is_rival(peer):
            return
        self._welcomed[peer] = now.generation
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
            when_busy=spec.checkpoint.when_busy,
        )
        now.server.send(peer, frame)

    def _is_expected(self, peer: Peer) -> bool:
        """Of many nodes: whether this worker is one of the membership that stands. Its launcher started it after the
        seal, so only a look that began after it came tells; a worker of an earlier one is ended by its launcher."""
        now, hello = self.situation, peer.hello
        if not now.is_together or peer in self._welcomed:
            return True
        if peer not in self._came_at:
            self._came_at[peer] = now.now()
            now.look_now()
        if now.is_over or now.sealed is None or now.place is None or hello is None:
            return False
        local_world = hello.world // len(now.sealed.members)
        return now.looked_at >= self._came_at[peer] and hello.rank // max(1, local_world) == node_rank(
            now.place, now.sealed
        )

    def _is_rival(self, peer: Peer) -> bool:
        """Whether another process trains as this rank. It waits, in case that one is just going; then it is refused."""
        generation = self.situation.generation
        others = [one for one in self.situation.peers(Role.TRAINER) if self._welcomed.get(one) == generation]
        others = [one for one in others if one is not peer]
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
            case WantRestore(rank=rank) if self._is_shared(peer):
                self._shares.want(peer, rank)
            case WantRestore():
                self._waiting.append(peer)
                self.restore()
            case WantArenas():
                self._make_arenas(peer, frame, received)
            case Saved():
                self._saved(peer, frame)
            case Progress():
                self._progress(peer, frame)
            case Finished(step=step):
                self.situation.training.finished_step = step
            case _:
                raise ProtocolError(f"a trainer does not send {type(frame).__name__}")

    def gone(self, peer: Peer) -> None:
        """A trainer has ended or died: what it had not completed is given back, what it had is still uploaded."""
        self._waiting = [one for one in self._waiting if one is not peer]
        self._note_death(self._welcomed.get(peer, 0))
        has_trained = peer in self._welcomed  # one that was turned away has no arenas: they are another's, who lives
        self._welcomed.pop(peer, None)
        self._came_at.pop(peer, None)
        self._shares.gone(peer, was_last=not self._welcomed)
        if self.situation.uploads is not None and peer.hello is not None and has_trained:
            self.situation.uploads.reclaim(peer.hello.rank)
        if self.situation.training.finished_step >= 0 and not self.situation.peers(Role.LAUNCHER):
            self.situation.say(exit_code=0)  # without a launcher nobody else will tell
            self.situation.enter(NodePhase.DONE)

    def _note_death(self, generation: int) -> None:
        """Of many nodes: a worker that ends while its membership stands has failed, or another one has."""
        now = self.situation
        is_early = now.is_together and not now.is_over and not now.is_leaving and now.training.finished_step < 0
        if is_early and generation == now.generation:
            now.training.died_in = generation

    def restore(self) -> None:
        """Answer those who wait for the image, or see that it is read; never while an upload may still change it."""
        self._shares.check()
        if not self._waiting or self._is_fetching:
            return
        if not self._has_used_start:
            self._has_used_start = True
            fetched, self.situation.fetched = self.situation.fetched, None
            self._answer_waiting(fetched)
        elif not self.situation.is_saving:
            self._is_fetching = True
            self.fetch()

    def fetched_again(self, event: FetchedAgain) -> None:
        """The image is there, or cannot be had: the trainer must not start from zero then."""
        if event.wanted is not None:
            self._shares.fetched(event.wanted, event.fetched, event.error)
            return
        self._is_fetching = False
        if event.error is None:
            self._walk_back(event.fetched)
            self._answer_waiting(event.fetched)
            return
        for peer in self._waiting:
            self.situation.server.send(peer, RestoreFailed(reason=str(event.error)))
        self._waiting.clear()

    def _is_shared(self, peer: Peer) -> bool:
        return self.situation.is_together or (peer.hello is not None and peer.hello.world > 1)

    def _answer_waiting(self, fetched: Fetched | None) -> None:
        waiting, self._waiting = self._waiting, []
        self._answer(waiting, fetched)

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
                    if now.is_together:
                        self.on_staged()
            case Done(is_committed=True):
                order = max((saves.committed_generation, saves.committed_step), (report.generation, report.step))
                saves.committed_generation, saves.committed_step = order
                frame = Committed(generation=report.generation, step=report.step, seconds=report.seconds)
                now.tell_all(Role.TRAINER, frame)
                self._say_outlook()
            case Done():
                saves.parted = max(saves.parted, (report.generation, report.step))
                now.look_now()
            case GivenUp() if now.is_together and report.generation < now.generation:
                now.log(f"step {report.step} of generation {report.generation}: {report.reason}")
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

    def _answer(self, peers: list[Peer], fetched: Fetched | None) -> None:
        server = self.situation.server
        if peers:
            self.situation.passed(Moment.RESTORED)
        if fetched is None:
            for peer in peers:
                server.send(peer, Restored())
            return
        for reason in fetched.skipped:
            self.situation.log(f"passed over: {reason}")
        frame = Restored(
            generation=fetched.order[0],
            step=fetched.order[1],
            is_committed=fetched.manifest is not None,
            world=fetched.part.world,
            samples=fetched.part.receipt.samples,
            sample_chain=fetched.part.receipt.sample_chain,
            image_bytes=fetched.part.image.bytes,
            layout_bytes=len(fetched.layout),
            seconds=fetched.seconds,
            skipped=tuple(reason[:200] for reason in fetched.skipped[:20]),
        )
        layout_fd = sealed_memory(len(fetched.layout), name="layout")
        os.pwrite(layout_fd, fetched.layout, 0)
        for peer in peers:
            server.send(peer, frame, [fetched.image_fd, layout_fd])
        os.close(layout_fd)
        os.close(fetched.image_fd)

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
        self._say_outlook()

    def _say_outlook(self) -> None:
        """Whether a flush of this layout fits into a notice; again when a save has shown the wire's real speed."""
        now, spec, uploads = self.situation, self.situation.spec, self.situation.uploads
        if spec is None or uploads is None or now.is_local or uploads.image_bytes is None:
            return
        rate = uploads.rate_bytes_s or network.slowest_bytes_s(spec.pools.types)
        if rate is None:
            return
        layout = preflight.Layout(
            image_bytes=uploads.image_bytes,
            wire_bytes_s=rate,
            step_s=now.training.step_s or 0.0,
            lacking_bytes=uploads.lacking_bytes,
            every_s=spec.checkpoint.every_s,
            is_sharded=now.is_together,
        )
        found = preflight.outlook(layout)
        if found.fits is not self._has_fitted:
            self._has_fitted = found.fits
            now.log(f"preflight: {found.says}")
            for help_ in found.helps:
                now.log(f"preflight: it does not fit; would help: {help_}")

    def _saved(self, peer: Peer, frame: Saved) -> None:
        now, saves = self.situation, self.situation.saves
        if now.uploads is None:
            raise ProtocolError("a save came before its arenas")
        saves.asked_step, saves.asked_kind = frame.step, frame.kind
        if saves.lost_step == frame.step:
            saves.lost_step = -1  # a second try
        self._let_go_of_start()
        if frame.kind is SaveKind.FLUSH:
            saves.flush_asked_step = frame.step
        if frame.arena < 0:
            return  # this very step was handed over before; its upload is under way, or has ended
        job = Upload(
            rank=frame.rank,
            arena=frame.arena,
            generation=self._welcomed.get(peer, now.generation),
            step=frame.step,
            kind=frame.kind,
            samples=frame.samples,
            sample_chain=frame.sample_chain,
            until_at=self._needed_until(frame.kind),
        )
        now.uploads.submit(job)
        self._progress(peer, Progress(step=frame.step, loss=now.training.loss, samples=frame.samples))

    def _needed_until(self, kind: SaveKind) -> float:
        """Until when an upload is tried again: a flush is for this node's end or, of many nodes, for another one's."""
        now = self.situation
        if now.is_leaving:
            return now.notices.deadline_at
        return now.others_leave_until if kind is SaveKind.FLUSH and now.is_together else 0.0

    def _let_go_of_start(self) -> None:
        """A trainer that saves needs no image any more: it outlived an agent, and has its state."""
        self._has_used_start = True
        if self.situation.fetched is not None:
            os.close(self.situation.fetched.image_fd)
            self.situation.fetched = None

    def _progress(self, peer: Peer, frame: Progress) -> None:
        training = self.situation.training
        is_first = peer.hello is None or peer.hello.local_rank == 0
        if not is_first or self._welcomed.get(peer, 0) < self.situation.generation:
            return  # one speaks for this node's workers; and none of a membership that has ended
        if frame.step != training.step:
            training.step, training.step_at = frame.step, self.situation.now()
        if frame.loss is not None:
            training.loss = frame.loss
        if frame.step_seconds > 0:
            training.step_s = frame.step_seconds
        self.situation.passed(Moment.FIRST_STEP)
        self.situation.say(step=frame.step, loss=training.loss, step_s=training.step_s)
        if not self.situation.is_leaving:
            self.situation.enter(NodePhase.TRAINING)

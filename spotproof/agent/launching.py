"""The agent's side of `spotproof run`: when the command may start, whether it starts again, how it all ends."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Final

from spotproof.agent.decide import Ending, Verdict, verdict
from spotproof.agent.notices import Heard, Source
from spotproof.agent.server import Peer
from spotproof.agent.situation import Situation
from spotproof.checkpoint.channel import Received
from spotproof.contract import protocol
from spotproof.contract.exits import ExitCode
from spotproof.contract.limits import FIRST_HEARTBEAT_S, LAST_COMMIT_WAIT_S
from spotproof.contract.protocol import Exited, Go, Notice, Role
from spotproof.contract.runspec import RunSpec
from spotproof.contract.settings import START_FROM_VARIABLE, RendezvousSettings
from spotproof.contract.states import NodePhase, NoticeKind
from spotproof.errors import ContractError, ProtocolError
from spotproof.rendezvous.launch import torchrun_environment

TELL_S: Final = 5.0  # how long the verdict waits for the last beat to be written
LAUNCHER_BACK_S: Final = 30.0  # for a launcher to come back after its container was started again
RIVAL_S: Final = 3.0  # for a process that has just died to be seen as gone
TERMINATE_S: Final = 5.0  # between SIGTERM and SIGKILL of a superseded trainer


@dataclass(slots=True, kw_only=True)
class _End:
    """A command that has ended; `word` is spoken once nothing of it is under way any more."""

    peer: Peer
    code: int
    at: float
    word: Verdict | None = None


@dataclass(slots=True, kw_only=True)
class Launching:
    """The launchers of this node (one in practice) and the end that is being waited for."""

    situation: Situation
    on_person: Callable[[Heard], None]
    rendezvous: RendezvousSettings = field(default_factory=RendezvousSettings)  # where the table is
    ended: Verdict | None = None  # the last word, once it is spoken
    _started: set[Peer] = field(default_factory=set)
    _exited: dict[Peer, _End] = field(default_factory=dict)
    _rivals: dict[Peer, float] = field(default_factory=dict)  # since when they wait for another one to go
    _lonely_since: float | None = None
    _spoken_at: float = 0.0
    _killed_at: float | None = None
    _is_stopped: bool = False

    def go(self) -> None:
        """Start every command that waits, if its turn has come; a node without a place says so and ends."""
        now = self.situation
        launchers = now.peers(Role.LAUNCHER)
        for peer in launchers:
            if peer in self._started:
                continue
            if now.refusal is not None:
                self._started.add(peer)
                now.server.send(peer, self._refused(now.refusal))
            elif now.superseded or (now.is_leaving and not now.has_joined):
                self._started.add(peer)
                self._exited[peer] = _End(peer=peer, code=int(ExitCode.PREEMPTED_LOST), at=now.now())
            elif any(other in self._started for other in launchers):
                self._turn_away(peer)
            elif now.may_start and now.spec is not None:
                self._started.add(peer)
                now.server.send(peer, self._go(now.spec))

    def _turn_away(self, peer: Peer) -> None:
        """Two commands must never train one run: the later one is refused, unless the earlier one is just going."""
        now = self.situation
        if now.now() < self._rivals.setdefault(peer, now.now()) + RIVAL_S:
            return
        self._started.add(peer)
        says = f"another `spotproof run` trains here ({now.runtime_dir}); let it end, or use another folder"
        now.server.send(peer, protocol.Verdict(code=int(ExitCode.BAD_CONFIGURATION), says=says))

    def hear(self, peer: Peer, received: Received) -> None:
        """The command ended, or a person wants it to. Raises ProtocolError for what a launcher does not send."""
        frame = received.frame
        if peer.hello is not None and isinstance(frame, Notice):
            self.on_person(
                Heard(key=frame.order, source=Source.PERSON, kind=frame.kind, deadline_at=frame.deadline_at, leave=True)
            )
            return
        if peer.hello is None or not isinstance(received.frame, Exited):
            raise ProtocolError(f"{type(received.frame).__name__} was not expected here")
        self._exited[peer] = _End(peer=peer, code=received.frame.code, at=self.situation.now())
        self.check()

    def check(self) -> None:
        """Answer launchers whose command has ended, as soon as nothing of it is under way any more."""
        for peer, end in list(self._exited.items()):
            if end.word is None and self._is_settled(end.at):
                self._count_failure(end.code)
                end.word = self._word(end.code)
            if end.word is None:
                continue
            if end.word.again:
                del self._exited[peer]
                self._again(end.peer, end.word)
            elif self._is_told(end.word):
                del self._exited[peer]
                self.ended = end.word
                self.situation.server.send(end.peer, protocol.Verdict(code=end.word.code, says=end.word.says))

    def check_nobody(self) -> None:
        """A joined node that nobody trains on must not beat for ever: it has failed, and is replaced.

        That is a trainer's container that never started, or that was killed whole, launcher and all.
        """
        now = self.situation
        is_busy = bool(now.peers(Role.LAUNCHER) or now.peers(Role.TRAINER)) or now.is_saving
        if is_busy or not now.may_start or now.is_leaving or now.superseded or self.ended is not None:
            self._lonely_since = None
            return
        if self._lonely_since is None:
            self._lonely_since = now.now()
        patience_s = LAUNCHER_BACK_S if self._started else FIRST_HEARTBEAT_S
        if now.now() < self._lonely_since + patience_s:
            return
        code = 0 if self._is_finished() else int(ExitCode.FAILED)
        says = f"no training command has been connected for {patience_s:.0f} s"
        word = Verdict(again=False, code=code, says="" if code == 0 else says)
        if self._is_told(word):
            self.ended = word

    def stop_hopeless(self) -> None:
        """End a command that begins again and again by itself."""
        if self.situation.training.is_hopeless and not self._is_stopped:
            self._is_stopped = True
            self.situation.tell_all(Role.LAUNCHER, _stop(self.situation.now()))

    def stop_trainers(self) -> None:
        """End the trainers of a superseded node: SIGTERM, and SIGKILL 5 s later for those that are still there."""
        now = self.situation
        first = self._killed_at is None
        if first:
            self._killed_at = now.now()
        is_late = not first and now.now() >= (self._killed_at or 0.0) + TERMINATE_S
        if first or is_late:
            for peer in now.peers(Role.TRAINER):
                _signal_group(peer.pid, signal.SIGKILL if is_late else signal.SIGTERM)

    def _is_settled(self, exited_at: float) -> bool:
        """Whether the end can be judged: uploads are done, or have had the time that they get."""
        now = self.situation
        if now.superseded:
            return True
        if now.peers(Role.TRAINER) and now.now() < exited_at + TELL_S:
            return False  # what the trainer said last is still unread
        if now.is_leaving:
            return now.outcome is not None and now.outcome.is_final
        return not now.is_saving or now.now() >= exited_at + LAST_COMMIT_WAIT_S

    def _word(self, code: int) -> Verdict:
        now = self.situation
        spec = now.spec
        return verdict(
            Ending(
                code=code,
                is_superseded=bool(now.superseded),
                is_leaving=now.is_leaving and not (code == 0 and self._is_finished()),
                is_paused=now.is_paused,
                outcome=now.outcome,
                is_last_save_lost=now.saves.is_last_lost,
                failures=now.training.failures,
                allowed=spec.budgets.trainer_failures if spec is not None else 1,
            )
        )

    def _is_finished(self) -> bool:
        """Training ended by itself, and its last step is durable: a notice does not make that a preemption."""
        finished = self.situation.training.finished_step
        return finished >= 0 and self.situation.saves.committed_step >= finished

    def _is_told(self, word: Verdict) -> bool:
        """Whether the last beat is in the table, or has had its time; the first call has it written."""
        now = self.situation
        if self._spoken_at == 0.0:
            self._spoken_at = now.now()
            if word.says:
                now.log(word.says)
            now.say(exit_code=word.code)
            if word.code == 0:
                now.enter(NodePhase.DONE)
            elif not now.is_leaving and not now.superseded:
                now.enter(NodePhase.FAILED)
        return now.heart is None or now.heart.is_told() or now.now() >= self._spoken_at + TELL_S

    def _again(self, peer: Peer, word: Verdict) -> None:
        now = self.situation
        now.log(f"{word.says}: it is started again")
        now.enter(NodePhase.PREPARING)
        if now.spec is not None:
            now.server.send(peer, self._go(now.spec))

    def _go(self, spec: RunSpec) -> Go:
        """Of many nodes torchrun is told by its environment where its place is; the spec's own variables win."""
        place = self.situation.place
        begins = (f"{START_FROM_VARIABLE}={spec.start_from}",) if spec.start_from else ()
        if not self.situation.is_together or place is None:
            return Go(command=spec.command, environment=(*begins, *spec.environment))
        seat = replace(self.rendezvous, instance=place.instance, slot=place.slot, incarnation=place.incarnation)
        told = torchrun_environment(
            seat, run=spec.run, smallest=spec.least, largest=spec.slots, regrow_s=spec.regrow_after_s
        )
        added = tuple(f"{name}={text}" for name, text in told.items())
        return Go(command=spec.command, environment=(*added, *begins, *spec.environment), waits_to_be_stopped=True)

    def _count_failure(self, code: int) -> None:
        training, saves, spec = self.situation.training, self.situation.saves, self.situation.spec
        if training.is_hopeless and spec is not None:
            training.failures = spec.budgets.trainer_failures
            return
        if code == 0 or self.situation.is_leaving:
            return
        commit = (saves.committed_generation, saves.committed_step)
        training.failures = 1 if commit > training.failed_at_commit else training.failures + 1
        training.failed_at_commit = commit

    def _refused(self, error: Exception) -> protocol.Verdict:
        is_configuration = isinstance(error, ContractError)
        code = ExitCode.BAD_CONFIGURATION if is_configuration else ExitCode.FAILED
        self.ended = Verdict(again=False, code=int(code), says=str(error))
        return protocol.Verdict(code=int(code), says=str(error)[:4000])


def _stop(now: float) -> Notice:
    """What makes `spotproof run` end its command."""
    return Notice(order="hopeless", kind=NoticeKind.MAINTENANCE, deadline_at=now, leave=True, save=False)


def _signal_group(pid: int, number: signal.Signals) -> None:
    """Signal the process group of a process that registered; never our own group."""
    if pid <= 0:
        return
    try:
        group = os.getpgid(pid)
        if group == os.getpgrp():
            os.kill(pid, number)
        else:
            os.killpg(group, number)
    except ProcessLookupError:
        pass  # it has ended by itself

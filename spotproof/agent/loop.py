"""The agent's loop: one thread that hears everything and decides, and the threads and processes it owns."""

from __future__ import annotations

import selectors
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Final

from spotproof.agent.head import TableSays, is_superseded, order_of
from spotproof.agent.heartbeat import Heart, Place
from spotproof.agent.imds import MetadataNotice
from spotproof.agent.launching import Launching
from spotproof.agent.leaving import Leaving
from spotproof.agent.membership import Joined, Joiner, NotJoined, Parked, Placed, Ready
from spotproof.agent.notices import Heard, Source, of_order
from spotproof.agent.requests import Requests
from spotproof.agent.server import Peer, Said, Server
from spotproof.agent.situation import Situation
from spotproof.agent.threads import Mailbox, Repeating
from spotproof.agent.together import Together
from spotproof.agent.trainers import FetchedAgain, Trainers
from spotproof.agent.uploads import Uploads, suited
from spotproof.checkpoint.jobs import Begin, GivenUp
from spotproof.contract.exits import ExitCode
from spotproof.contract.protocol import VERSION, Hello, Role
from spotproof.contract.states import NodePhase, NoticeKind, RunStatus
from spotproof.contract.times import Moment
from spotproof.errors import ProtocolError, Superseded

TICK_S: Final = 0.25
PAUSE_BUDGET_S: Final = 600  # a person who pauses a run has time
ALONE_S: Final = 0.5  # a local agent ends when nobody has been connected for this long and nothing is under way
FIRST_PEER_S: Final = 60.0
_WANTS_NOBODY: Final = frozenset({RunStatus.PAUSED, RunStatus.STOPPING, RunStatus.STOPPED})
AWAIT_LOOK_S: Final = 0.5  # while another node's part of a checkpoint is awaited


@dataclass(frozen=True, slots=True, kw_only=True)
class SupersededHeard:
    """A thread has found out that this node's place is given away."""

    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MetadataSays:
    """One poll of the instance metadata."""

    notices: tuple[MetadataNotice, ...]
    degraded: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SuccessorWaits:
    """The node that takes this one's place is ready, and waits for its last word."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Owned:
    """What the loop starts once the node has a place, made by the composition root."""

    begin: Callable[[Place], Begin]
    was_committed: Callable[[int, int], bool]
    heart: Callable[[Place], Heart]
    look: Callable[[], TableSays]
    head_poll_s: float
    look_wider: Callable[[], TableSays] | None = None  # of one of many nodes
    is_awaited: Callable[[Place], bool] = lambda _: False  # whether a successor of this node waits


@dataclass(slots=True, kw_only=True)
class Loop:
    """Runs until the node's work is over; returns the exit code."""

    situation: Situation
    owned: Owned
    mailbox: Mailbox
    selector: selectors.BaseSelector
    server: Server
    joiner: Joiner
    trainers: Trainers
    launching: Launching
    leaving: Leaving
    requests: Requests
    stack: ExitStack
    should_stop: Callable[[], bool]
    _registered: tuple[int, int] | None = None  # the uploader's process and our socket to it
    _alone_since: float | None = None
    _degraded: str = ""
    _had_peer: bool = False
    _superseded_at: float = 0.0
    _nudged_at: float = 0.0
    _order_told: set[str] = field(default_factory=set)

    def run(self) -> int:
        """Turn until the end; every turn handles what is there and then looks whether something is due."""
        self.selector.register(self.mailbox, selectors.EVENT_READ, self.mailbox)
        while True:
            for key, events in self.selector.select(TICK_S):
                self._ready(key.data, events)
            self._due()
            code = self._end()
            if code is not None:
                self._last_beat()
                return code

    def _last_beat(self) -> None:
        heart = self.situation.heart
        if heart is not None and not heart.is_told():
            heart.beat()

    def _ready(self, source: object, events: int) -> None:
        if source is self.mailbox:
            for event in self.mailbox.collect():
                self._event(event)
        elif source is self.server:
            self.server.accept()
            self._had_peer = True
        elif isinstance(source, Uploads):
            self._reports(source)
        elif isinstance(source, Peer):
            if events & selectors.EVENT_WRITE:
                self.server.flush(source)
            for said in self.server.hear(source):
                self._said(said)

    def _said(self, said: Said) -> None:
        peer, received = said.peer, said.received
        if received is None:
            self.trainers.gone(peer)
            return
        try:
            if isinstance(received.frame, Hello):
                self._hello(peer, received.frame)
            elif peer.hello is not None and peer.hello.role is Role.TRAINER:
                self.trainers.hear(peer, received)
            else:
                self.launching.hear(peer, received)
        except ProtocolError as error:
            self.situation.log(f"process {peer.pid}: {error}")
            self.server.drop(peer)
            self.trainers.gone(peer)
        finally:
            received.close()
            self._watch_uploads()  # a save that met a dead uploader has started another one

    def _hello(self, peer: Peer, hello: Hello) -> None:
        if hello.version != VERSION:
            raise ProtocolError(f"it speaks protocol {hello.version}, this agent {VERSION}")
        self.trainers.welcome(peer)
        if hello.role is Role.TRAINER:
            self.leaving.greet(peer)
        else:
            self.launching.go()

    def _event(self, event: object) -> None:
        match event:
            case Placed():
                self._placed(event)
            case Parked(waiting_for=reason):
                self._parked(reason)
            case Joined() | Ready():
                self._through(event)
            case NotJoined(error=error):
                self._not_joined(error)
            case FetchedAgain():
                self.trainers.fetched_again(event)
            case TableSays():
                self._table(event)
            case MetadataSays():
                self._metadata(event)
            case SupersededHeard() | SuccessorWaits():
                self._place_told(event)
            case Exception():
                raise event
            case _:
                raise ProtocolError(f"nobody expects {event!r}")

    def _place_told(self, event: SupersededHeard | SuccessorWaits) -> None:
        if isinstance(event, SupersededHeard):
            self._supersede(event.why)
        else:
            self.leaving.is_awaited = True

    def _parked(self, reason: str) -> None:
        self.situation.passed(Moment.PARKED)
        if reason:
            self.situation.enter(NodePhase.PARKED)
            self.situation.log(f"parked: {reason}")

    def _placed(self, placed: Placed) -> None:
        now, place = self.situation, placed.place
        now.place, now.spec = place, placed.spec
        now.heart = self.owned.heart(place)
        now.beating = self.stack.enter_context(
            Repeating("heartbeat", now.heart.beat, period_s=placed.spec.liveness.heartbeat_s, mailbox=self.mailbox)
        )
        now.uploads = self.stack.enter_context(
            Uploads(suited(self.owned.begin(place), placed.spec), was_committed=self.owned.was_committed)
        )
        look = self.owned.look_wider if now.is_together and self.owned.look_wider is not None else self.owned.look

        def look_around() -> None:
            self.mailbox.post(look())
            if now.is_leaving and self.owned.is_awaited(place):
                self.mailbox.post(SuccessorWaits())

        now.looking = self.stack.enter_context(
            Repeating("table", look_around, period_s=self.owned.head_poll_s, mailbox=self.mailbox)
        )
        self._watch_uploads()
        now.enter(NodePhase.PREPARING)
        now.log(f"run {place.run}, slot {place.slot}, incarnation {place.incarnation}, instance {place.instance}")

    def _joined(self, joined: Joined) -> None:
        now = self.situation
        now.generation, now.joined_in, now.fetched = joined.generation, joined.generation, joined.fetched
        if joined.old_order is not None:
            now.notices.forget_before_joining(joined.old_order)
        now.passed(Moment.JOINED)
        now.say(generation=joined.generation)
        if joined.fetched is None:
            now.log(f"generation {joined.generation}: nothing to restore, training starts at step 0")
        else:
            now.log(f"generation {joined.generation}: goes on from step {joined.fetched.order[1]}")
            if joined.fetched.manifest is not None:  # else it is a copy on this disk that was never committed
                now.saves.committed_generation, now.saves.committed_step = joined.fetched.order
        self.trainers.joined()
        self.launching.go()

    def _through(self, event: Joined | Ready) -> None:
        if isinstance(event, Joined):
            self._joined(event)
        else:
            self._may_take_part(event)

    def _may_take_part(self, ready: Ready) -> None:
        """One of many nodes: its launcher goes into the rendezvous; the membership is sealed there."""
        now = self.situation
        now.is_ready, now.fetched = True, ready.ahead
        if ready.old_order is not None:
            now.notices.forget_before_joining(ready.old_order)
        if not now.has_joined:
            now.enter(NodePhase.PARKED)
        now.log("ready: the launcher goes into the rendezvous")
        self.launching.go()

    def _entered(self) -> None:
        """A membership with this node stands, one of many."""
        self.situation.passed(Moment.JOINED)
        self.trainers.joined()
        self.trainers.restore()

    def _not_joined(self, error: Exception) -> None:
        if isinstance(error, Superseded):
            self._supersede(str(error))
            return
        now = self.situation
        now.refusal = error
        now.log(str(error))
        now.say(exit_code=int(ExitCode.FAILED))
        now.enter(NodePhase.FAILED)
        for peer in now.peers(Role.TRAINER):
            self.server.drop(peer)
        self.launching.go()

    def _table(self, says: TableSays) -> None:
        now = self.situation
        if now.place is None or says.error:
            return
        if now.is_together:
            why = Together(situation=now, on_entered=self._entered).hear(says)
            if why:
                self._supersede(why)
            elif now.is_over and now.has_joined and not now.is_leaving:
                now.enter(NodePhase.PARKED)
        elif now.has_joined and is_superseded(says.newest, generation=now.generation):
            number = says.newest.generation if says.newest is not None else 0
            self._supersede(f"generation {number} has been sealed without this node (its own was {now.generation})")
        if says.head is None:
            return
        order = order_of(says.head)
        if order is not None:
            self.leaving.hear(of_order(order, source=Source.HEAD, slot=now.place.slot, joined_in=now.joined_in))
        if says.head.status in _WANTS_NOBODY and now.has_joined:
            now.is_paused = says.head.status is RunStatus.PAUSED
            self.leaving.hear(self._person(f"status-{says.head.status}"))
        elif not now.has_joined and says.head.status in _WANTS_NOBODY:
            self.leaving.stand_down()

    def _person(self, key: str) -> Heard:
        deadline_at = self.situation.now() + PAUSE_BUDGET_S
        return Heard(key=key, source=Source.HEAD, kind=NoticeKind.MAINTENANCE, deadline_at=deadline_at, leave=True)

    def _metadata(self, says: MetadataSays) -> None:
        if says.degraded != self._degraded:
            self._degraded = says.degraded
            self.situation.log(f"degraded: {says.degraded}" if says.degraded else "instance metadata answers again")
        for notice in says.notices:
            heard = Heard(
                key=notice.key,
                source=Source.METADATA,
                kind=notice.kind,
                deadline_at=notice.deadline_at,
                leave=notice.kind is NoticeKind.INTERRUPTION,
                action=notice.action,
            )
            self.leaving.hear(heard)

    def _reports(self, uploads: Uploads) -> None:
        now = self.situation
        for report in uploads.reports():
            self.trainers.reported(report)
            if isinstance(report, GivenUp) and report.is_superseded and not now.is_together:
                self._supersede(report.reason)
        self._watch_uploads()

    def _watch_uploads(self) -> None:
        """Keep the selector on the uploader's socket. A restart brings another one, often under the same number: what
        was registered under it is gone with the old socket."""
        uploads = self.situation.uploads
        if uploads is None or (uploads.pid, uploads.fileno()) == self._registered:
            return
        if self._registered is not None:
            self.selector.unregister(self._registered[1])
        self._registered = (uploads.pid, uploads.fileno())
        self.selector.register(uploads.fileno(), selectors.EVENT_READ, uploads)

    def _supersede(self, why: str) -> None:
        now = self.situation
        if now.outcome is not None and now.outcome.is_final:
            return  # it has left, and its successor has joined: that is how it should end
        if not now.superseded:
            now.superseded = why
            self._superseded_at = now.now()
            now.log(f"superseded: {why}")
            now.say(exit_code=int(ExitCode.PREEMPTED_LOST))
            now.enter(NodePhase.SUPERSEDED)
            self.joiner.cancel()
            self.launching.go()

    def _due(self) -> None:
        now = self.situation
        for order in self.requests.poll():
            slot = now.place.slot if now.place is not None else 0
            self.leaving.hear(of_order(order, source=Source.REQUEST, slot=slot))
        for problem in self.requests.refused:
            now.log(problem)
        self.requests.refused.clear()
        if now.superseded:
            self.launching.stop_trainers()
        self.launching.stop_hopeless()
        if now.saves.waits_for_others and now.now() >= self._nudged_at + AWAIT_LOOK_S:
            self._nudged_at = now.now()
            now.look_now()
        if now.is_leaving and not now.has_joined:
            self.joiner.cancel()  # it would not live long enough to be of use
            self.launching.go()
        self.leaving.check()
        self.trainers.check()
        self.launching.go()
        self.launching.check()
        if not now.is_local:
            self.launching.check_nobody()
        if now.is_local and now.is_leaving and now.outcome is not None and now.outcome.is_final:
            self.server.close_door()  # who comes now is the next node, and starts an agent of its own

    def _end(self) -> int | None:
        """The exit code when everything is over, else None."""
        now = self.situation
        is_alone = not self.server.peers
        if self.should_stop():
            return self.launching.ended.code if self.launching.ended is not None else 0
        if now.superseded and (is_alone or now.now() > self._superseded_at + 15):
            return int(ExitCode.PREEMPTED_LOST)
        if now.refusal is not None and (is_alone and (self._had_peer or now.is_local)):
            return self.launching.ended.code if self.launching.ended is not None else int(ExitCode.FAILED)
        if not is_alone or now.is_saving:
            self._alone_since = None
            return None
        if self.launching.ended is not None and not now.is_leaving:
            # On a host the phase tells the rest; an exit with an error would only have the service started again.
            return self.launching.ended.code if now.is_local else 0
        return self._local_end() if now.is_local else None

    def _local_end(self) -> int | None:
        """Off AWS nobody ends the node: the agent does, with nothing to wait for or alone for a while."""
        if self.situation.is_leaving or self.situation.training.finished_step >= 0:
            return self.launching.ended.code if self.launching.ended is not None else 0
        if self._alone_since is None:
            self._alone_since = time.monotonic()
        patience_s = ALONE_S if self._had_peer else FIRST_PEER_S
        if time.monotonic() < self._alone_since + patience_s:
            return None
        return self.launching.ended.code if self.launching.ended is not None else 0

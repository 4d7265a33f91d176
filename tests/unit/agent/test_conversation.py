"""Agent, trainer and launcher talk: real sockets, a clock that stands still, uploads that end when the test says so."""

from __future__ import annotations

import os
import selectors
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from spotproof.agent import membership
from spotproof.agent.heartbeat import Condition, Heart, Place
from spotproof.agent.launching import Launching
from spotproof.agent.leaving import Leaving
from spotproof.agent.main import fetching
from spotproof.agent.notices import Heard, Source
from spotproof.agent.server import Server
from spotproof.agent.situation import Situation
from spotproof.agent.threads import Mailbox
from spotproof.agent.trainers import FetchedAgain, Trainers
from spotproof.checkpoint.arena import sealed_memory
from spotproof.checkpoint.channel import Channel, connect
from spotproof.checkpoint.commit import Content, Save, make_part
from spotproof.checkpoint.fetch import Fetched
from spotproof.checkpoint.jobs import Done, GivenUp, Upload
from spotproof.contract.items import Node
from spotproof.contract.manifest import Manifest
from spotproof.contract.protocol import (
    ArenasRefused,
    Committed,
    Exited,
    Finished,
    FlushDone,
    Frame,
    Go,
    Hello,
    Notice,
    Progress,
    Restored,
    RestoreFailed,
    Role,
    Saved,
    SaveFailed,
    Verdict,
    WantArenas,
    WantRestore,
    Welcome,
)
from spotproof.contract.runspec import Budgets, Pools, RunSpec
from spotproof.contract.states import FlushOutcome, NodePhase, NoticeKind, SaveKind
from spotproof.contract.times import Moment, times_of
from spotproof.errors import ArenaRefused, BadSettings, NoLoadableCheckpoint, Superseded, Unavailable
from spotproof.plan.candidates import Source as Candidates

NOW = 1_000_000.0
SPEC = RunSpec(
    run="r",
    image="x@sha256:" + "0" * 64,
    command=("python", "train.py"),
    pools=Pools(types=("g5.xlarge",)),
    budgets=Budgets(trainer_failures=2),
    environment=("A=1",),
)
PLACE = Place(run="r", slot=0, incarnation=1, instance="i-1")
INTERRUPTION = Heard(key="n-1", source=Source.METADATA, kind=NoticeKind.INTERRUPTION, deadline_at=NOW + 100, leave=True)


@dataclass
class FakeUploads:
    """What is asked stays pending until the test reports on it."""

    pending: list[Upload] = field(default_factory=list)
    image_bytes: int | None = None
    lacking_bytes: int | None = None
    rate_bytes_s: float | None = None
    refuses: bool = False
    reclaimed: int = 0

    @property
    def bytes_left(self) -> int:
        return len(self.pending) * (self.image_bytes or 0)

    def make_arenas(self, want: WantArenas, blob_fd: int, **_: object) -> list[int]:
        os.close(blob_fd)
        if self.refuses:
            raise ArenaRefused("2 arenas need 4 GiB, but memory.max leaves 1 GiB", next_step="raise memory.max")
        return []

    def submit(self, job: Upload) -> None:
        self.pending.append(job)

    def reclaim(self, rank: int) -> None:
        self.reclaimed += 1


class FakeNodes:
    """The NODE item; `fails` makes writes fail."""

    def __init__(self) -> None:
        self.beats: list[Node] = []
        self.fails: Exception | None = None

    def beat(self, node: Node) -> None:
        if self.fails is not None:
            raise self.fails
        self.beats.append(node)


class Desk:
    """An agent without its threads, and the processes that talk to it."""

    def __init__(self, folder: Path, stack: ExitStack, *, generation: int = 3) -> None:
        self.at = NOW
        self.stack = stack
        self.folder = folder
        self.nodes = FakeNodes()
        self.uploads = FakeUploads()
        self.lines: list[str] = []
        self.fetches = 0
        selector = stack.enter_context(selectors.DefaultSelector())
        self.server = stack.enter_context(Server(folder, selector))
        self.superseded: list[str] = []
        self.heart = Heart(nodes=self.nodes, place=PLACE, now=self.now, on_superseded=self.superseded.append)
        uploads: Any = self.uploads
        self.now_ = Situation(
            runtime_dir=folder,
            now=self.now,
            log=self.lines.append,
            server=self.server,
            is_local=False,
            place=PLACE,
            spec=SPEC,
            generation=generation,
            heart=self.heart,
            uploads=uploads,
        )
        self.leaving = Leaving(situation=self.now_)
        self.launching = Launching(situation=self.now_, on_person=self.leaving.hear)
        self.trainers = Trainers(situation=self.now_, fetch=self.fetch)

    def now(self) -> float:
        return self.at

    def fetch(self) -> None:
        self.fetches += 1

    def connect(self, role: Role) -> Channel:
        channel = connect(self.folder)
        self.stack.callback(channel.close)
        peer = self.server.accept()
        assert peer is not None
        channel.send(Hello(role=role, pid=os.getpid()))
        list(self.server.hear(peer))
        if role is Role.LAUNCHER:
            self.launching.go()
        else:
            self.trainers.welcome(peer)
            self.leaving.greet(peer)
        return channel

    def say(self, channel: Channel, frame: Frame, fds: list[int] | None = None) -> None:
        """A process says something, and the loop's turn is over."""
        channel.send(frame, fds or [])
        for peer in list(self.server.peers):
            for said in self.server.hear(peer):
                assert peer.hello is not None
                if said.received is None:
                    self.trainers.gone(peer)
                elif peer.hello.role is Role.TRAINER:
                    self.trainers.hear(peer, said.received)
                else:
                    self.launching.hear(peer, said.received)
        self.turn()

    @property
    def phase(self) -> NodePhase:
        return self.nodes.beats[-1].phase

    @property
    def outcome(self) -> FlushOutcome | None:
        return self.now_.outcome

    def has_ended(self) -> bool:
        return self.launching.ended is not None

    def turn(self) -> None:
        self.heart.beat()
        self.leaving.check()
        self.launching.check()

    def hang_up(self, channel: Channel) -> None:
        channel.close()
        for peer in list(self.server.peers):
            for said in self.server.hear(peer):
                assert said.received is None
                self.trainers.gone(peer)

    def report(self, *, is_lost: bool = False) -> None:
        """The upload that was asked first has ended."""
        job = self.uploads.pending.pop(0)
        names: dict[str, Any] = {"rank": 0, "generation": job.generation, "step": job.step, "kind": job.kind}
        if is_lost:
            self.trainers.reported(GivenUp(**names, reason="the bucket is gone"))
        else:
            numbers: dict[str, Any] = {"bytes": 1, "sent_bytes": 1, "seconds": 0.5}
            self.trainers.reported(Done(**names, **numbers, is_committed=True, is_pointed=True))
        self.turn()


def heard(channel: Channel) -> list[Frame]:
    frames = []
    for received in channel.waiting():
        received.close()
        frames.append(received.frame)
    return frames


def saved(step: int, kind: SaveKind = SaveKind.PERIODIC, arena: int = 0) -> Saved:
    return Saved(arena=arena, step=step, kind=kind, samples=step * 4, sample_chain="")


def fetched(*, step: int, generation: int = 3) -> Fetched:
    """A committed checkpoint that was read."""
    content = Content(image=memoryview(b"image"), layout=b"{}", metadata=b"", chunk_bytes=100)
    part = make_part(Save(run="r", generation=generation, step=step, kind=SaveKind.PERIODIC), content, image_name="i")
    return Fetched(
        order=(generation, step),
        source=Candidates.MANIFEST,
        part=part,
        manifest=Manifest(run="r", generation=generation, step=step, world=1, parts=(part,)),
        manifest_digest="0" * 64,
        image_fd=sealed_memory(10, name="test"),
        layout=b"{}",
        pointer=None,
        skipped=("generation 3 step 20: damaged",),
        seconds=0.1,
    )


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


@pytest.fixture
def desk(tmp_path: Path, stack: ExitStack) -> Desk:
    return Desk(tmp_path, stack)


def test_a_trainer_is_welcome_once_the_node_has_joined(tmp_path: Path, stack: ExitStack) -> None:
    desk = Desk(tmp_path, stack, generation=0)
    trainer, launcher = desk.connect(Role.TRAINER), desk.connect(Role.LAUNCHER)
    assert (heard(trainer), heard(launcher)) == ([], [])
    desk.now_.generation = 4
    desk.trainers.joined()
    desk.launching.go()
    [welcome] = heard(trainer)
    assert isinstance(welcome, Welcome)
    assert (welcome.generation, welcome.start_step) == (4, -1)
    assert heard(launcher) == [Go(command=("python", "train.py"), environment=("A=1",))]
    desk.launching.go()
    assert heard(launcher) == []  # once


def test_where_a_run_begins_is_told_with_the_command(tmp_path: Path, stack: ExitStack) -> None:
    desk = Desk(tmp_path, stack, generation=0)
    launcher = desk.connect(Role.LAUNCHER)
    assert desk.now_.spec is not None
    desk.now_.spec = replace(desk.now_.spec, start_from="s3://others/gpt")
    desk.now_.generation = 4
    desk.launching.go()
    [go] = heard(launcher)
    assert isinstance(go, Go)
    assert go.environment == ("SPOTPROOF_START_FROM=s3://others/gpt", "A=1")


def test_a_save_is_committed_and_told(desk: Desk) -> None:
    trainer = desk.connect(Role.TRAINER)
    heard(trainer)
    desk.say(trainer, saved(5))
    [job] = desk.uploads.pending
    assert (job.generation, job.step, job.kind, job.samples, job.until_at) == (3, 5, SaveKind.PERIODIC, 20, 0.0)
    desk.report()
    assert heard(trainer) == [Committed(generation=3, step=5, seconds=0.5)]
    assert (desk.nodes.beats[-1].phase, desk.nodes.beats[-1].step) == (NodePhase.TRAINING, 5)
    desk.say(trainer, saved(6))
    desk.report(is_lost=True)
    assert heard(trainer) == [SaveFailed(step=6, reason="the bucket is gone")]
    assert desk.now_.saves.is_last_lost


def test_arenas_that_do_not_fit_are_refused_with_what_would_help(desk: Desk) -> None:
    trainer = desk.connect(Role.TRAINER)
    heard(trainer)
    desk.uploads.refuses = True
    fd = sealed_memory(10, name="test")
    desk.say(trainer, WantArenas(image_bytes=1, layout_bytes=5, metadata_bytes=5), [fd])
    os.close(fd)
    [refused] = heard(trainer)
    assert isinstance(refused, ArenasRefused)
    assert "raise memory.max" in refused.reason


def test_a_second_trainer_of_this_node_gets_a_fresh_image_once_nothing_is_under_way(desk: Desk) -> None:
    first = desk.connect(Role.TRAINER)
    heard(first)
    desk.say(first, WantRestore())
    assert heard(first) == [Restored()]  # the seal's choice: nothing
    desk.say(first, saved(5))
    desk.hang_up(first)
    assert desk.uploads.reclaimed == 1
    second = desk.connect(Role.TRAINER)
    [welcome] = heard(second)
    assert isinstance(welcome, Welcome)
    assert welcome.start_step == 5
    desk.say(second, WantRestore())
    assert desk.fetches == 0  # step 5 is still on its way
    desk.report()
    assert desk.fetches == 1
    desk.trainers.fetched_again(FetchedAgain(error=NoLoadableCheckpoint("all are damaged")))
    assert heard(second)[-1] == RestoreFailed(reason="all are damaged")


def test_a_notice_is_flushed_and_its_outcome_told_to_everybody(desk: Desk) -> None:
    trainer, launcher = desk.connect(Role.TRAINER), desk.connect(Role.LAUNCHER)
    heard(trainer), heard(launcher)
    desk.say(trainer, saved(5))
    desk.report()
    heard(trainer)
    desk.leaving.hear(INTERRUPTION)
    assert heard(trainer) == [
        Notice(order="n-1", kind=NoticeKind.INTERRUPTION, deadline_at=NOW + 100, leave=True, save=True)
    ]
    desk.turn()
    assert desk.nodes.beats[-1].flush is FlushOutcome.PENDING
    assert desk.phase is NodePhase.FLUSHING
    desk.say(trainer, saved(7, SaveKind.FLUSH))
    assert desk.uploads.pending[0].until_at == NOW + 100
    assert desk.outcome is FlushOutcome.PENDING
    desk.report()
    done = FlushDone(outcome=FlushOutcome.COMMITTED, step=7)
    assert heard(trainer)[-1] == done
    assert heard(launcher) == [done]
    desk.turn()
    told = desk.nodes.beats[-1]
    assert (told.phase, told.flush, told.flush_step) == (NodePhase.DRAINING, FlushOutcome.COMMITTED, 7)
    desk.hang_up(trainer)
    desk.say(launcher, Exited(code=75))
    desk.turn()
    assert isinstance(verdict := heard(launcher)[-1], Verdict)
    assert verdict.code == 75
    assert desk.nodes.beats[-1].phase.value == "draining"  # until it is killed


def test_a_flush_of_a_step_that_is_under_way_already_waits_for_that_upload(desk: Desk) -> None:
    trainer = desk.connect(Role.TRAINER)
    heard(trainer)
    desk.say(trainer, saved(7))
    desk.leaving.hear(INTERRUPTION)
    desk.say(trainer, saved(7, SaveKind.FLUSH, arena=-1))
    assert len(desk.uploads.pending) == 1
    assert desk.outcome is FlushOutcome.PENDING
    desk.report()
    assert desk.now_.outcome_step == 7
    assert str(desk.outcome) == "committed"


def test_a_trainer_that_dies_in_the_flush_leaves_the_last_commit(desk: Desk) -> None:
    trainer = desk.connect(Role.TRAINER)
    desk.say(trainer, saved(5))
    desk.report()
    desk.leaving.hear(INTERRUPTION)
    desk.turn()
    assert desk.outcome is FlushOutcome.PENDING
    desk.hang_up(trainer)
    desk.turn()
    assert (desk.now_.outcome, desk.now_.outcome_step) == (FlushOutcome.KEPT_LAST, 5)


def test_a_flush_whose_upload_is_given_up_too_late_for_another_try_has_failed(desk: Desk) -> None:
    trainer = desk.connect(Role.TRAINER)
    desk.leaving.hear(INTERRUPTION)
    desk.say(trainer, saved(7, SaveKind.FLUSH))
    desk.at = NOW + 100
    desk.report(is_lost=True)
    assert desk.outcome is FlushOutcome.FAILED


def test_an_earlier_deadline_is_passed_on(desk: Desk) -> None:
    trainer = desk.connect(Role.TRAINER)
    heard(trainer)
    desk.leaving.hear(INTERRUPTION)
    earlier = Heard(key="o-1", source=Source.HEAD, kind=NoticeKind.INTERRUPTION, deadline_at=NOW + 60, leave=True)
    desk.leaving.hear(earlier)
    assert [frame.deadline_at for frame in heard(trainer) if isinstance(frame, Notice)] == [NOW + 100, NOW + 60]
    assert desk.leaving.interruptions == 1


def test_an_order_from_before_joining_is_the_predecessors(tmp_path: Path, stack: ExitStack) -> None:
    desk = Desk(tmp_path, stack, generation=0)
    order = Heard(key="o-1", source=Source.HEAD, kind=NoticeKind.INTERRUPTION, deadline_at=NOW + 60, leave=True)
    desk.leaving.hear(order)
    assert desk.outcome is None
    desk.now_.generation = 4
    desk.leaving.hear(order)  # it still stands in HEAD
    assert desk.outcome is None
    desk.leaving.hear(INTERRUPTION)
    assert desk.outcome is not None


def test_a_parked_successor_that_is_interrupted_itself_never_starts_its_command(
    tmp_path: Path, stack: ExitStack
) -> None:
    desk = Desk(tmp_path, stack, generation=0)
    launcher = desk.connect(Role.LAUNCHER)
    desk.leaving.hear(INTERRUPTION)
    desk.launching.go()
    desk.turn()
    desk.turn()
    assert desk.outcome is FlushOutcome.KEPT_LAST
    assert [frame.code for frame in heard(launcher) if isinstance(frame, Verdict)] == [76]


def test_a_trainer_that_comes_while_the_node_leaves_is_told_at_once(desk: Desk) -> None:
    desk.leaving.hear(INTERRUPTION)
    assert desk.outcome is FlushOutcome.KEPT_LAST  # nobody trained: the last commit stands
    trainer = desk.connect(Role.TRAINER)
    kinds = [type(frame) for frame in heard(trainer)]
    assert kinds == [Welcome, Notice, FlushDone]


def test_a_command_without_a_run_gets_the_notice_through_its_launcher(desk: Desk) -> None:
    launcher = desk.connect(Role.LAUNCHER)
    heard(launcher)
    desk.leaving.hear(INTERRUPTION)
    assert [type(frame) for frame in heard(launcher)] == [Notice, FlushDone]


def test_a_person_who_ends_the_run_gets_a_last_save(desk: Desk) -> None:
    trainer, launcher = desk.connect(Role.TRAINER), desk.connect(Role.LAUNCHER)
    heard(trainer)
    notice = Notice(order="signal-15", kind=NoticeKind.MAINTENANCE, deadline_at=NOW + 25, leave=True)
    desk.say(launcher, notice)
    [told] = heard(trainer)
    assert isinstance(told, Notice)
    assert (told.leave, told.save) == (True, True)


def test_a_done_run_waits_for_its_last_upload_and_then_says_so(desk: Desk) -> None:
    trainer, launcher = desk.connect(Role.TRAINER), desk.connect(Role.LAUNCHER)
    heard(launcher)
    desk.say(trainer, saved(9, SaveKind.FINAL))
    desk.say(trainer, Finished(step=9))
    desk.hang_up(trainer)
    desk.say(launcher, Exited(code=0))
    assert heard(launcher) == []
    desk.report()
    desk.turn()
    [verdict] = heard(launcher)
    assert isinstance(verdict, Verdict)
    assert verdict.code == 0
    assert (desk.nodes.beats[-1].phase, desk.nodes.beats[-1].exit_code) == (NodePhase.DONE, 0)


def test_failures_without_progress_are_counted_and_progress_forgives_them(desk: Desk) -> None:
    launcher = desk.connect(Role.LAUNCHER)
    heard(launcher)
    trainer = desk.connect(Role.TRAINER)
    desk.say(trainer, Progress(step=1))
    desk.hang_up(trainer)
    desk.say(launcher, Exited(code=1))
    assert [type(frame) for frame in heard(launcher)] == [Go]  # one of two
    trainer = desk.connect(Role.TRAINER)
    desk.say(trainer, saved(5))
    desk.report()
    desk.hang_up(trainer)
    desk.say(launcher, Exited(code=-9))
    assert [type(frame) for frame in heard(launcher)] == [Go]  # step 5 is progress: one of two again
    desk.say(launcher, Exited(code=3))
    desk.turn()
    [verdict] = heard(launcher)
    assert isinstance(verdict, Verdict)
    assert verdict.code == 3
    assert desk.phase is NodePhase.FAILED


def test_a_container_that_was_killed_whole_is_a_failure_of_its_node(desk: Desk) -> None:
    launcher, trainer = desk.connect(Role.LAUNCHER), desk.connect(Role.TRAINER)
    desk.launching.check_nobody()
    desk.hang_up(launcher)
    desk.at += 1000
    desk.launching.check_nobody()
    assert not desk.has_ended()  # its trainer still trains
    desk.hang_up(trainer)
    desk.launching.check_nobody()
    desk.at += 31
    desk.launching.check_nobody()
    desk.turn()
    desk.launching.check_nobody()
    assert desk.phase is NodePhase.FAILED
    assert desk.has_ended()
    assert "no training command" in desk.lines[-1]


def test_a_node_whose_command_never_comes_fails_after_ten_minutes(desk: Desk) -> None:
    desk.launching.check_nobody()
    desk.at += 599
    desk.launching.check_nobody()
    assert str(desk.heart.condition.phase) == "booting"
    desk.at += 1
    desk.launching.check_nobody()
    assert desk.heart.condition.phase is NodePhase.FAILED


def test_a_second_command_in_the_same_folder_is_refused_and_the_first_goes_on(desk: Desk) -> None:
    first, second = desk.connect(Role.LAUNCHER), desk.connect(Role.LAUNCHER)
    assert [type(frame) for frame in heard(first)] == [Go]
    desk.at += 10
    desk.launching.go()
    [verdict] = heard(second)
    assert isinstance(verdict, Verdict)
    assert verdict.code == 78
    assert "another `spotproof run`" in verdict.says
    assert heard(first) == []


def test_a_second_trainer_of_a_rank_waits_for_the_first_to_go_and_is_refused_if_it_does_not(desk: Desk) -> None:
    first = desk.connect(Role.TRAINER)
    second, third = desk.connect(Role.TRAINER), desk.connect(Role.TRAINER)
    desk.trainers.check()
    assert (heard(second), heard(third)) == ([], [])
    desk.hang_up(first)
    desk.trainers.check()
    assert [type(frame) for frame in heard(second)] == [Welcome]
    desk.at += 10
    desk.trainers.check()
    assert [type(frame) for frame in heard(third)] == [RestoreFailed]


def test_a_trainer_that_was_turned_away_takes_no_arena_from_the_one_that_trains(desk: Desk) -> None:
    first, second = desk.connect(Role.TRAINER), desk.connect(Role.TRAINER)
    desk.hang_up(second)
    assert desk.uploads.reclaimed == 0
    desk.hang_up(first)
    assert desk.uploads.reclaimed == 1


def test_after_a_walk_back_a_flush_of_an_earlier_step_is_not_taken_for_committed(desk: Desk) -> None:
    first = desk.connect(Role.TRAINER)
    desk.say(first, WantRestore())
    desk.say(first, saved(20))
    desk.report()
    desk.hang_up(first)
    second = desk.connect(Role.TRAINER)
    desk.say(second, WantRestore())
    desk.trainers.fetched_again(FetchedAgain(fetched=fetched(step=10)))  # step 20 is damaged
    desk.leaving.hear(INTERRUPTION)
    desk.say(second, saved(15, SaveKind.FLUSH))
    assert desk.outcome is FlushOutcome.PENDING
    desk.report()
    assert (desk.outcome, desk.now_.outcome_step) == (FlushOutcome.COMMITTED, 15)


def test_a_service_that_is_silent_when_a_trainer_starts_again_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(membership, "POLL_S", 0.01)
    answers = iter([Unavailable("the bucket is silent"), Unavailable("still"), None])
    mailbox = Mailbox()

    def read() -> None:
        answer = next(answers)
        if answer is not None:
            raise answer

    nobody: Any = None
    joiner = membership.Joiner(table=nobody, post=mailbox.post, now=lambda: NOW, make_fetcher=nobody)
    with fetching(read, joiner=joiner, mailbox=mailbox) as fetch:
        fetch()
    assert list(mailbox.collect()) == [FetchedAgain(fetched=None)]
    mailbox.close()


def test_a_node_without_a_place_says_why_and_what_to_do(tmp_path: Path, stack: ExitStack) -> None:
    desk = Desk(tmp_path, stack, generation=0)
    desk.now_.refusal = BadSettings("this instance is bound to run b", next_step="tag it again")
    launcher = desk.connect(Role.LAUNCHER)
    [verdict] = heard(launcher)
    assert isinstance(verdict, Verdict)
    assert (verdict.code, verdict.says) == (78, "this instance is bound to run b. Next: tag it again")


def test_a_beat_that_fails_is_made_up_and_one_in_anothers_place_supersedes(desk: Desk) -> None:
    desk.nodes.fails = Unavailable("the table is silent")
    desk.heart.beat()
    assert (desk.heart.missed, desk.heart.is_told()) == (1, False)
    desk.nodes.fails = Superseded("slot 0 belongs to i-2")
    desk.heart.beat()
    assert desk.superseded == ["slot 0 belongs to i-2"]
    desk.nodes.fails = None
    desk.heart.beat()
    assert desk.heart.is_told()
    assert desk.nodes.beats[-1].beats == 3


def test_only_what_others_wait_for_is_told_at_once(desk: Desk) -> None:
    assert not desk.heart.say(Condition(step=4, loss=1.5))
    assert desk.heart.say(Condition(step=4, phase=NodePhase.FLUSHING))
    assert desk.heart.say(Condition(step=4, phase=NodePhase.FLUSHING, flush=FlushOutcome.PENDING))


def test_a_beat_is_small(desk: Desk) -> None:
    desk.heart.say(
        Condition(
            phase=NodePhase.SUPERSEDED,
            generation=10**6,
            step=10**9,
            loss=123.456789,
            flush=FlushOutcome.COMMITTED,
            flush_step=10**9,
            exit_code=76,
        )
    )
    desk.heart.beat()
    node = desk.nodes.beats[-1]
    from spotproof.contract.items import to_item

    item = {name: value for name, value in to_item(node).items() if name not in ("run", "slot", "incarnation")}
    size = sum(len(name) + len(str(value)) for name, value in item.items())
    assert size <= 200 - len("pkNODE#r#0skNODE#0000#000001")


def test_the_first_restore_and_the_first_step_are_moments_of_the_nodes_start(desk: Desk) -> None:
    desk.now_.passed(Moment.PARKED)
    desk.at += 3
    desk.now_.passed(Moment.JOINED)
    desk.at += 2
    trainer = desk.connect(Role.TRAINER)
    desk.say(trainer, WantRestore())
    desk.at += 1
    desk.say(trainer, Progress(step=1))
    desk.at += 1
    desk.say(trainer, Progress(step=2))
    start = int(NOW * 1000)
    assert times_of(desk.nodes.beats[-1].times or "").at_ms == (start, start + 3000, start + 5000, start + 6000)


def test_an_agent_that_was_started_again_tells_no_half_start(desk: Desk) -> None:
    """It finds its membership sealed and its trainer at work: the moments before are not its own to tell."""
    trainer = desk.connect(Role.TRAINER)
    desk.say(trainer, WantRestore())
    desk.say(trainer, Progress(step=41))
    assert desk.nodes.beats[-1].times is None

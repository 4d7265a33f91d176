"""One of many nodes follows what the launchers' rendezvous seals; the control plane's word comes through HEAD."""

from __future__ import annotations

import selectors
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from spotproof.agent.head import TableSays, WiderLook
from spotproof.agent.heartbeat import Place
from spotproof.agent.launching import Launching
from spotproof.agent.leaving import Leaving
from spotproof.agent.notices import Heard, Source
from spotproof.agent.server import Peer, Server
from spotproof.agent.shares import Shares, Wanted
from spotproof.agent.situation import Situation
from spotproof.agent.together import Standing, Together, departing, standing
from spotproof.agent.trainers import Trainers
from spotproof.checkpoint.commit import make_part
from spotproof.checkpoint.fetch import Fetched
from spotproof.contract.items import Generation, Head, Newest, PointerItem, pointer_rank
from spotproof.contract.protocol import Hello, Role
from spotproof.contract.runspec import Budgets, Pools, RunSpec
from spotproof.contract.settings import RendezvousSettings
from spotproof.contract.states import FlushOutcome, NoticeKind, RunStatus, SaveKind
from spotproof.errors import Damaged
from spotproof.store.head import Heads
from spotproof.store.joins import Joins
from spotproof.store.local import IN_MEMORY, LocalTable
from spotproof.store.members import Memberships
from spotproof.store.pointer import Pointers
from tests.fakes.checkpoints import content_of, image_of, save_of

PLACE = Place(run="r", slot=1, incarnation=2, instance="i-b")
SPEC = RunSpec(
    run="r",
    image="x@sha256:" + "0" * 64,
    command=("torchrun", "train.py"),
    pools=Pools(types=("g5.xlarge",)),
    slots=2,
    budgets=Budgets(trainer_failures=2),
)


def sealed(number: int, *members: str, start: tuple[int, int] | None = None) -> Generation:
    return Generation(
        run="r",
        generation=number,
        members=members or ("0:1:i-a", "1:2:i-b"),
        sealed_at=0,
        start_generation=None if start is None else start[0],
        start_step=None if start is None else start[1],
        start_manifest=None if start is None else "m",
    )


@pytest.mark.parametrize(
    ("newest", "members", "is_"),
    [
        (None, None, Standing.BESIDE),
        (Newest(run="r", generation=4), ("0:1:i-a", "1:2:i-b"), Standing.MEMBER),
        (Newest(run="r", generation=4, bad=3), ("0:1:i-a", "1:2:i-b"), Standing.MEMBER),
        (Newest(run="r", generation=4, bad=4), ("0:1:i-a", "1:2:i-b"), Standing.OVER),
        (Newest(run="r", generation=4), ("0:1:i-a", "1:3:i-c"), Standing.GIVEN_AWAY),
        (Newest(run="r", generation=4), ("0:1:i-a", "1:1:i-old"), Standing.BESIDE),
        (Newest(run="r", generation=5), ("0:1:i-a", "1:2:i-b"), Standing.BESIDE),  # GEN#5 was not read yet
    ],
)
def test_where_a_node_stands(newest: Newest | None, members: tuple[str, ...] | None, is_: Standing) -> None:
    assert standing(PLACE, newest, None if members is None else sealed(4, *members)) is is_


class Desk:
    """An agent of one of many nodes, without its threads."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self.lines: list[str] = []
        self.entered = 0
        self.now = Situation(
            runtime_dir=folder,
            now=lambda: 1000.0,
            log=self.lines.append,
            server=stack.enter_context(Server(folder, stack.enter_context(selectors.DefaultSelector()))),
            is_local=False,
            place=PLACE,
            spec=SPEC,
        )
        self.together = Together(situation=self.now, on_entered=self.enter)

    def enter(self) -> None:
        self.entered += 1

    def hear(self, generation: Generation, *, bad: int = 0, pointer: PointerItem | None = None) -> str:
        newest = Newest(run="r", generation=generation.generation, bad=bad)
        return self.together.hear(TableSays(newest=newest, sealed=generation, pointer=pointer, began_at=999.0))


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    with ExitStack() as stack:
        yield Desk(tmp_path, stack)


def test_it_follows_from_one_membership_to_the_next_and_stays_at_hand_between_them(desk: Desk) -> None:
    assert desk.hear(sealed(3)) == ""
    assert (desk.now.generation, desk.now.is_over, desk.entered) == (3, False, 1)
    assert desk.hear(sealed(3), bad=3) == ""
    assert (desk.now.generation, desk.now.is_over, desk.entered) == (3, True, 1)
    assert desk.hear(sealed(4, "0:2:i-c", "1:2:i-b", start=(3, 20)), bad=3) == ""
    assert (desk.now.generation, desk.now.is_over, desk.entered) == (4, False, 2)
    assert "i" not in desk.now.superseded
    assert desk.hear(sealed(5, "0:2:i-c", "1:3:i-d"), bad=3) != ""


def test_when_a_node_joined_is_sure_only_if_it_was_seen_outside_before(desk: Desk) -> None:
    desk.hear(sealed(3, "0:1:i-a", "1:1:i-old"))
    desk.hear(sealed(4))
    desk.hear(sealed(5))
    assert desk.now.joined_in == 4


def test_an_agent_that_starts_again_does_not_know_when_its_node_joined(desk: Desk) -> None:
    desk.hear(sealed(4))
    assert (desk.now.generation, desk.now.joined_in) == (4, 0)


def test_a_checkpoint_that_another_node_completed_is_heard_of(desk: Desk) -> None:
    desk.hear(sealed(3))
    desk.now.saves.parted = (3, 20)
    assert desk.now.is_saving
    pointer = PointerItem(
        run="r", generation=3, step=20, rank=pointer_rank(3, 20), manifest_key="m", manifest_digest="d"
    )
    desk.hear(sealed(3), pointer=pointer)
    assert (desk.now.saves.committed_generation, desk.now.saves.committed_step) == (3, 20)
    assert not desk.now.is_saving


def test_parts_that_nobody_will_complete_are_given_up_with_their_generation(desk: Desk) -> None:
    desk.hear(sealed(3))
    desk.now.saves.parted = (3, 20)
    desk.hear(sealed(3), bad=3)
    assert desk.now.is_saving  # the leaver may still complete it
    desk.hear(sealed(4, "0:2:i-c", "1:2:i-b"), bad=3)
    assert not desk.now.is_saving


def test_the_same_members_from_the_same_step_after_a_death_is_a_failure_and_progress_forgives(desk: Desk) -> None:
    def fails(number: int, *, start: tuple[int, int]) -> None:
        desk.now.training.died_in = number - 1
        desk.hear(sealed(number, start=start), bad=number - 1)

    desk.hear(sealed(1, start=(1, 5)))
    fails(2, start=(1, 5))
    assert (desk.now.training.failures, desk.now.training.is_hopeless) == (1, False)
    fails(3, start=(2, 10))
    assert desk.now.training.failures == 0
    desk.hear(sealed(4, start=(2, 10)), bad=3)  # ended by word: nobody died here
    fails(5, start=(2, 10))
    fails(6, start=(2, 10))
    assert desk.now.training.is_hopeless


def test_the_mark_in_head_becomes_the_membership_s() -> None:
    with LocalTable(IN_MEMORY) as table:
        heads, memberships = Heads(table), Memberships(table)
        heads.create(Head(run="r", status=RunStatus.ACTIVE, slots=2))
        memberships.seal(sealed(1), pointer=None)
        look = WiderLook(run="r", heads=heads, memberships=memberships, pointers=Pointers(table), now=lambda: 7.0)
        assert (look().began_at, look().sealed, look().newest) == (7.0, sealed(1), Newest(run="r", generation=1))
        heads.mark_bad("r", 1)
        assert look().newest == Newest(run="r", generation=1, bad=1)
        assert memberships.newest("r") == Newest(run="r", generation=1, bad=1)
        memberships.seal(sealed(2), pointer=None)
        assert look().newest == Newest(run="r", generation=2, bad=1)  # an old mark does not hit the next one


def test_leaving_marks_the_membership_and_the_node() -> None:
    with LocalTable(IN_MEMORY) as table:
        Memberships(table).seal(sealed(1), pointer=None)
        with departing(table, run="r", node="i-b") as depart:
            depart()
            depart()
        join = Joins(table).read("r", "i-b")
        assert join is not None
        assert join.gone
        assert Memberships(table).newest("r") == Newest(run="r", generation=1, bad=1)


class Answers:
    """Who was answered with what, and what is being read."""

    def __init__(self, situation: Situation) -> None:
        self.asked: list[Wanted] = []
        self.answered: list[tuple[int, Fetched | None]] = []
        self.damaged: list[str] = []
        self.shares = Shares(
            situation=situation, fetch=self.asked.append, answer=self.answer, on_damaged=self.damaged.append
        )

    def answer(self, peers: list[Peer], fetched: Fetched | None) -> None:
        self.answered.append((len(peers), fetched))


PARTED = make_part(save_of(20), content_of(image_of(20)), image_name="x")


def peer() -> Peer:
    return Peer(channel=None, pid=0)  # type: ignore[arg-type]


def part(step: int, rank: int) -> Any:
    fetched = object.__new__(Fetched)
    object.__setattr__(fetched, "order", (1, step))
    object.__setattr__(fetched, "part", replace(PARTED, rank=rank))
    object.__setattr__(fetched, "image_fd", -1)
    return fetched


def test_each_rank_gets_its_part_of_the_sealed_start(desk: Desk) -> None:
    desk.hear(sealed(3, start=(1, 20)))
    answers = Answers(desk.now)
    for rank in (2, 3):
        answers.shares.want(peer(), rank)
    assert [(one.order, one.rank) for one in answers.asked] == [((1, 20), 2), ((1, 20), 3)]
    answers.shares.fetched(answers.asked[1], part(20, 3), None)
    assert len(answers.answered) == 1
    answers.shares.fetched(answers.asked[0], None, Damaged("bits"))
    assert answers.damaged == ["bits"]  # the members choose again


def test_without_a_start_everybody_begins_at_zero_and_nobody_before_the_membership_stands(desk: Desk) -> None:
    answers = Answers(desk.now)
    answers.shares.want(peer(), 0)
    assert answers.answered == []
    desk.hear(sealed(3))
    answers.shares.check()
    assert answers.answered == [(1, None)]


def test_what_was_read_ahead_is_used_where_the_guess_was_right(desk: Desk) -> None:
    desk.hear(sealed(3, start=(1, 20)))
    ahead = part(20, 1)
    desk.now.fetched = ahead
    answers = Answers(desk.now)
    answers.shares.want(peer(), 1)
    assert (answers.answered, answers.asked) == ([(1, ahead)], [])


def test_several_ranks_of_one_node_restore_what_it_committed_once_nothing_is_under_way(desk: Desk) -> None:
    now = desk.now
    now.spec = replace(SPEC, slots=1)
    now.generation = 1
    now.saves.committed_generation, now.saves.committed_step = 1, 20
    now.saves.parted = (1, 30)
    answers = Answers(now)
    first = peer()
    answers.shares.want(first, 0)
    assert answers.asked == []
    now.saves.committed_step = 30
    answers.shares.check()
    answers.shares.want(peer(), 1)
    assert [(one.order, one.rank) for one in answers.asked] == [((1, 30), 0), ((1, 30), 1)]


def test_torchrun_is_told_where_the_table_is_and_which_place_is_its_own(desk: Desk) -> None:
    table = RendezvousSettings(table="t", bucket="b", region="eu-west-1", address="10.0.0.7")
    launching = Launching(situation=desk.now, on_person=lambda _: None, rendezvous=table)
    desk.now.spec = spec = replace(SPEC, environment=("PET_MAX_RESTARTS=5",))
    go = launching._go(spec)
    told = dict(entry.split("=", 1) for entry in go.environment)  # as the launcher reads them: the last one wins
    assert go.waits_to_be_stopped
    assert (told["PET_RDZV_BACKEND"], told["PET_RDZV_ID"], told["PET_NNODES"]) == ("spotproof", "r", "2")
    assert told["PET_MAX_RESTARTS"] == "5"
    assert RendezvousSettings.from_env(told) == replace(table, instance="i-b", slot=1, incarnation=2)


def test_alone_the_command_gets_what_the_spec_says_and_nothing_else(desk: Desk) -> None:
    desk.now.spec = spec = replace(SPEC, slots=1, environment=("A=1",))
    go = Launching(situation=desk.now, on_person=lambda _: None)._go(spec)
    assert (go.environment, go.waits_to_be_stopped) == (("A=1",), False)


def test_a_survivors_flush_is_tried_again_until_the_leaver_goes(desk: Desk) -> None:
    trainers = Trainers(situation=desk.now, fetch=lambda: None)
    leaving = Leaving(situation=desk.now)
    desk.hear(sealed(3))
    assert trainers._needed_until(SaveKind.FLUSH) == 0.0
    order = Heard(key="o", source=Source.HEAD, kind=NoticeKind.INTERRUPTION, deadline_at=1120.0, leave=False)
    leaving.hear(order)
    assert trainers._needed_until(SaveKind.FLUSH) == 1120.0
    assert trainers._needed_until(SaveKind.PERIODIC) == 0.0
    leaving.hear(replace(order, key="mine", deadline_at=1090.0, leave=True))
    assert trainers._needed_until(SaveKind.FLUSH) == 1090.0


def test_a_leaver_takes_itself_out_once_it_has_flushed_and_an_earlier_flush_for_another_node_does_not_count(
    desk: Desk,
) -> None:
    departed: list[bool] = []
    leaving = Leaving(situation=desk.now, depart=lambda: departed.append(True))
    desk.hear(sealed(3))
    desk.now.saves.flush_asked_step = desk.now.saves.committed_step = 20  # for a node that left before
    desk.now.server.peers.append(trainer := peer())
    trainer.hello = Hello(role=Role.TRAINER, pid=1, rank=1, world=2)
    desk.now.server.send = lambda *_: None  # type: ignore[method-assign]
    mine = Heard(key="o", source=Source.HEAD, kind=NoticeKind.INTERRUPTION, deadline_at=1120.0, leave=True)
    leaving.hear(mine)
    leaving.check()
    assert (desk.now.outcome, departed) == (FlushOutcome.PENDING, [])
    desk.now.saves.flush_asked_step = desk.now.saves.committed_step = 31
    leaving.check()
    assert (desk.now.outcome, departed) == (FlushOutcome.COMMITTED, [True])
    desk.now.server.peers.clear()


@pytest.mark.parametrize(("slots", "departs"), [(2, [True]), (1, [])])
def test_one_of_many_that_has_not_joined_stands_down_with_its_run(desk: Desk, slots: int, departs: list[bool]) -> None:
    """Else it would take the place of a member that leaves because the run is paused."""
    departed: list[bool] = []
    desk.now.spec = replace(SPEC, slots=slots)
    Leaving(situation=desk.now, depart=lambda: departed.append(True)).stand_down()
    assert departed == departs
    assert desk.now.notices.leaving is None


def test_a_node_that_stands_by_and_is_told_to_leave_takes_itself_out(desk: Desk) -> None:
    departed: list[bool] = []
    desk.now.is_ready = True
    leaving = Leaving(situation=desk.now, depart=lambda: departed.append(True))
    leaving.hear(Heard(key="m", source=Source.METADATA, kind=NoticeKind.INTERRUPTION, deadline_at=1120.0, leave=True))
    assert departed == [True]  # at once: it has nothing to save, and must take no place any more


@pytest.mark.parametrize("elastic", ["", "1..2"])
def test_a_rank_may_take_another_ones_part_in_an_elastic_run_alone(desk: Desk, elastic: str) -> None:
    desk.now.spec = replace(SPEC, elastic=elastic)
    desk.hear(sealed(3, start=(1, 20)))
    answers = Answers(desk.now)
    answers.shares.want(peer(), 5)
    [asked] = answers.asked
    assert asked.any_world is bool(elastic)
    answers.shares.fetched(asked, part(20, 1), None)
    assert len(answers.answered) == 1


def test_an_elastic_runs_torchrun_is_told_how_few_are_enough(desk: Desk) -> None:
    desk.now.spec = spec = replace(SPEC, slots=4, standby=1, elastic="2..4", regrow_after_s=7)
    told = dict(
        entry.split("=", 1) for entry in Launching(situation=desk.now, on_person=lambda _: None)._go(spec).environment
    )
    assert (told["PET_NNODES"], told["PET_RDZV_CONF"]) == ("2:4", "regrow=7")

"""A notice with time to spare: training goes on between two flushes; a flush that was given up is tried again."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from spotproof.agent.decide import LAST_FLUSH_CARE, LAST_FLUSH_EXTRA_S
from spotproof.agent.leaving import TRIES_MAX, TRY_AGAIN_S
from spotproof.agent.notices import Heard, Source
from spotproof.checkpoint.channel import Channel
from spotproof.contract.protocol import FlushDone, Notice, Progress, Role
from spotproof.contract.states import FlushOutcome, InterruptionAction, SaveKind
from tests.unit.agent.test_conversation import INTERRUPTION, NOW, Desk, heard, saved

GB = 10**9
SPOT = dataclasses.replace(INTERRUPTION, deadline_at=NOW + 120, action=InterruptionAction.TERMINATE)


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    with ExitStack() as stack:
        desk = Desk(tmp_path, stack)
        desk.uploads.image_bytes, desk.uploads.rate_bytes_s = GB, 0.1 * GB  # 10 s to upload, 0.5 s to copy
        yield desk


def training(desk: Desk) -> Channel:
    trainer = desk.connect(Role.TRAINER)
    desk.say(trainer, saved(5))
    desk.report()
    heard(trainer)
    return trainer


def notices(trainer: Channel) -> list[tuple[bool, bool]]:
    """(leave, save) of each."""
    return [(frame.leave, frame.save) for frame in heard(trainer) if isinstance(frame, Notice)]


def last_flush_at() -> float:
    return NOW + 110 - LAST_FLUSH_CARE * 10.5 - LAST_FLUSH_EXTRA_S


def test_training_goes_on_after_the_first_flush_and_the_last_one_still_fits(desk: Desk) -> None:
    trainer = training(desk)
    desk.leaving.hear(SPOT)
    assert notices(trainer) == [(False, True)]
    desk.say(trainer, saved(7, SaveKind.EXTRA))
    assert desk.uploads.pending[0].until_at == NOW + 120
    desk.report()
    assert desk.outcome is FlushOutcome.PENDING
    desk.at = last_flush_at() - 0.1
    desk.turn()
    assert notices(trainer) == []
    desk.at = last_flush_at()
    desk.turn()
    desk.turn()
    assert notices(trainer) == [(True, True)]
    desk.say(trainer, saved(90, SaveKind.FLUSH))
    desk.report()
    assert (desk.outcome, desk.now_.outcome_step) == (FlushOutcome.COMMITTED, 90)


def test_when_the_last_flush_comes_too_late_the_first_one_stands(desk: Desk) -> None:
    trainer = training(desk)
    desk.leaving.hear(SPOT)
    desk.say(trainer, saved(7, SaveKind.EXTRA))
    desk.report()
    desk.at = last_flush_at()
    desk.turn()
    desk.say(trainer, saved(90, SaveKind.FLUSH))
    desk.at = NOW + 120
    desk.turn()
    assert (desk.outcome, desk.now_.outcome_step) == (FlushOutcome.FAILED, 7)


def test_training_between_two_flushes_ends_when_the_successor_is_ready(desk: Desk) -> None:
    trainer = training(desk)
    desk.leaving.hear(SPOT)
    heard(trainer)
    desk.leaving.is_awaited = True
    desk.say(trainer, saved(7, SaveKind.EXTRA))
    assert notices(trainer) == []  # the first flush is not durable yet
    desk.report()
    assert notices(trainer) == [(True, True)]
    desk.say(trainer, saved(9, SaveKind.FLUSH))
    desk.report()
    assert (desk.outcome, desk.now_.outcome_step) == (FlushOutcome.COMMITTED, 9)


def test_a_trainer_that_dies_between_two_flushes_leaves_the_first_one(desk: Desk) -> None:
    trainer = training(desk)
    desk.leaving.hear(SPOT)
    desk.say(trainer, saved(7, SaveKind.EXTRA))
    desk.report()
    desk.hang_up(trainer)
    desk.turn()
    assert (desk.outcome, desk.now_.outcome_step) == (FlushOutcome.KEPT_LAST, 7)


def test_an_earlier_deadline_ends_the_training_between_two_flushes(desk: Desk) -> None:
    trainer = training(desk)
    desk.leaving.hear(SPOT)
    heard(trainer)
    earlier = dataclasses.replace(SPOT, key="o-1", source=Source.HEAD, deadline_at=NOW + 40)
    desk.leaving.hear(earlier)
    assert notices(trainer) == [(True, True)]


@pytest.mark.parametrize(
    "notice",
    [
        dataclasses.replace(SPOT, deadline_at=NOW + 60),
        dataclasses.replace(SPOT, action=InterruptionAction.HIBERNATE),
        dataclasses.replace(SPOT, source=Source.PERSON),
        INTERRUPTION,
    ],
    ids=["too short", "hibernation begins at once", "a person wants an end", "nobody says what EC2 will do"],
)
def test_only_one_flush_where_training_on_is_not_worth_it_or_not_meant(desk: Desk, notice: Heard) -> None:
    trainer = training(desk)
    desk.leaving.hear(notice)
    assert notices(trainer) == [(True, True)]


def test_nobody_trains_on_before_a_flush_has_been_measured(desk: Desk) -> None:
    desk.uploads.rate_bytes_s = None
    trainer = training(desk)
    desk.leaving.hear(SPOT)
    assert notices(trainer) == [(True, True)]


def test_a_flush_that_was_given_up_with_time_left_is_tried_again_and_counts(desk: Desk) -> None:
    trainer = training(desk)
    desk.leaving.hear(INTERRUPTION)
    desk.say(trainer, saved(7, SaveKind.FLUSH))
    heard(trainer)
    desk.report(is_lost=True)
    assert notices(trainer) == [(True, True)]
    assert desk.outcome is FlushOutcome.PENDING
    desk.say(trainer, saved(7, SaveKind.FLUSH))
    desk.report()
    assert (desk.outcome, desk.now_.outcome_step) == (FlushOutcome.COMMITTED, 7)
    assert any("try 2" in line and "the bucket is gone" in line for line in desk.lines)


def test_tries_have_an_end_and_a_distance(desk: Desk) -> None:
    trainer = training(desk)
    desk.leaving.hear(INTERRUPTION)
    for number in range(TRIES_MAX):
        desk.say(trainer, saved(7, SaveKind.FLUSH))
        heard(trainer)
        desk.report(is_lost=True)
        if number == 1:
            assert notices(trainer) == []
            desk.at += TRY_AGAIN_S
            desk.turn()
            assert notices(trainer) == [(True, True)]
    assert desk.outcome is FlushOutcome.FAILED
    assert isinstance(heard(trainer)[-1], FlushDone)


def test_what_was_chosen_and_why_is_in_the_nodes_item_within_the_turn(desk: Desk) -> None:
    training(desk)
    desk.uploads.rate_bytes_s = 0.001 * GB
    desk.leaving.hear(SPOT)
    desk.turn()
    told = desk.nodes.beats[-1]
    assert told.flush is FlushOutcome.KEPT_LAST
    assert told.flush_why is not None
    assert told.flush_why.startswith("keep-last: a flush needs about 1000")


def test_the_age_of_a_long_step_counts(desk: Desk) -> None:
    """60 s a step, 55 s of it are over: what needs 15 s fits into 30."""
    trainer = training(desk)
    desk.say(trainer, Progress(step=6, step_seconds=60.0))
    heard(trainer)
    desk.at += 55
    desk.leaving.hear(dataclasses.replace(INTERRUPTION, deadline_at=desk.at + 40))
    assert notices(trainer) == [(True, True)]


def test_a_layout_that_cannot_flush_in_its_notice_is_said_at_its_start_and_once(desk: Desk) -> None:
    """60 GB over the 2.5 Gb/s of a g5.xlarge; then a save shows that the wire is faster than its type promises."""
    desk.uploads.image_bytes, desk.uploads.rate_bytes_s = 60 * GB, None
    desk.trainers._say_outlook()
    desk.trainers._say_outlook()
    assert [line for line in desk.lines if "it does not fit; would help: instance types" in line] == [
        "preflight: it does not fit; would help: instance types with at least 8.0 Gb/s to S3"
    ]
    desk.uploads.rate_bytes_s = 2.0 * GB
    trainer = desk.connect(Role.TRAINER)
    desk.say(trainer, saved(5))
    desk.report()
    assert desk.lines[-1].startswith("preflight: a flush of 60.0 GB needs 60 s of 90 s")

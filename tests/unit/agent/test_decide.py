"""What the remaining seconds are worth, as a table; and how a run ends, as another."""

from __future__ import annotations

import dataclasses

import pytest

from spotproof.agent.decide import Choice, Ending, Moment, budget_s, decide, shell_code, verdict
from spotproof.contract.states import FlushOutcome

GB = 10**9
NOW = 1_000_000.0


def moment(*, left_s: float = 120, **changes: object) -> Moment:
    plain = Moment(
        now=NOW,
        deadline_at=NOW + left_s,
        has_trainer=True,
        step=100,
        committed_step=90,
        image_bytes=10 * GB,
        step_s=1.0,
        rate_bytes_s=0.2 * GB,  # 50 s for an image
    )
    return dataclasses.replace(plain, **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("what", "at", "choice"),
    [
        ("a flush fits", moment(), Choice.FLUSH),
        ("nothing is measured: trying costs nothing", moment(image_bytes=None, rate_bytes_s=None), Choice.FLUSH),
        ("no rate yet", moment(rate_bytes_s=None), Choice.FLUSH),
        ("a flush does not fit behind nothing", moment(left_s=50), Choice.KEEP_LAST),
        (
            "what is under way fits, a flush behind it does not",
            moment(left_s=60, uploading_step=98, uploading_bytes_left=4 * GB),
            Choice.FINISH_UPLOAD,
        ),
        (
            "a flush fits behind what is under way",
            moment(left_s=120, uploading_step=98, uploading_bytes_left=4 * GB),
            Choice.FLUSH,
        ),
        (
            "what is under way is older than what is committed",
            moment(left_s=50, uploading_step=80, uploading_bytes_left=4 * GB),
            Choice.KEEP_LAST,
        ),
        ("a step takes longer than the notice", moment(step_s=200.0), Choice.KEEP_LAST),
        (
            "no boundary fits, the upload does",
            moment(step_s=200.0, uploading_step=98, uploading_bytes_left=GB),
            Choice.FINISH_UPLOAD,
        ),
        ("it does not fit, but there is nothing to keep", moment(left_s=50, committed_step=-1), Choice.FLUSH),
        ("most of it is in the bucket already", moment(left_s=50, lacking_bytes=GB), Choice.FLUSH),
        ("a long step is nearly over", moment(left_s=80, step_s=60.0, step_age_s=55.0), Choice.FLUSH),
        ("a long step has just begun", moment(left_s=80, step_s=60.0, step_age_s=5.0), Choice.KEEP_LAST),
        (
            "a step is overdue: it may take as long again",
            moment(left_s=80, step_s=60.0, step_age_s=65.0),
            Choice.KEEP_LAST,
        ),
        ("many ranks stop a step later", moment(left_s=80, step_s=10.0, boundaries=2), Choice.KEEP_LAST),
        ("one rank stops at once", moment(left_s=80, step_s=10.0), Choice.FLUSH),
        ("the deadline has passed", moment(left_s=-1), Choice.KEEP_LAST),
        (
            "the trainer is dead, its last image is under way",
            moment(has_trainer=False, uploading_step=99),
            Choice.FINISH_UPLOAD,
        ),
        ("nobody trains", moment(has_trainer=False), Choice.PARK),
    ],
)
def test_the_choice(what: str, at: Moment, choice: Choice) -> None:
    decision = decide(at)
    assert decision.choice is choice, f"{what}: {decision.reason}"
    assert decision.reason


@pytest.mark.parametrize(("left_s", "budget"), [(120, 110), (108, 98), (40, 30), (20, 15), (4, 3), (0, 0), (-5, 0)])
def test_the_budget_keeps_ten_seconds_and_of_a_short_notice_a_quarter(left_s: float, budget: float) -> None:
    assert budget_s(now=NOW, deadline_at=NOW + left_s) == budget


@pytest.mark.parametrize(
    ("ending", "code"),
    [
        (Ending(code=0), 0),
        (Ending(code=0, is_last_save_lost=True), 1),
        (Ending(code=3, failures=1, allowed=1), 3),
        (Ending(code=-9, failures=1, allowed=1), 137),
        (Ending(code=75, is_leaving=True, outcome=FlushOutcome.COMMITTED), 75),
        (Ending(code=-15, is_leaving=True, outcome=FlushOutcome.COMMITTED), 75),
        (Ending(code=75, is_leaving=True, outcome=FlushOutcome.FAILED), 76),
        (Ending(code=0, is_leaving=True, outcome=FlushOutcome.KEPT_LAST), 76),
        (Ending(code=0, is_leaving=True, is_paused=True, outcome=FlushOutcome.COMMITTED), 77),
        (Ending(code=-9, is_superseded=True, is_leaving=True, outcome=FlushOutcome.COMMITTED), 76),
        (Ending(code=78, failures=1, allowed=3), 78),
    ],
)
def test_the_exit_code_follows_the_commit_record(ending: Ending, code: int) -> None:
    word = verdict(ending)
    assert (word.again, word.code) == (False, code)
    assert word.says


def test_a_trainer_that_failed_is_started_again_while_failures_are_left() -> None:
    assert verdict(Ending(code=1, failures=2, allowed=3)).again
    assert not verdict(Ending(code=1, failures=3, allowed=3)).again
    assert not verdict(Ending(code=1, failures=1, allowed=3, is_leaving=True)).again


def test_a_signal_is_told_as_a_shell_tells_it() -> None:
    assert [shell_code(code) for code in (0, 5, -15, -9)] == [0, 5, 143, 137]


@pytest.mark.parametrize("left_s", range(1, 400, 7))
@pytest.mark.parametrize("rate", [0.02, 0.1, 0.2, 1.0])
def test_what_is_begun_is_never_expected_after_the_deadline(left_s: float, rate: float) -> None:
    at = moment(left_s=left_s, rate_bytes_s=rate * GB, may_train_on=True, uploading_step=95, uploading_bytes_left=GB)
    decision = decide(at)
    if decision.choice is Choice.FLUSH:
        flush_s = 1.0 + 10 / 2 + 11 / rate
        assert flush_s <= decision.budget_s <= left_s
        assert not decision.again_at or decision.again_at + flush_s < at.deadline_at
        assert not decision.again_at or decision.again_at >= NOW + flush_s

"""When a run with a deadline stops waiting for Spot."""

from __future__ import annotations

import pytest

from spotproof.plan.deadline import Progress, is_late

START = 1_000_000
DAY_S = 86_400


def progress(step: int = 0, committed_after_s: int = 0) -> Progress:
    return Progress(
        submitted_at=START,
        deadline_s=DAY_S,
        deadline_step=1000,
        step=step,
        committed_at=START + committed_after_s if step else 0,
    )


@pytest.mark.parametrize(
    ("step", "committed_after_s", "now_s", "late"),
    [
        pytest.param(0, 0, 0, False, id="it has just begun"),
        pytest.param(0, 0, DAY_S // 2, False, id="half of the time without a commit"),
        pytest.param(0, 0, DAY_S // 2 + 1, True, id="more than half without one"),
        pytest.param(500, DAY_S // 4, DAY_S // 4, False, id="twice as fast as needed"),
        pytest.param(500, DAY_S // 4, 3 * DAY_S // 4, False, id="the slack is just used up"),
        pytest.param(500, DAY_S // 4, 3 * DAY_S // 4 + 1, True, id="and now it is"),
        pytest.param(100, DAY_S // 2, DAY_S // 2, True, id="it has waited too long already"),
        pytest.param(1000, DAY_S // 2, 2 * DAY_S, False, id="it is there"),
        pytest.param(999, DAY_S - 60, DAY_S + 1, True, id="the deadline has passed"),
    ],
)
def test_lateness(step: int, committed_after_s: int, now_s: int, late: bool) -> None:
    assert is_late(progress(step, committed_after_s), now=START + now_s) is late


def test_once_late_waiting_makes_it_no_earlier() -> None:
    seen = [is_late(progress(300, 20_000), now=START + now_s) for now_s in range(20_000, 2 * DAY_S, 500)]
    assert seen == sorted(seen)
    assert {False, True} == set(seen)

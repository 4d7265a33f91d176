"""The benchmark of the last seconds, at a size for the suite: a real uploader process behind a slow wire."""

from __future__ import annotations

import pytest

from benchmarks.flush_deadline import SMALL, at_share, problems, sets
from spotproof.agent.decide import Choice


@pytest.mark.parametrize(("share", "choice"), [(0.6, Choice.KEEP_LAST), (2.0, Choice.FLUSH)])
def test_what_fits_is_committed_in_time_and_what_does_not_is_not_begun(share: float, choice: Choice) -> None:
    row = at_share(SMALL, share)
    assert row["choice"] == choice, row["why"]
    assert problems(row) == []


def test_one_set_after_the_other_leaves_more_whole_sets_than_all_at_once() -> None:
    assert sets(SMALL, staggered=True) > sets(SMALL, staggered=False)

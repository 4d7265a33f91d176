"""What the agent learns of an upload's speed, from which it decides what its last seconds are worth."""

from __future__ import annotations

import pytest

from spotproof.agent.decide import Choice, Moment, decide
from spotproof.agent.uploads import Uploads
from spotproof.checkpoint.jobs import Begin, Done, Report
from spotproof.contract.states import SaveKind

GB = 1_000_000_000


class FakeUploads:
    """Reports one commit of an image that is in the bucket already but for a hundredth."""

    def __init__(self, begin: Begin) -> None:
        self.begin = begin

    def reports(self) -> list[Report]:
        return [
            Done(
                rank=0,
                generation=1,
                step=5,
                kind=SaveKind.PERIODIC,
                bytes=10 * GB,
                sent_bytes=GB // 10,
                seconds=8.0,
                is_committed=True,
                is_pointed=True,
            )
        ]


def test_a_flush_of_which_most_is_in_the_bucket_already_is_worth_trying(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("spotproof.checkpoint.uploads.Uploads", FakeUploads)
    uploads = Uploads(Begin(run="r", scratch_dir=""), was_committed=lambda generation, step: False)
    assert len(list(uploads.reports())) == 1
    moment = Moment(
        now=0.0,
        deadline_at=100.0,
        has_trainer=True,
        step=9,
        committed_step=5,
        image_bytes=10 * GB,
        step_s=1.0,
        rate_bytes_s=uploads.rate_bytes_s,
    )
    assert decide(moment).choice is Choice.FLUSH

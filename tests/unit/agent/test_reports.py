"""What the agent makes of an upload's report: its speed, and whether a save that was given up is durable after all."""

from __future__ import annotations

from pathlib import Path

import pytest

from spotproof.agent.decide import Choice, Moment, decide
from spotproof.agent.main import was_committed
from spotproof.agent.uploads import Uploads
from spotproof.checkpoint.jobs import Begin, Done, Report
from spotproof.contract.items import Quarantine
from spotproof.contract.states import SaveKind
from tests.fakes.checkpoints import RUN, Rig, image_of

GB = 1_000_000_000


class FakeUploads:
    """Reports one commit of an image that is in the bucket already but for a hundredth."""

    pending = ()
    sending = None

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
        lacking_bytes=uploads.lacking_bytes,
        rate_bytes_s=uploads.rate_bytes_s,
    )
    assert decide(moment).choice is Choice.FLUSH


def test_a_save_that_was_given_up_is_durable_if_its_manifest_is_there_and_not_quarantined(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    with rig.table:
        checkpoints = rig.stores.checkpoints
        assert not was_committed(rig.objects, checkpoints, RUN, (1, 5))
        rig.commit(5, image_of(5))
        assert was_committed(rig.objects, checkpoints, RUN, (1, 5))
        checkpoints.quarantine(Quarantine(run=RUN, generation=1, step=5, reason="a chunk is gone", found_at=1))
        assert not was_committed(rig.objects, checkpoints, RUN, (1, 5))

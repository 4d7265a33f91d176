"""A node that could not join has nothing to tell a trainer, whenever that one comes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from spotproof.checkpoint.channel import Ended
from spotproof.contract.protocol import Role
from spotproof.errors import NoLoadableCheckpoint
from tests.unit.agent.test_conversation import Desk


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    with ExitStack() as stack:
        yield Desk(tmp_path, stack, generation=0)


def test_a_trainer_that_comes_after_the_refusal_does_not_wait_for_ever(desk: Desk) -> None:
    """It connected while the restore failed and said hello afterwards: nobody would ever have answered it."""
    desk.now_.refusal = NoLoadableCheckpoint("step 5 is damaged", next_step="look at the folder")
    trainer = desk.connect(Role.TRAINER)
    with pytest.raises(Ended):
        trainer.receive(timeout_s=5)
    assert desk.server.peers == []

"""One rank agrees with itself, one step late; what a wish becomes does not depend on how many ranks there are."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from torch import distributed as dist

from spotproof.errors import BadSettings
from spotproof.rendezvous.consensus import StopConsensus, Wish

pytestmark = pytest.mark.torch
NOTHING, SAVE, STOP = Wish.NOTHING, Wish.SAVE, Wish.STOP


@pytest.fixture
def alone() -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)  # type: ignore[attr-defined]
    yield
    dist.destroy_process_group()


@pytest.mark.parametrize(
    ("every", "wishes", "agreed"),
    [
        (1, (NOTHING, SAVE, NOTHING, NOTHING), (NOTHING, NOTHING, SAVE, NOTHING)),
        (1, (SAVE, SAVE, NOTHING, NOTHING), (NOTHING, SAVE, NOTHING, NOTHING)),  # the second is the first one's
        (1, (SAVE, STOP, NOTHING, NOTHING), (NOTHING, SAVE, STOP, NOTHING)),  # a greater wish outlives a smaller one
        (1, (STOP, SAVE, NOTHING, NOTHING), (NOTHING, STOP, NOTHING, NOTHING)),
        (2, (NOTHING, SAVE, NOTHING, NOTHING, NOTHING), (NOTHING, NOTHING, NOTHING, NOTHING, SAVE)),
    ],
)
@pytest.mark.usefixtures("alone")
def test_what_is_agreed_upon_and_when(every: int, wishes: tuple[Wish, ...], agreed: tuple[Wish, ...]) -> None:
    consensus = StopConsensus(every=every)
    assert tuple(consensus.agree(wish) for wish in wishes) == agreed
    consensus.end()


@pytest.mark.usefixtures("alone")
def test_ranks_that_begin_at_one_step_may_begin() -> None:
    consensus = StopConsensus()
    consensus.check_same(20)
    consensus.end()


def test_without_a_process_group_it_says_what_to_do() -> None:
    with pytest.raises(BadSettings, match="no process group"):
        StopConsensus()

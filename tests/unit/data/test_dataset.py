"""The position in the data: the same batches as the plain loop, entered again anywhere, any number of times."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import BatchSampler, DataLoader, Dataset, IterableDataset, RandomSampler, WeightedRandomSampler

from spotproof.data.dataset import GENESIS, Feed, chained
from spotproof.errors import MismatchedState, SpotproofError

pytestmark = pytest.mark.torch
SAMPLES = 23


class Numbers(Dataset[torch.Tensor]):
    """Sample i, with noise from the global generator when it is fetched in this process."""

    def __init__(self, *, noisy: bool = True) -> None:
        self.noisy = noisy
        self.fetched: list[int] = []

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> torch.Tensor:
        self.fetched.append(index)
        noise = torch.rand(()) if self.noisy else torch.tensor(0.5)
        return torch.stack([torch.tensor(float(index)), noise])


class Counted(IterableDataset[torch.Tensor]):
    def __iter__(self) -> Iterator[torch.Tensor]:
        return iter([torch.tensor([float(index), random.random()]) for index in range(SAMPLES)])


def loaders() -> dict[str, Any]:
    weights = torch.arange(1, SAMPLES + 1, dtype=torch.float)

    def own() -> torch.Generator:
        return torch.Generator().manual_seed(99)

    return {
        "shuffled": lambda: DataLoader(Numbers(), batch_size=4, shuffle=True),
        "own generator": lambda: DataLoader(Numbers(), batch_size=4, shuffle=True, generator=own()),
        "in order, drop last": lambda: DataLoader(Numbers(), batch_size=5, drop_last=True),
        "weighted": lambda: DataLoader(Numbers(), batch_size=3, sampler=WeightedRandomSampler(weights.tolist(), 10)),
        "weighted, own generator": lambda: DataLoader(
            Numbers(), batch_size=3, sampler=WeightedRandomSampler(weights.tolist(), 10, generator=own())
        ),
        "own batch sampler": lambda: DataLoader(
            Numbers(), batch_sampler=BatchSampler(RandomSampler(range(SAMPLES), generator=own()), 4, drop_last=False)
        ),
        "no batches": lambda: DataLoader(Numbers(), batch_size=None, shuffle=True),
        "iterable dataset": lambda: DataLoader(Counted(), batch_size=4),
        "a list": lambda: [torch.tensor([float(index)]) for index in range(7)],
    }


def seed() -> None:
    torch.manual_seed(5)
    random.seed(5)


def plain(loader: Any, epochs: int) -> list[list[float]]:
    """What a loop without spotproof sees, with a draw after each batch as dropout makes."""
    seen: list[list[float]] = []
    for _ in range(epochs):
        seen += [[*batch.flatten().tolist(), torch.rand(()).item(), random.random()] for batch in loader]
    return seen


def tracked(feed: Feed, batches: int) -> list[list[float]]:
    """The next `batches` through a feed."""
    seen: list[list[float]] = []
    while len(seen) < batches:
        for piece in feed.pieces():
            seen.append([*piece.batch.flatten().tolist(), torch.rand(()).item(), random.random()])
            feed.advance()
            if feed.is_epoch_over:
                feed.end_epoch()
            if len(seen) == batches:
                return seen
        if not feed.is_epoch_over and feed.position.in_epoch:
            feed.end_epoch()
    return seen


@pytest.mark.parametrize("name", loaders())
def test_a_feed_sees_what_the_plain_loop_sees(name: str) -> None:
    make = loaders()[name]
    seed()
    expected = plain(make(), 3)
    seed()
    assert tracked(Feed(make()), len(expected)) == expected


@pytest.mark.parametrize("name", loaders())
def test_it_goes_on_exactly_however_often_it_is_interrupted(name: str) -> None:
    make = loaders()[name]
    seed()
    expected = plain(make(), 3)
    seen: list[list[float]] = []
    state, rng = None, None
    seed()
    while len(seen) < len(expected):
        feed = Feed(make())  # another process: fresh objects, other generators
        if state is not None and rng is not None:
            torch.manual_seed(12345)
            feed.load(json_round_trip(state))
            torch.set_rng_state(rng[0])
            random.setstate(rng[1])
        seen += tracked(feed, min(3, len(expected) - len(seen)))
        state, rng = feed.state(), (torch.get_rng_state(), random.getstate())
    assert seen == expected


def json_round_trip(state: dict[str, Any]) -> dict[str, Any]:
    """Only plain values are stored."""
    json.dumps(state, default=lambda value: list(value) if isinstance(value, bytes) else pytest.fail(repr(value)))
    return state


def test_batches_that_are_done_are_not_fetched_again() -> None:
    seed()
    feed = Feed(DataLoader(Numbers(), batch_size=4, shuffle=True))
    tracked(feed, 4)
    numbers = Numbers()
    again = Feed(DataLoader(numbers, batch_size=4, shuffle=True))
    again.load(feed.state())
    tracked(again, 1)
    assert len(numbers.fetched) == 4


@pytest.mark.parametrize("is_persistent", [False, True])
@pytest.mark.parametrize("stops", [[4], [6], [8], [2, 14]])
def test_workers_see_the_same_order(stops: list[int], is_persistent: bool) -> None:
    def make() -> DataLoader[torch.Tensor]:
        return DataLoader(
            Numbers(noisy=False), batch_size=4, shuffle=True, num_workers=1, persistent_workers=is_persistent
        )

    seed()
    expected = plain(make(), 3)
    seen: list[list[float]] = []
    feed = Feed(make())
    seed()
    for stop in [*stops, len(expected)]:
        seen += tracked(feed, stop - len(seen))
        state, rng = feed.state(), torch.get_rng_state()
        feed = Feed(make())  # another process
        torch.manual_seed(12345)
        feed.load(state)
        torch.set_rng_state(rng)
    assert [one[:-1] for one in seen] == [one[:-1] for one in expected]


def test_workers_that_persist_go_on_in_the_same_process_too() -> None:
    def make() -> DataLoader[torch.Tensor]:
        return DataLoader(Numbers(noisy=False), batch_size=4, shuffle=True, num_workers=1, persistent_workers=True)

    seed()
    expected = plain(make(), 1)
    seed()
    feed = Feed(make())
    seen = tracked(feed, 2)
    seen += tracked(feed, len(expected) - 2)
    assert [one[:-1] for one in seen] == [one[:-1] for one in expected]


def test_the_chain_proves_every_sample_in_order() -> None:
    feed = Feed(DataLoader(Numbers(), batch_size=10))
    tracked(feed, 3)
    chain = GENESIS
    for ids in (list(range(10)), list(range(10, 20)), list(range(20, 23))):
        chain = chained(chain, ids)
    assert (feed.position.chain, feed.position.samples, feed.position.batches) == (chain, SAMPLES, 3)
    assert chained(chained(GENESIS, [1]), [2]) != chained(chained(GENESIS, [2]), [1])


def test_the_last_group_of_an_epoch_is_short_and_an_unfinished_one_is_repeated_whole() -> None:
    feed = Feed(DataLoader(Numbers(), batch_size=4), accumulate=4)  # six batches: 4 + 2
    ends = [piece.ends_group for piece in feed.pieces()]
    assert ends == [False, False, False, True, False, True]
    feed = Feed(DataLoader(Numbers(), batch_size=4), accumulate=4)
    pieces = feed.pieces()
    for _ in range(4):
        next(pieces)
    feed.advance()
    next(pieces)  # the fifth is drawn and not trained on
    again = Feed(DataLoader(Numbers(), batch_size=4), accumulate=4)
    again.load(feed.state())
    assert [int(piece.batch[0][0]) for piece in again.pieces()] == [16, 20]


def test_another_loader_is_refused() -> None:
    feed = Feed(DataLoader(Numbers(), batch_size=4))
    tracked(feed, 1)
    with pytest.raises(MismatchedState, match="6 batches per epoch in the checkpoint, 5 here"):
        Feed(DataLoader(Numbers(), batch_size=5)).load(feed.state())


def test_accumulation_needs_the_end_of_an_epoch() -> None:
    with pytest.raises(SpotproofError, match="no length"):
        Feed(iter([1, 2]), accumulate=2)

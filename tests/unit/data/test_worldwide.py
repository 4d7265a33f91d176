"""The same samples in the same order, whatever the world; and the gradient of the global batch."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from spotproof.data.dataset import Feed
from spotproof.data.worldwide import GlobalBatches, reseed
from spotproof.errors import BadSettings, MismatchedState, SpotproofError

SAMPLES, BATCH, MICRO = 50, 12, 2  # four steps in an epoch, two samples of each are left out


def feed_of(rank: int, world: int, **fields: Any) -> Feed:
    given = {"batch": BATCH, "micro": MICRO, "seed": 7, **fields}
    batches = GlobalBatches(SAMPLES, environ={"RANK": str(rank), "WORLD_SIZE": str(world)}, **given)
    return Feed(loader=DataLoader(TensorDataset(torch.arange(SAMPLES)), batch_sampler=batches))


def steps_of(feed: Feed, count: int) -> list[list[int]]:
    """The ids of this rank in the next steps, over as many epochs as that takes."""
    found: list[list[int]] = []
    while len(found) < count:
        ids: list[int] = []
        for piece in feed.pieces():
            [batch] = piece.batch
            ids += batch.tolist()
            if piece.ends_group:
                feed.advance()
                found.append(ids)
                ids = []
                if len(found) == count:
                    return found
        feed.end_epoch()
    return found


def of_world(world: int, count: int, state: dict[str, object] | None) -> tuple[list[list[int]], dict[str, object]]:
    """The ids of all ranks, step by step, and what a checkpoint then holds; every rank's is the same."""
    feeds = [feed_of(rank, world) for rank in range(world)]
    for feed in feeds:
        if state is not None:
            feed.load(state)
    parts = [steps_of(feed, count) for feed in feeds]
    states = [feed.state() for feed in feeds]
    assert all(one == states[0] for one in states)
    return [[number for part in parts for number in part[step]] for step in range(count)], states[0]


def test_sample_ids_are_equal_over_3_to_2_to_4_ranks() -> None:
    whole, proof = of_world(1, 11, None)
    found: list[list[int]] = []
    state: dict[str, object] | None = None
    for world, count in ((3, 5), (2, 2), (4, 4)):  # within an epoch, and over its end
        ids, state = of_world(world, count, state)
        found += ids
    assert found == whole
    assert state is not None
    assert (state["chain"], state["samples"]) == (proof["chain"], proof["samples"])
    assert len({*found[0], *found[1], *found[2], *found[3]}) == 4 * BATCH  # an epoch has none twice
    assert found[4] != found[0]  # and each its own order


@pytest.mark.parametrize("world", [1, 2, 3, 4, 5, 12])
def test_the_weighted_gradients_mean_over_the_ranks_is_that_of_the_whole_batch(world: int) -> None:
    x = torch.randn(SAMPLES, 3, generator=torch.Generator().manual_seed(1))
    ids = GlobalBatches(SAMPLES, batch=BATCH, micro=MICRO, seed=7, environ={}).ids_of(0, 0)
    whole = x[ids].mean(0)
    parts = torch.zeros(world, 3)
    for rank in range(world):
        for piece in feed_of(rank, world).pieces():
            parts[rank] += x[piece.batch[0]].mean(0) * piece.weight
            if piece.ends_group:
                break
    torch.testing.assert_close(parts.mean(0), whole)


def test_ranks_with_one_sample_more_make_as_many_pieces_as_they_need() -> None:
    sizes = [[len(piece) for piece in GlobalBatches(12, batch=5, micro=2, environ=env)] for env in worlds(2)]
    assert sizes == [[2, 1, 2, 1], [2, 2]]


def worlds(world: int) -> list[dict[str, str]]:
    return [{"RANK": str(rank), "WORLD_SIZE": str(world)} for rank in range(world)]


def test_a_training_that_goes_on_inside_an_epoch_draws_nothing_more() -> None:
    torch.manual_seed(3)
    whole = feed_of(0, 2)
    steps_of(whole, 2)
    state, generator = whole.state(), torch.get_rng_state()
    steps_of(whole, 3)
    expected = torch.get_rng_state()
    again = feed_of(0, 3)
    again.load(state)
    torch.set_rng_state(generator)
    steps_of(again, 3)
    assert torch.equal(torch.get_rng_state(), expected)


def test_in_order_without_shuffling() -> None:
    found, _ = of_world(2, 4, None)
    assert sorted(found[0]) != list(range(BATCH))
    plain = [steps_of(feed_of(rank, 2, shuffle=False), 1)[0] for rank in range(2)]
    assert plain == [list(range(6)), list(range(6, 12))]


@pytest.mark.parametrize(("batch", "micro"), [(1, 1), (51, 1), (12, 0)])
def test_a_step_that_cannot_be_shared_out_is_refused(batch: int, micro: int) -> None:
    with pytest.raises(BadSettings, match="batch"):
        feed_of(0, 2, batch=batch, micro=micro)


def test_a_second_count_of_accumulation_is_refused() -> None:
    loader = feed_of(0, 1).loader
    with pytest.raises(SpotproofError, match="accumulates by itself"):
        Feed(loader=loader, accumulate=2)


def test_each_rank_of_a_new_world_gets_noise_of_its_own_and_the_same_at_every_try() -> None:
    drawn = []
    for rank in (0, 1, 1):
        reseed(3, rank, 2, step=5)
        drawn.append((random.random(), torch.rand(1).item()))
    assert drawn[0] != drawn[1]
    assert drawn[1] == drawn[2]


def test_noise_goes_on_where_the_world_is_the_same_or_is_not_known() -> None:
    before = torch.get_rng_state()
    reseed(2, 0, 2, step=5)
    reseed(0, 0, 2, step=5)
    assert torch.equal(torch.get_rng_state(), before)


def test_a_loader_that_was_shared_out_to_another_world_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = Feed(loader=DataLoader(TensorDataset(torch.arange(8)), batch_size=4))
    monkeypatch.setenv("WORLD_SIZE", "2")
    state = plain.state()
    plain.load(state)
    monkeypatch.setenv("WORLD_SIZE", "3")
    with pytest.raises(MismatchedState, match="shared out to 2 ranks, here are 3"):
        plain.load(state)
    plain.load({name: value for name, value in state.items() if name != "world"})  # as an earlier version saved it

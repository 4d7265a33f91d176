"""One rank's part of a given checkpoint: where it is read from, and what becomes of one that is not whole."""

from __future__ import annotations

from pathlib import Path

import pytest

from spotproof.checkpoint.commit import make_part
from spotproof.contract import s3keys
from spotproof.contract.layout import image_name
from spotproof.contract.states import SaveKind
from spotproof.errors import Damaged, MismatchedState, Missing
from tests.fakes.checkpoints import RUN, Rig, bytes_of, content_of, image_of, save_of

WORLD = 2


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    return Rig(tmp_path)


def image(step: int, rank: int) -> bytes:
    return image_of(step + 7 * rank)


def save(rig: Rig, step: int, rank: int, *, staged: bool = False) -> None:
    content = content_of(image(step, rank))
    part = make_part(save_of(step, rank=rank, world=WORLD), content, image_name=image_name(rank))
    if staged:
        rig.local.stage(part, {part.image.name: content.image, "layout.json": content.layout, ".metadata": b"m"})
    else:
        rig.committer().commit(part, content, kind=SaveKind.PERIODIC)


def test_each_rank_gets_its_own_part_of_a_commit(rig: Rig) -> None:
    for step in (10, 20):
        for rank in range(WORLD):
            save(rig, step, rank)
    for rank in range(WORLD):
        fetched = rig.fetcher().exact((1, 10), rank)  # not the newest: the one that was sealed
        assert (fetched.order, fetched.part.rank) == ((1, 10), rank)
        assert fetched.manifest is not None
        assert bytes_of(fetched) == image(10, rank)


def test_chunks_come_from_this_nodes_disk_and_what_has_gone_bad_there_from_the_bucket(rig: Rig) -> None:
    for rank in range(WORLD):
        save(rig, 10, rank)
    save(rig, 10, 1, staged=True)
    for key in rig.folder.glob("bucket/runs/*/blobs/*"):
        if key.name not in {path.name for path in rig.blob_paths(10)}:
            key.rename(key.with_name(f"moved-{key.name}"))
    assert bytes_of(rig.fetcher(local=True).exact((1, 10), 1)) == image(10, 1)  # the bucket lacks them
    for key in rig.folder.glob("bucket/runs/*/blobs/moved-*"):
        key.rename(key.with_name(key.name.removeprefix("moved-")))
    (copy,) = rig.local.find()
    (copy.folder / image_name(1)).write_bytes(b"x" * len(image(10, 1)))
    assert bytes_of(rig.fetcher(local=True).exact((1, 10), 1)) == image(10, 1)


def test_without_a_manifest_one_part_is_on_the_disk_and_another_in_the_bucket(rig: Rig) -> None:
    save(rig, 10, 0)
    save(rig, 10, 1, staged=True)
    loose = [rig.fetcher(local=True).exact((1, 10), rank, is_committed=False) for rank in range(WORLD)]
    assert [one.manifest for one in loose] == [None, None]
    assert [bytes_of(one) for one in loose] == [image(10, rank) for rank in range(WORLD)]


@pytest.mark.parametrize(("rank", "its"), [(0, 0), (1, 1), (2, 0), (5, 1)])
@pytest.mark.parametrize("is_committed", [True, False])
def test_a_rank_of_a_larger_world_gets_the_part_of_one_that_was_there(
    rig: Rig, rank: int, its: int, is_committed: bool
) -> None:
    save(rig, 10, 0)
    save(rig, 10, 1, staged=not is_committed)
    fetched = rig.fetcher(local=True).exact((1, 10), rank, is_committed=is_committed, any_world=True)
    assert (fetched.part.rank, fetched.part.world) == (its, WORLD)
    assert bytes_of(fetched) == image(10, its)


def test_what_is_not_whole_is_quarantined_so_that_all_choose_again(rig: Rig) -> None:
    for rank in range(WORLD):
        save(rig, 10, rank)
    path = rig.blob_paths(10)[1]
    path.write_bytes(b"?" * path.stat().st_size)
    with pytest.raises(Damaged):
        rig.fetcher().exact((1, 10), 0)
    with pytest.raises(Missing):
        rig.fetcher().exact((1, 15), 0, is_committed=False)
    assert rig.stores.checkpoints.quarantined(RUN) == {(1, 10), (1, 15)}


def test_another_number_of_ranks_is_refused_and_is_no_damage(rig: Rig) -> None:
    for rank in range(WORLD):
        save(rig, 10, rank)
    with pytest.raises(MismatchedState, match="saved by 2 ranks, rank 2 has no part"):
        rig.fetcher().exact((1, 10), 2)
    assert rig.fetcher().ahead(2) is None
    assert rig.stores.checkpoints.quarantined(RUN) == frozenset()


def test_reading_ahead_is_the_newest_commit_or_nothing(rig: Rig) -> None:
    assert rig.fetcher().ahead(0) is None
    for rank in range(WORLD):
        save(rig, 10, rank)
    ahead = rig.fetcher().ahead(1)
    assert ahead is not None
    assert bytes_of(ahead) == image(10, 1)
    rig.path(s3keys.manifest(RUN, 1, 10)).unlink()
    assert rig.fetcher().ahead(1) is None

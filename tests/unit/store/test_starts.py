"""What a membership of many nodes begins with: everything that is durable, and what is whole where its rank is now."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from spotproof.checkpoint.commit import Committer, make_part
from spotproof.contract.items import Generation, PointerItem, Quarantine
from spotproof.contract.layout import image_name
from spotproof.contract.states import SaveKind
from spotproof.errors import NoLoadableCheckpoint
from spotproof.store.checkpoints import Checkpoints
from spotproof.store.folder import FolderObjects
from spotproof.store.local import IN_MEMORY, LocalTable
from spotproof.store.members import Memberships
from spotproof.store.pointer import Pointers
from spotproof.store.starts import StagedCopy, Start, Stores, start_for
from tests.fakes.checkpoints import content_of, image_of, save_of

WORLD = 2


@pytest.fixture
def stores(tmp_path: Path) -> Iterator[Stores]:
    with LocalTable(IN_MEMORY) as table:
        memberships = Memberships(table)
        memberships.seal(Generation(run="r", generation=1, members=("0:1:a", "1:1:b"), sealed_at=0), pointer=None)
        yield Stores(
            objects=FolderObjects(tmp_path),
            checkpoints=Checkpoints(table),
            pointers=Pointers(table),
            memberships=memberships,
        )


def save(stores: Stores, step: int, rank: int) -> None:
    content = content_of(image_of(step * 10 + rank))
    part = make_part(save_of(step=step, rank=rank, world=WORLD), content, image_name=image_name(rank))
    committer = Committer(
        objects=stores.objects, checkpoints=stores.checkpoints, pointers=stores.pointers, clock=lambda: 0.0
    )
    committer.commit(part, content, kind=SaveKind.PERIODIC)


def pointer(stores: Stores) -> PointerItem | None:
    return stores.pointers.read("r")


def copy(step: int, rank: int, *, generation: int = 1, world: int = WORLD) -> StagedCopy:
    return StagedCopy(generation=generation, step=step, rank=rank, world=world)


def start(stores: Stores, *copies: list[StagedCopy]) -> Start | None:
    return start_for(stores, "r", pointer(stores), copies or ([], []))


def test_nothing_is_nothing(stores: Stores) -> None:
    assert start(stores) is None


def test_a_commit_with_its_manifest_and_half_a_checkpoint_is_none(stores: Stores) -> None:
    save(stores, 10, 0)
    assert start(stores) is None
    save(stores, 10, 1)
    found, pointed = start(stores), pointer(stores)
    assert found is not None
    assert pointed is not None
    assert (found.order, found.manifest_key, found.manifest_digest) == (
        (1, 10),
        pointed.manifest_key,
        pointed.manifest_digest,
    )
    save(stores, 20, 0)
    assert start(stores) == found


def test_a_commit_that_the_pointer_does_not_name_counts(stores: Stores) -> None:
    for step in (10, 20):
        for rank in range(WORLD):
            save(stores, step, rank)
    named = pointer(stores)
    found = start_for(stores, "r", None, ([], []))
    assert found is not None
    assert named is not None
    assert (found.order, found.manifest_digest) == ((1, 20), named.manifest_digest)


def test_copies_count_where_each_is_on_the_node_that_holds_its_rank_now(stores: Stores) -> None:
    for rank in range(WORLD):
        save(stores, 10, rank)
    assert start(stores, [copy(15, 0)], [copy(15, 1)]) == Start(order=(1, 15))
    newest = start(stores, [copy(15, 1)], [copy(15, 0)])  # both are whole, and where nobody needs them
    assert newest is not None
    assert newest.order == (1, 10)
    lone = start(stores, [copy(15, 0)], [])
    assert lone is not None
    assert lone.order == (1, 10)


def test_a_copy_and_a_part_in_the_bucket_make_one_checkpoint(stores: Stores) -> None:
    save(stores, 15, 1)
    assert start(stores, [copy(15, 0)], []) == Start(order=(1, 15))


def test_copies_of_another_life_of_the_run_and_what_is_damaged_do_not_count(stores: Stores) -> None:
    assert start(stores, [copy(15, 0, generation=9)], [copy(15, 1, generation=9)]) is None
    for rank in range(WORLD):
        save(stores, 10, rank)
    stores.checkpoints.quarantine(Quarantine(run="r", generation=1, step=10, reason="bits"))
    with pytest.raises(NoLoadableCheckpoint, match="quarantined"):
        start(stores)


def test_an_entry_that_a_later_version_writes_is_passed_over() -> None:
    assert StagedCopy.parse(copy(5, 1).text()) == copy(5, 1)
    assert StagedCopy.parse("1:2:3:4:5") is None
    assert StagedCopy.parse("1:2:x:4") is None

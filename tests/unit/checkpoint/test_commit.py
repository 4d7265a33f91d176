from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pytest

from spotproof.checkpoint.commit import Commit, Committer, make_part
from spotproof.contract import s3keys
from spotproof.contract.manifest import decode_manifest
from spotproof.contract.states import SaveKind
from spotproof.errors import Damaged, NoLoadableCheckpoint, Superseded, Unavailable
from spotproof.store.checkpoints import Checkpoints
from spotproof.store.pointer import Pointers
from spotproof.store.table import Item, Key, Op, Table, Write
from tests.fakes.checkpoints import RUN, Rig, bytes_of, content_of, image_of, save_of


@dataclass
class SilentTable:
    """A table that answers reads and no write."""

    inner: Table

    def get(self, key: Key) -> Item | None:
        return self.inner.get(key)

    def query(
        self, pk: str, *, prefix: str = "", since: str = "", limit: int | None = None, newest_first: bool = False
    ) -> list[Item]:
        return self.inner.query(pk, prefix=prefix, since=since, limit=limit, newest_first=newest_first)

    def write(self, op: Write) -> Item:
        raise Unavailable("told to be silent")

    def transact(self, ops: Sequence[Op]) -> None:
        raise Unavailable("told to be silent")


def pointer_of(rig: Rig) -> tuple[int, int] | None:
    pointer = rig.stores.pointers.read(RUN)
    return None if pointer is None else (pointer.generation, pointer.step)


def commit_rank(rig: Rig, rank: int, *, world: int, image: bytes) -> Commit:
    content = content_of(image)
    part = make_part(save_of(7, rank=rank, world=world), content, image_name=f"__{rank}_0.distcp")
    return rig.committer().commit(part, content, kind=SaveKind.PERIODIC)


def test_a_commit_puts_chunks_then_part_then_manifest_and_raises_the_pointer(rig: Rig) -> None:
    commit = rig.commit(5, image_of(5))
    assert commit.is_pointed
    assert commit.manifest is not None
    assert commit.manifest.order == (1, 5)
    *chunks, part, manifest = rig.objects.puts
    assert all("/blobs/" in key for key in chunks)
    assert part == s3keys.part(RUN, 1, 5, 0)
    assert manifest == s3keys.manifest(RUN, 1, 5)
    assert pointer_of(rig) == (1, 5)
    rig.assert_pointer_names_whole_data()


def test_the_receipt_says_position_and_state(rig: Rig) -> None:
    commit = rig.commit(5, image_of(5))
    receipt = commit.part.receipt
    assert (receipt.rank, receipt.step, receipt.samples) == (0, 5, 40)
    assert receipt.state_digest != rig.commit(6, image_of(6)).part.receipt.state_digest


def test_only_what_the_newest_manifest_lacks_is_sent(rig: Rig) -> None:
    committer = rig.committer()
    first = image_of(5)
    changed = first[:1000] + b"!" * 1000 + first[2000:]
    rig.commit(5, first, committer=committer)
    rig.objects.puts.clear()
    commit = rig.commit(6, changed, committer=committer)
    assert commit.sent_bytes == 1000
    assert len([key for key in rig.objects.puts if "/blobs/" in key]) == 1
    rig.assert_pointer_names_whole_data()


def test_a_new_process_learns_from_the_pointer_what_is_there(rig: Rig) -> None:
    rig.commit(5, image_of(5))
    assert rig.commit(6, image_of(5)).sent_bytes == 0


def test_nothing_is_skipped_because_of_a_checkpoint_that_is_known_as_damaged(rig: Rig) -> None:
    rig.commit(5, image_of(5))
    rig.blob_paths(5)[0].unlink()
    with pytest.raises(Exception, match="none can be loaded"):
        rig.fetcher().newest()
    assert rig.commit(6, image_of(5)).sent_bytes > len(image_of(5))
    rig.assert_pointer_names_whole_data()


def test_damage_that_another_process_finds_is_repaired_by_the_next_save(rig: Rig) -> None:
    """A frozen tensor's chunk rots in the bucket: without this every later checkpoint would refer to it."""
    committer = rig.committer()
    rig.commit(4, image_of(5), committer=committer)
    rig.commit(5, image_of(5), committer=committer)
    rig.blob_paths(5)[0].write_bytes(b"rotten")
    with pytest.raises(NoLoadableCheckpoint):
        rig.fetcher().newest()
    rig.commit(6, image_of(5), committer=committer)
    fetched = rig.fetcher().newest()
    assert fetched is not None
    assert fetched.order == (1, 6)
    assert bytes_of(fetched) == image_of(5)


def test_a_step_that_is_quarantined_is_not_reported_as_committed(rig: Rig) -> None:
    """Restores pass over it for ever, so saving it again in the same generation would be a lost commit."""
    rig.commit(4, image_of(4))
    rig.commit(5, image_of(5))
    rig.blob_paths(5)[0].write_bytes(b"rotten")
    fetched = rig.fetcher().newest()
    assert fetched is not None
    assert bytes_of(fetched) == image_of(4)
    with pytest.raises(Damaged, match="step 5 was found damaged earlier"):
        rig.commit(5, image_of(5))
    assert rig.commit(6, image_of(6)).is_pointed


def test_a_chunk_that_merely_exists_is_sent_again(rig: Rig) -> None:
    """It may be a torn leftover: the put makes it whole."""
    content = content_of(image_of(5))
    part = make_part(save_of(5), content, image_name="__0_0.distcp")
    torn = rig.path(s3keys.blob(RUN, part.image.chunks[0].digest))
    torn.parent.mkdir(parents=True)
    torn.write_bytes(b"torn")
    rig.commit(5, image_of(5))
    rig.assert_pointer_names_whole_data()


@pytest.mark.parametrize("boundary", range(1, 9))
def test_a_commit_that_failed_anywhere_is_finished_by_doing_it_again(rig: Rig, boundary: int) -> None:
    """3500 bytes in chunks of 1000, layout and .metadata are 6 chunks; then the part and the manifest."""
    rig.objects.fails = lambda number, key: number == boundary
    with pytest.raises(Unavailable):
        rig.commit(5, image_of(5))
    assert pointer_of(rig) is None
    rig.commit(5, image_of(5))
    assert len(rig.objects.puts) >= 8
    assert pointer_of(rig) == (1, 5)
    rig.assert_pointer_names_whole_data()


def test_after_the_first_failure_nothing_further_is_begun(rig: Rig) -> None:
    rig.objects.fails = lambda number, key: number == 1
    with pytest.raises(Unavailable):
        rig.commit(5, image_of(5, size=50_000))
    assert not any("/checkpoints/" in key for key in rig.objects.puts)


def test_ranks_complete_each_other_and_the_last_one_commits(rig: Rig) -> None:
    first = commit_rank(rig, 1, world=2, image=image_of(1))
    assert first.manifest is None
    assert pointer_of(rig) is None
    second = commit_rank(rig, 0, world=2, image=image_of(2))
    assert second.manifest is not None
    assert [part.rank for part in second.manifest.parts] == [0, 1]
    assert pointer_of(rig) == (1, 7)
    rig.assert_pointer_names_whole_data()


def test_a_rank_that_comes_again_after_the_commit_finds_it_done(rig: Rig) -> None:
    commit_rank(rig, 0, world=2, image=image_of(1))
    commit_rank(rig, 1, world=2, image=image_of(2))
    again = commit_rank(rig, 0, world=2, image=image_of(1))
    assert again.is_pointed


def test_an_older_generation_loses_at_the_pointer(rig: Rig) -> None:
    rig.commit(5, image_of(5))
    rig.seal(2, start=(1, 5))
    with pytest.raises(Superseded):
        rig.commit(6, image_of(6), generation=1)
    assert pointer_of(rig) == (1, 5)


def test_a_late_commit_does_not_pull_the_pointer_back(rig: Rig) -> None:
    rig.commit(9, image_of(9))
    assert rig.commit(8, image_of(8)).is_pointed
    assert pointer_of(rig) == (1, 9)


def test_without_a_table_the_listing_tells_that_all_parts_are_there(rig: Rig) -> None:
    """The manifest is in the bucket, so the checkpoint is durable; whoever seals next finds it there."""
    silent = SilentTable(rig.table)
    committer = Committer(
        objects=rig.objects, checkpoints=Checkpoints(silent), pointers=Pointers(silent), clock=lambda: 1.0
    )
    commit = rig.commit(5, image_of(5), committer=committer)
    assert commit.manifest is not None
    assert not commit.is_pointed
    assert decode_manifest(rig.objects.read(s3keys.manifest(RUN, 1, 5))) == commit.manifest
    assert pointer_of(rig) is None
    fetched = rig.fetcher().newest()
    assert fetched is not None
    assert fetched.order == (1, 5)
    assert bytes_of(fetched) == image_of(5)


def test_what_ranks_of_one_node_have_alike_is_sent_once_for_a_checkpoint(rig: Rig) -> None:
    """Parameters of data-parallel ranks are the same; generators and position are each rank's own."""
    committer = rig.committer()
    shared = image_of(1, size=4000)  # whole chunks

    def commit(rank: int, step: int) -> Commit:
        content = content_of(shared + image_of(10 * step + rank, size=500))
        save = save_of(step, rank=rank, world=3)
        part = make_part(save, content, image_name=f"__{rank}_0.distcp")
        return committer.commit(part, content, kind=SaveKind.PERIODIC)

    first, *others = [commit(rank, 7) for rank in range(3)]
    assert first.sent_bytes > 4000
    assert max(other.sent_bytes for other in others) < 1000
    assert others[-1].manifest is not None
    rig.assert_pointer_names_whole_data()
    committer = (
        rig.committer()
    )  # another process knows of nothing that was sent, and the next checkpoint is another one
    assert commit(0, 8).sent_bytes < 1500  # the newest manifest lists what is shared

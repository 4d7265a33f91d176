from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

import pytest

from spotproof.checkpoint.commit import make_part
from spotproof.checkpoint.fetch import Fetched
from spotproof.contract import keys, layout, s3keys
from spotproof.contract.items import to_item
from spotproof.contract.manifest import encode
from spotproof.errors import Damaged, NoLoadableCheckpoint, Unavailable
from spotproof.plan.candidates import Source
from spotproof.store.objects import NO_DEADLINE
from spotproof.store.table import Put
from tests.fakes.checkpoints import RUN, Rig, bytes_of, content_of, image_of, layout_of, save_of


def newest(rig: Rig, *, local: bool = False) -> Fetched:
    fetched = rig.fetcher(local=local).newest()
    assert fetched is not None
    return fetched


def images_in_memory() -> int:
    targets = []
    for entry in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):  # the descriptor of this very listing
            targets.append(str(entry.readlink()))
    return len([target for target in targets if "memfd:restore" in target])


def test_the_newest_comes_back_byte_for_byte_with_layout_and_receipt(rig: Rig) -> None:
    for step in (3, 4):
        rig.commit(step, image_of(step))
    fetched = newest(rig)
    assert fetched.order == (1, 4)
    assert fetched.source is Source.MANIFEST
    assert fetched.layout == layout_of(image_of(4))
    assert layout.decode(fetched.layout).image_bytes == 3500
    assert fetched.part.receipt.samples == 32
    assert fetched.pointer == rig.stores.pointers.read(RUN)
    assert fetched.pointer is not None
    assert fetched.manifest_digest == fetched.pointer.manifest_digest
    assert fetched.skipped == ()
    assert bytes_of(fetched) == image_of(4)


def test_a_service_that_does_not_answer_is_not_damage(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    rig.commit(3, image_of(3))

    def silent(key: str, target: memoryview, **_: object) -> None:
        raise Unavailable(f"{key}: told to be silent")

    monkeypatch.setattr(rig.objects, "get_into", silent)
    with pytest.raises(Unavailable):
        rig.fetcher().newest()
    assert rig.stores.checkpoints.quarantined(RUN) == frozenset()


def test_a_failed_read_leaves_no_memory_behind(rig: Rig) -> None:
    rig.commit(3, image_of(3))
    rig.blob_paths(3)[2].unlink()
    before = images_in_memory()
    with pytest.raises(NoLoadableCheckpoint):
        rig.fetcher().newest()
    assert images_in_memory() == before


def test_what_was_quarantined_once_is_not_read_again(rig: Rig) -> None:
    rig.commit(3, image_of(3))
    rig.commit(4, image_of(4))
    damaged = rig.blob_paths(4)[0]
    content = damaged.read_bytes()
    damaged.write_bytes(b"?" + content[1:])
    os.close(newest(rig).image_fd)
    damaged.write_bytes(content)
    fetched = newest(rig)
    os.close(fetched.image_fd)
    assert fetched.order == (1, 3)
    assert fetched.skipped == ("generation 1 step 4: quarantined as damaged",)


def test_parts_that_are_all_there_are_finished_by_whoever_restores(rig: Rig) -> None:
    rig.objects.fails = lambda number, key: key.endswith("manifest.json")
    with pytest.raises(Unavailable):
        rig.commit(5, image_of(5))
    rig.objects.fails = lambda number, key: False
    fetched = newest(rig)
    assert (fetched.order, fetched.source) == ((1, 5), Source.PARTS)
    assert bytes_of(fetched) == image_of(5)
    assert rig.objects.head(s3keys.manifest(RUN, 1, 5)) is not None
    assert rig.commit(5, image_of(5)).is_pointed


def test_a_part_of_two_alone_is_no_checkpoint(rig: Rig) -> None:
    content = content_of(image_of(5))
    part = encode(make_part(save_of(5, world=2), content, image_name="__0_0.distcp"))
    rig.objects.put(s3keys.part(RUN, 1, 5, 0), part, digest="")
    assert rig.fetcher().newest() is None


def test_a_staged_copy_that_is_newer_than_the_last_commit_is_used_on_its_own_node(rig: Rig) -> None:
    rig.commit(5, image_of(5))
    rig.stage(6, image_of(6))
    elsewhere, here = newest(rig), newest(rig, local=True)
    assert (elsewhere.order, here.order) == ((1, 5), (1, 6))
    assert (here.source, here.manifest) == (Source.STAGED, None)
    assert (bytes_of(elsewhere), bytes_of(here)) == (image_of(5), image_of(6))


def test_a_damaged_staged_copy_is_passed_over_and_not_quarantined(rig: Rig) -> None:
    rig.commit(5, image_of(5))
    rig.stage(6, image_of(6))
    file = rig.local.find()[0].folder / "__0_0.distcp"
    file.write_bytes(b"?" + file.read_bytes()[1:])
    fetched = newest(rig, local=True)
    os.close(fetched.image_fd)
    assert fetched.order == (1, 5)
    assert "step 6" in fetched.skipped[0]
    assert rig.stores.checkpoints.quarantined(RUN) == frozenset()


def test_a_staged_copy_of_a_generation_that_this_run_never_sealed_is_another_runs(rig: Rig) -> None:
    rig.stage(900, image_of(9), generation=7)
    assert rig.fetcher(local=True).newest() is None
    rig.commit(5, image_of(5))
    fetched = newest(rig, local=True)
    os.close(fetched.image_fd)
    assert fetched.order == (1, 5)


def test_a_staged_copy_with_a_file_missing_is_passed_over_too(rig: Rig) -> None:
    rig.commit(5, image_of(5))
    rig.stage(6, image_of(6))
    (rig.local.find()[0].folder / "__0_0.distcp").unlink()
    fetched = newest(rig, local=True)
    assert fetched.order == (1, 5)
    assert bytes_of(fetched) == image_of(5)


def test_bytes_that_were_damaged_on_the_way_are_read_once_more_before_a_checkpoint_is_quarantined(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig.commit(5, image_of(5))
    whole, seen = rig.objects.get_into, set[str]()

    def get_into(key: str, target: memoryview, *, digest: str, until: float = NO_DEADLINE) -> None:
        if key not in seen:
            seen.add(key)
            raise Damaged(f"{key}: a bit was flipped")
        whole(key, target, digest=digest, until=until)

    monkeypatch.setattr(rig.objects, "get_into", get_into)
    fetched = newest(rig)
    assert bytes_of(fetched) == image_of(5)
    assert rig.stores.checkpoints.quarantined(RUN) == frozenset()


def test_a_choice_is_old_once_a_newer_manifest_is_in_the_bucket_even_if_the_pointer_did_not_rise(rig: Rig) -> None:
    rig.commit(5, image_of(5))
    fetcher = rig.fetcher()
    fetched = fetcher.newest()
    assert fetched is not None
    os.close(fetched.image_fd)
    assert fetcher.is_still_newest(fetched)
    pointer = rig.stores.pointers.read(RUN)
    rig.commit(6, image_of(6))
    assert pointer is not None
    rig.table.write(Put(key=keys.pointer(RUN), item=to_item(pointer)))
    assert not fetcher.is_still_newest(fetched)


def test_no_checkpoint_is_no_choice_either_once_there_is_one(rig: Rig) -> None:
    fetcher = rig.fetcher()
    assert fetcher.is_still_newest(None)
    rig.commit(5, image_of(5))
    assert not fetcher.is_still_newest(None)


def test_a_woken_nodes_late_checkpoint_is_passed_over(rig: Rig) -> None:
    rig.commit(5, image_of(5))
    rig.seal(2, start=(1, 5))
    with pytest.raises(Exception, match="newest generation is 2"):
        rig.commit(9, image_of(9), generation=1)
    fetched = newest(rig)
    os.close(fetched.image_fd)
    assert fetched.order == (1, 5)
    assert "after generation 2 had been sealed" in fetched.skipped[0]


def test_a_manifest_of_another_run_or_step_is_damage(rig: Rig) -> None:
    rig.commit(3, image_of(3))
    rig.commit(4, image_of(4))
    rig.commit(5, image_of(5))
    older = rig.objects.read(s3keys.manifest(RUN, 1, 3))
    for step in (4, 5):
        rig.path(s3keys.manifest(RUN, 1, step)).write_bytes(older)
    fetched = newest(rig)
    os.close(fetched.image_fd)
    assert fetched.order == (1, 3)
    assert len(fetched.skipped) == 2


def test_a_layout_that_does_not_fit_its_image_is_damage(rig: Rig) -> None:
    content = content_of(image_of(4))
    bad = type(content)(image=content.image, layout=layout_of(b"short"), metadata=b"m", chunk_bytes=1000)
    part = make_part(save_of(4), bad, image_name="__0_0.distcp")
    rig.committer().commit(part, bad, kind=save_of(4).kind)
    with pytest.raises(NoLoadableCheckpoint, match="its layout says 5"):
        rig.fetcher().newest()


def shared_image(step: int) -> bytes:
    """Three chunks that every step has, and one of its own."""
    return b"a" * 1000 + b"b" * 1000 + b"c" * 1000 + step.to_bytes(4, "big") * 125


class Counting:
    """Counts the chunks that are read."""

    def __init__(self, rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
        self.read: list[str] = []
        whole = rig.objects.get_into

        def get_into(key: str, target: memoryview, *, digest: str, until: float = NO_DEADLINE) -> None:
            self.read.append(key)
            whole(key, target, digest=digest, until=until)

        monkeypatch.setattr(rig.objects, "get_into", get_into)

    def taken(self) -> int:
        count, self.read = len(self.read), []
        return count


def test_what_a_newer_choice_has_in_common_with_the_one_before_is_not_read_again(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = images_in_memory()  # another test may hold one
    rig.commit(5, shared_image(5))
    fetcher, counting = rig.fetcher(), Counting(rig, monkeypatch)
    first = fetcher.newest()
    assert counting.taken() == 5  # with the layout
    rig.commit(6, shared_image(6))
    second = fetcher.newest(instead_of=first)
    assert second is not None
    assert counting.taken() == 2
    assert second.kept_bytes == 3000
    assert bytes_of(second) == shared_image(6)
    assert images_in_memory() == before


def test_a_walk_back_reads_only_what_the_damaged_one_did_not_have(rig: Rig) -> None:
    rig.commit(5, shared_image(5))
    rig.commit(6, shared_image(6))
    rig.blob_paths(6)[3].unlink()
    fetched = rig.fetcher().newest()
    assert fetched is not None
    assert fetched.order == (1, 5)
    assert fetched.kept_bytes > 0
    assert bytes_of(fetched) == shared_image(5)


def test_an_image_of_another_size_is_not_reused(rig: Rig) -> None:
    before = images_in_memory()  # another test may hold one
    rig.commit(5, image_of(5))
    fetcher = rig.fetcher()
    first = fetcher.newest()
    rig.commit(6, image_of(6, 2500))
    second = fetcher.newest(instead_of=first)
    assert second is not None
    assert second.kept_bytes == 0
    assert bytes_of(second) == image_of(6, 2500)
    assert images_in_memory() == before

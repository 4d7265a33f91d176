"""Old checkpoints go, and nothing that anybody may still need."""

from __future__ import annotations

import os
import random
from collections.abc import Sequence
from pathlib import Path

import pytest

from spotproof.checkpoint import inventory
from spotproof.contract import s3keys
from spotproof.contract.items import Quarantine
from spotproof.errors import Damaged
from spotproof.plan.retention import DAY_S, GRACE_S
from spotproof.store import collecting
from spotproof.store.erase import FolderEraser
from tests.fakes.checkpoints import RUN, Rig

NOW = 2_000_000_000.0


def image_of(step: int) -> bytes:
    """Two chunks that every step has, one of its own."""
    return b"a" * 1000 + b"b" * 1000 + step.to_bytes(4, "big") * 250


def old_run(rig: Rig, *, steps: Sequence[int] = range(1, 8)) -> None:
    """Commits two days apart, long ago."""
    for step in steps:
        rig.commit(step, image_of(step))
    everything = sorted((rig.folder / "bucket").rglob("*"))
    for path in (path for path in everything if path.is_file()):
        order = s3keys.order_of(path.relative_to(rig.folder / "bucket").as_posix())
        days = 30 if order is None else 2 * (steps[-1] - order[1]) + 2
        at = NOW - days * DAY_S
        os.utime(path, (at, at))


def planned(rig: Rig, *, keep: int = 2) -> collecting.Plan:
    return collecting.plan(rig.stores, RUN, keep=keep, now=NOW)


def eraser(rig: Rig) -> FolderEraser:
    return FolderEraser(rig.folder / "bucket")


def steps_left(rig: Rig) -> list[int]:
    found, _ = inventory.entries(rig.objects, RUN, pointer=None, quarantined=())
    return [entry.order[1] for entry in found]


def blobs(rig: Rig) -> set[Path]:
    return set((rig.folder / "bucket" / "runs" / RUN / "blobs").iterdir())


def test_the_newest_stay_whole_and_what_only_old_ones_needed_goes(rig: Rig) -> None:
    old_run(rig)
    plan = planned(rig)
    before = blobs(rig)
    collecting.collect(plan, rig.objects, eraser(rig))
    assert steps_left(rig) == [6, 7]
    assert [inventory.verify(rig.objects, RUN, (1, step)) for step in (6, 7)] == [(), ()]
    assert len(before) - len(blobs(rig)) == 5  # one chunk of its own for each dropped step
    assert planned(rig).keys == ()  # nothing more to do


def test_nothing_goes_of_a_run_without_a_good_checkpoint(rig: Rig) -> None:
    old_run(rig, steps=(1, 2))
    for step in (1, 2):
        rig.stores.checkpoints.quarantine(Quarantine(run=RUN, generation=1, step=step, reason="flipped"))
    assert planned(rig, keep=1).keys == ()


def test_the_start_of_the_newest_membership_stays(rig: Rig) -> None:
    old_run(rig)
    rig.seal(2, start=(1, 3))
    collecting.collect(planned(rig), rig.objects, eraser(rig))
    assert steps_left(rig) == [3, 6, 7]


def test_a_young_chunk_without_a_part_is_one_of_a_save_on_its_way(rig: Rig) -> None:
    old_run(rig)
    digest = "c" * 64
    path = rig.path(s3keys.blob(RUN, digest))
    path.write_bytes(b"young")
    os.utime(path, (NOW - GRACE_S + 60, NOW - GRACE_S + 60))
    assert s3keys.blob(RUN, digest) not in planned(rig).blobs
    os.utime(path, (NOW - GRACE_S - 60, NOW - GRACE_S - 60))
    assert s3keys.blob(RUN, digest) in planned(rig).blobs


def test_parts_of_a_set_that_is_not_whole_keep_their_chunks_while_they_are_young(rig: Rig) -> None:
    old_run(rig)
    manifest = rig.path(s3keys.manifest(RUN, 1, 4))
    manifest.unlink()
    part = rig.path(s3keys.part(RUN, 1, 4, 0))
    os.utime(part, (NOW - 60, NOW - 60))
    kept = planned(rig)
    assert (1, 4) in kept.verdict.kept
    own = rig.objects.read(s3keys.part(RUN, 1, 4, 0)).decode()
    assert not [key for key in kept.blobs if key.rpartition("/")[2] in own]


def test_a_manifest_that_cannot_be_read_stops_everything(rig: Rig) -> None:
    old_run(rig)
    path = rig.path(s3keys.manifest(RUN, 1, 7))
    path.write_bytes(b"{")
    with pytest.raises(Damaged, match="nothing is collected"):
        planned(rig)


def test_an_unreadable_manifest_in_quarantine_stops_nothing(rig: Rig) -> None:
    old_run(rig)
    path = rig.path(s3keys.manifest(RUN, 1, 7))
    path.write_bytes(b"{")
    os.utime(path, (NOW - 60, NOW - 60))
    rig.stores.checkpoints.quarantine(Quarantine(run=RUN, generation=1, step=7, reason="torn"))
    collecting.collect(planned(rig), rig.objects, eraser(rig))
    assert set(steps_left(rig)) >= {5, 6}
    assert inventory.verify(rig.objects, RUN, (1, 6)) == ()


class DyingEraser:
    """Is killed after so many keys."""

    def __init__(self, inner: FolderEraser, after: int) -> None:
        self._inner, self._left = inner, after

    def delete(self, keys: Sequence[str]) -> None:
        for key in keys:
            if not self._left:
                raise KeyboardInterrupt
            self._left -= 1
            self._inner.delete([key])


@pytest.mark.parametrize("seed", range(8))
def test_a_collection_that_is_killed_anywhere_leaves_every_manifest_whole(rig: Rig, seed: int) -> None:
    chance = random.Random(seed)
    old_run(rig)
    plan = planned(rig, keep=chance.randint(1, 4))
    with pytest.raises(KeyboardInterrupt):
        collecting.collect(plan, rig.objects, DyingEraser(eraser(rig), chance.randrange(len(plan.keys))))
    for step in steps_left(rig):
        if rig.path(s3keys.manifest(RUN, 1, step)).exists():
            assert inventory.verify(rig.objects, RUN, (1, step)) == ()
    collecting.collect(planned(rig, keep=1), rig.objects, eraser(rig))
    assert inventory.verify(rig.objects, RUN, (1, 7)) == ()


def test_a_chunk_that_was_sent_again_since_the_plan_stays(rig: Rig) -> None:
    old_run(rig)
    plan = planned(rig)
    again, *others = (rig.folder / "bucket" / key for key in plan.blobs)
    os.utime(again, (NOW, NOW))
    collecting.collect(plan, rig.objects, eraser(rig))
    assert again.exists()
    assert not any(path.exists() for path in others)


def test_parts_under_a_manifest_are_not_read(rig: Rig) -> None:
    old_run(rig)
    rig.path(s3keys.part(RUN, 1, 7, 0)).write_bytes(b"{")
    collecting.collect(planned(rig), rig.objects, eraser(rig))
    assert [damage.key for damage in inventory.verify(rig.objects, RUN, (1, 7))] == [s3keys.part(RUN, 1, 7, 0)]

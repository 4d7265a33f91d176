from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from spotproof.checkpoint.commit import make_part
from spotproof.checkpoint.localcopy import LocalCopies
from spotproof.contract.manifest import Part
from spotproof.errors import CheckpointError, Damaged, DiskFull, Missing
from tests.fakes.checkpoints import RUN, Rig, content_of, image_of, save_of


def part_of(step: int, image: bytes) -> Part:
    return make_part(save_of(step), content_of(image), image_name="__0_0.distcp")


def names(rig: Rig) -> list[str]:
    return sorted(path.name for path in (rig.folder / "scratch" / RUN).iterdir())


def test_a_copy_holds_the_files_and_says_what_they_are(rig: Rig) -> None:
    rig.stage(5, image_of(5))
    [copy] = rig.local.find()
    assert (copy.order, copy.rank) == ((1, 5), 0)
    assert copy.part() == part_of(5, image_of(5))
    assert (copy.folder / "__0_0.distcp").read_bytes() == image_of(5)


def test_the_newest_two_are_kept(rig: Rig) -> None:
    for step in (8, 9, 10, 11):
        rig.stage(step, image_of(step))
    assert [copy.step for copy in rig.local.find()] == [11, 10]
    assert len(names(rig)) == 2


def test_a_copy_that_is_there_is_kept_as_it_is(rig: Rig) -> None:
    rig.stage(5, image_of(5))
    rig.stage(5, image_of(6))
    assert rig.local.find()[0].part() == part_of(5, image_of(5))


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_names_folder_and_room_and_leaves_the_previous_copy(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    rig.stage(5, image_of(5))
    written = os.write

    def full(handle: int, data: bytes) -> int:
        written(handle, data[:10])
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(DiskFull) as told:
        rig.stage(6, image_of(6))
    assert str(rig.folder / "scratch" / RUN) in str(told.value)
    assert "free" in str(told.value)
    assert names(rig) == ["00000001-000000000005-00000"]


def test_another_disk_error_is_explained_too(tmp_path: Path) -> None:
    (tmp_path / "scratch").write_text("a file is in the way")
    with pytest.raises(CheckpointError, match="check the scratch folder"):
        LocalCopies(tmp_path / "scratch", RUN).stage(part_of(5, b"x"), {"__0_0.distcp": b"x"})


def test_a_disk_that_does_not_let_go_of_old_copies_is_explained_too(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    rig.stage(5, image_of(5))
    rig.stage(6, image_of(6))

    def stuck(*_: object, **__: object) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr("spotproof.checkpoint.localcopy.shutil.rmtree", stuck)
    with pytest.raises(CheckpointError, match="Input/output error"):
        rig.stage(7, image_of(7))
    assert rig.local.find()[0].step == 7


def test_what_a_killed_process_left_is_no_copy_and_is_cleaned(rig: Rig) -> None:
    rig.stage(5, image_of(5))
    torn = rig.folder / "scratch" / RUN / ".aside-00000001-000000000006-00000-99"
    torn.mkdir()
    (torn / "part.json").write_bytes(b"{}")
    assert [copy.step for copy in rig.local.find()] == [5]
    rig.local.clean()
    assert names(rig) == ["00000001-000000000005-00000"]


def test_every_chunk_that_is_read_back_is_checked(rig: Rig) -> None:
    rig.stage(5, image_of(5))
    [copy] = rig.local.find()
    read = rig.local.reader((1, 5), 0)
    first, second, *_ = copy.part().image.chunks
    target = bytearray(1000)
    read(second, memoryview(target))
    assert bytes(target) == image_of(5)[1000:2000]
    file = copy.folder / "__0_0.distcp"
    file.write_bytes(b"X" + file.read_bytes()[1:])
    with pytest.raises(Damaged, match="bytes 0 to 1000"):
        read(first, memoryview(target))


def test_a_copy_that_does_not_exist_is_missing(rig: Rig) -> None:
    with pytest.raises(Missing):
        rig.local.reader((1, 5), 0)


def test_a_copy_without_its_description_is_damaged(rig: Rig) -> None:
    rig.stage(5, image_of(5))
    [copy] = rig.local.find()
    (copy.folder / "part.json").unlink()
    with pytest.raises(Damaged):
        copy.part()

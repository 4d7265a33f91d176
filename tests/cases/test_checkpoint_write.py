"""Cases CW-*: writing a checkpoint. The kill of CW-02 at every write boundary is in benchmarks/kill.py as well."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from torch import nn

from spotproof.checkpoint.localcopy import LocalCopies
from spotproof.contract import s3keys
from spotproof.contract.layout import STATE_KEY
from spotproof.contract.manifest import decode_manifest
from spotproof.errors import DiskFull, Unavailable
from tests.fakes.checkpoints import RUN, Rig, bytes_of, image_of
from tests.fakes.training import Box, Net, Stored, snapshots, store

pytestmark = pytest.mark.torch

KIB = 1024


def fetched_step(rig: Rig) -> int | None:
    fetched = rig.fetcher().newest()
    if fetched is None:
        return None
    assert bytes_of(fetched) == image_of(fetched.order[1])
    return fetched.order[1]


def test_cw_01_a_checkpoint_holds_the_values_of_the_call() -> None:
    box = Box({"w": torch.ones(2_000_000), "b": torch.ones(10)})
    with snapshots({"box": box}) as (snapshotter, memory):
        for step in range(1, 4):
            for value in box.state.values():
                assert isinstance(value, torch.Tensor)
                value.fill_(step)
            snapshotter.save(step=step, generation=1, counters={})
            for value in box.state.values():
                assert isinstance(value, torch.Tensor)
                value.fill_(-1)
            back = Box({})
            Stored(image=memory.image(), plan=memory.plans[-1], step=step).load({"box": back})
            for value in back.state.values():
                assert isinstance(value, torch.Tensor)
                assert value.min() == value.max() == step
            memory.free()


KILLED_AT = """
import os, signal, sys
from pathlib import Path
from tests.fakes.checkpoints import Rig, image_of

rig = Rig(Path(sys.argv[1]))
def fails(number, key):
    if number == int(sys.argv[2]):
        os.kill(os.getpid(), signal.SIGKILL)
    return False
rig.objects.fails = fails
rig.commit(2, image_of(2, size=20_000))
"""


def test_cw_02_killed_in_the_middle_the_step_is_invisible(rig: Rig) -> None:
    """22 puts: 20 chunks and the layout, the part, and last the manifest (`.metadata` is known already)."""
    rig.commit(1, image_of(1))
    for number, newest in ((1, 1), (9, 1), (20, 1), (21, 1), (22, 1), (23, 2)):
        killed = subprocess.run([sys.executable, "-c", KILLED_AT, str(rig.folder), str(number)], check=False)
        assert killed.returncode == -9
        fetched = rig.fetcher().newest()
        assert fetched is not None
        assert fetched.order == (1, newest), f"killed at put {number}"
        assert bytes_of(fetched) == (image_of(1) if newest == 1 else image_of(2, size=20_000))


def test_cw_03_pointer_never_names_missing_data(rig: Rig) -> None:
    """Put number k fails, for every k of a save; the pointer names a complete checkpoint after each."""
    rig.commit(0, image_of(0))
    before = len(rig.objects.puts)
    rig.commit(1, image_of(1))
    puts_of_a_save = len(rig.objects.puts) - before
    for k in range(1, puts_of_a_save + 1):
        step = 1 + k
        begun = len(rig.objects.puts)
        rig.objects.fails = lambda number, key, at=begun + k: number == at  # type: ignore[misc]
        with pytest.raises(Unavailable):
            rig.commit(step, image_of(step))
        rig.objects.fails = lambda number, key: False
        rig.assert_pointer_names_whole_data()
        pointer = rig.stores.pointers.read(RUN)
        assert pointer is not None
        assert pointer.step == 1
    newest = fetched_step(rig)
    assert newest == 1 + puts_of_a_save, "only the save whose manifest alone was missing can be finished"


def test_cw_04_a_small_view_does_not_drag_its_storage_along() -> None:
    big = torch.rand(1_000_000)
    stored = store({"box": Box({"v": big[:10]})})
    [entry] = [entry for entry in stored.plan.layout.tensors if entry.key == "box.v"]
    assert entry.bytes == 40
    state = next(entry.bytes for entry in stored.plan.layout.tensors if entry.key == STATE_KEY)
    assert len(stored.image) - state <= 40 + 64 * KIB
    back = Box({})
    stored.load({"box": back})
    assert isinstance(back.state["v"], torch.Tensor)
    assert torch.equal(back.state["v"], big[:10])


def test_cw_05_tied_weights_are_stored_once_and_stay_tied() -> None:
    net = Net(words=10_000, width=100)
    stored = store({"model": net})
    assert len(stored.image) < 1.2 * 4_000_000
    other = Net(words=10_000, width=100)
    stored.load({"model": other})
    assert torch.equal(other.embed.weight, net.embed.weight)
    assert other.embed.weight.data_ptr() == other.head.weight.data_ptr()
    optimizer = torch.optim.SGD(other.parameters(), lr=0.1)
    nn.functional.cross_entropy(other(torch.arange(8)), torch.arange(8)).backward()
    optimizer.step()
    assert torch.equal(other.embed.weight, other.head.weight)


@contextmanager
def small_disk(size: str) -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp())
    mount = shutil.which("mount")
    made = mount and subprocess.run(
        [mount, "-t", "tmpfs", "-o", f"size={size}", "spotproof-test", str(folder)], check=False, capture_output=True
    )
    if not made or made.returncode != 0:
        folder.rmdir()
        pytest.skip("no right to mount a small tmpfs here; the unit test fills the disk by errno")
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)
        folder.rmdir()


def test_cw_10_disk_full_keeps_the_previous_copy(rig: Rig) -> None:
    with small_disk("64k") as folder:
        rig.local = LocalCopies(folder, RUN)
        rig.stage(5, image_of(5))
        with pytest.raises(DiskFull) as told:
            rig.stage(6, image_of(6, size=100_000))
        assert str(folder) in str(told.value)
        assert "free" in str(told.value)
        [copy] = rig.local.find()
        assert list((folder / RUN).iterdir()) == [copy.folder], "the partial copy is gone"
        fetched = rig.fetcher(local=True).newest()
        assert fetched is not None
        assert bytes_of(fetched) == image_of(5)


def test_cw_14_two_saves_of_one_step_are_one(rig: Rig) -> None:
    """A periodic and an emergency save of step 500, at the same time and with different bytes."""
    images = [image_of(500), image_of(501), image_of(502)]
    threads = [threading.Thread(target=rig.commit, args=(500, image)) for image in images]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    keys = [entry.key for entry in rig.objects.list(s3keys.checkpoint_prefix(RUN, 1, 500))]
    assert keys == [s3keys.manifest(RUN, 1, 500), s3keys.part(RUN, 1, 500, 0)]
    rig.assert_pointer_names_whole_data()
    manifest = decode_manifest(rig.objects.read(s3keys.manifest(RUN, 1, 500)))
    fetched = rig.fetcher().newest()
    assert fetched is not None
    assert fetched.manifest == manifest
    assert bytes_of(fetched) in images


def test_cw_14_asked_again_after_it_is_done_changes_nothing(rig: Rig) -> None:
    rig.commit(500, image_of(500))
    before = rig.objects.read(s3keys.manifest(RUN, 1, 500))
    assert rig.commit(500, image_of(1)).is_pointed
    assert rig.objects.read(s3keys.manifest(RUN, 1, 500)) == before
    assert fetched_step(rig) == 500

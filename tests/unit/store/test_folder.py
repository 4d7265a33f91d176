"""A folder of objects: no partial file under a final name, whatever dies when, and keys stay inside."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from spotproof.errors import Missing, StoreError, Unavailable
from spotproof.store.digest import digest_of
from spotproof.store.folder import LEFT_BEHIND_S, FolderObjects
from spotproof.store.objects import PutOutcome

ROOT = Path(__file__).resolve().parents[3]

WRITER = """
import sys
from pathlib import Path
from spotproof.store.digest import digest_of
from spotproof.store.folder import FolderObjects

objects, data = FolderObjects(Path(sys.argv[1])), bytes(3_000_000)
for number in range(10_000):
    body = number.to_bytes(8) + data
    objects.put_if_absent(f"blobs/{number:05d}", body, digest=digest_of(body))
    objects.put("newest", body, digest=digest_of(body))
    print(number, flush=True)
"""


def test_a_killed_writer_leaves_only_whole_objects(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", WRITER, str(tmp_path)], cwd=ROOT, stdout=subprocess.PIPE, text=True
    ) as writer:
        assert writer.stdout is not None
        for _ in range(5):
            writer.stdout.readline()
        writer.send_signal(signal.SIGKILL)
        acknowledged = 5 + len(writer.stdout.readlines())
    objects = FolderObjects(tmp_path)
    listed = [entry.key for entry in objects.list("blobs/")]
    assert len(listed) >= acknowledged
    for number, key in enumerate(listed):
        assert objects.read(key) == number.to_bytes(8) + bytes(3_000_000)
    assert len(objects.read("newest")) == 3_000_008


def test_what_a_dead_writer_left_aside_is_no_object_and_is_removed_when_old(tmp_path: Path) -> None:
    FolderObjects(tmp_path)
    old, young = tmp_path / ".aside" / "old", tmp_path / ".aside" / "young"
    old.write_bytes(b"half")
    young.write_bytes(b"half")
    long_ago = time.time() - LEFT_BEHIND_S - 10
    os.utime(old, (long_ago, long_ago))
    assert list(FolderObjects(tmp_path).list("")) == []
    assert not old.exists()
    assert young.exists()  # another process may be writing it


def test_nothing_is_left_aside_after_a_put(tmp_path: Path) -> None:
    objects = FolderObjects(tmp_path)
    objects.put("a/b", b"1", digest=digest_of(b"1"))
    assert objects.put_if_absent("a/b", b"2", digest=digest_of(b"2")) is PutOutcome.DIFFERENT
    assert list((tmp_path / ".aside").iterdir()) == []


@pytest.mark.parametrize("key", ["", "/etc/x", "a//b", "a/", "../x", "a/../../x", ".aside/x", "a/.hidden"])
def test_a_key_stays_inside_the_folder(tmp_path: Path, key: str) -> None:
    objects = FolderObjects(tmp_path / "root")
    with pytest.raises(StoreError, match="no object key"):
        objects.put(key, b"x", digest=digest_of(b"x"))
    with pytest.raises(StoreError):
        objects.read(key)
    assert [path.name for path in tmp_path.iterdir()] == ["root"]


def test_a_folder_is_no_object(tmp_path: Path) -> None:
    objects = FolderObjects(tmp_path)
    objects.put("a/b", b"1", digest=digest_of(b"1"))
    assert objects.head("a") is None
    with pytest.raises(Missing):
        objects.read("a")
    with pytest.raises(Missing):
        objects.read("a/b/c")


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    objects = FolderObjects(tmp_path)
    (tmp_path / "taken").write_bytes(b"a file where a folder should be")
    with pytest.raises(Unavailable, match="taken/x"):
        objects.put("taken/x", b"1", digest=digest_of(b"1"))


def test_cw_10_a_full_disk_is_named_and_nothing_is_left(tmp_path: Path) -> None:
    """A file size limit stands for the full disk: the same half-written file, without a mount of its own."""
    program = """
import resource, signal, sys
from pathlib import Path
from spotproof.errors import Unavailable
from spotproof.store.folder import FolderObjects

signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, 1_000_000))
objects = FolderObjects(Path(sys.argv[1]))
try:
    objects.put("blobs/x", bytes(2_000_000), digest="")
except Unavailable as error:
    print(error)
"""
    command = [sys.executable, "-c", program, str(tmp_path)]
    found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert f"{tmp_path}/blobs/x" in found.stdout
    assert list((tmp_path / ".aside").iterdir()) == []
    assert list(FolderObjects(tmp_path).list("")) == []

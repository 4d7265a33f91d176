"""What a run has in the bucket; every damage of a checkpoint has a name."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from spotproof.checkpoint import inventory
from spotproof.checkpoint.inventory import Standing
from spotproof.contract import s3keys
from spotproof.contract.items import Quarantine
from tests.fakes.checkpoints import RUN, Rig

IMAGE = bytes(range(250)) * 20


def spoil_flipped(rig: Rig) -> str:
    path = rig.blob_paths(5)[2]
    data = bytearray(path.read_bytes())
    data[7] ^= 1
    path.write_bytes(data)
    return path.name


def spoil_truncated(rig: Rig) -> str:
    path = rig.blob_paths(5)[1]
    path.write_bytes(path.read_bytes()[:-1])
    return path.name


def spoil_missing(rig: Rig) -> str:
    path = rig.blob_paths(5)[0]
    path.unlink()
    return path.name


def spoil_swapped(rig: Rig) -> str:
    one, other = rig.blob_paths(5)[:2]
    content = one.read_bytes()
    one.write_bytes(other.read_bytes())
    other.write_bytes(content)
    return one.name


def spoil_manifest(rig: Rig) -> str:
    path = rig.path(s3keys.manifest(RUN, 1, 5))
    path.write_bytes(path.read_bytes()[:-2])
    return "manifest.json"


def spoil_manifest_of_another_step(rig: Rig) -> str:
    older = rig.path(s3keys.manifest(RUN, 1, 4)).read_bytes()
    rig.path(s3keys.manifest(RUN, 1, 5)).write_bytes(older)
    return "manifest.json"


def image_of(step: int) -> bytes:
    return b"".join(bytes([step, number]) * 500 for number in range(4)) + IMAGE[:100]


@pytest.mark.parametrize(
    "spoil",
    [
        spoil_flipped,
        spoil_truncated,
        spoil_missing,
        spoil_swapped,
        spoil_manifest,
        spoil_manifest_of_another_step,
    ],
)
def test_each_damage_is_named_by_its_key(rig: Rig, spoil: Callable[[Rig], str]) -> None:
    for step in (4, 5):
        rig.commit(step, image_of(step))
    assert inventory.verify(rig.objects, RUN, (1, 5)) == ()
    name = spoil(rig)
    damages = inventory.verify(rig.objects, RUN, (1, 5))
    assert any(damage.key.endswith(name) for damage in damages)
    assert all(damage.what for damage in damages)


def test_progress_counts_every_byte_once(rig: Rig) -> None:
    commit = rig.commit(5, image_of(5))
    assert commit.manifest is not None
    counted: list[int] = []
    inventory.verify(rig.objects, RUN, (1, 5), progress=counted.append)
    assert sum(counted) == sum(chunk.bytes for chunk in commit.manifest.chunks())


def test_entries_tell_what_each_is_and_what_it_adds(rig: Rig) -> None:
    for step in (4, 5, 6):
        rig.commit(step, image_of(min(step, 5)))
    rig.stores.checkpoints.quarantine(Quarantine(run=RUN, generation=1, step=4, reason="flipped"))
    rig.path(s3keys.part(RUN, 1, 7, 0)).parent.mkdir()
    rig.path(s3keys.part(RUN, 1, 7, 0)).write_bytes(b"{}")
    found, manifests = inventory.entries(
        rig.objects, RUN, pointer=(1, 6), quarantined=rig.stores.checkpoints.quarantined(RUN)
    )
    assert [(entry.name, entry.standing) for entry in found] == [
        ("1-4", Standing.QUARANTINED),
        ("1-5", Standing.COMMITTED),
        ("1-6", Standing.NEWEST),
        ("1-7", Standing.INCOMPLETE),
    ]
    assert sorted(manifests) == [(1, 4), (1, 5), (1, 6)]
    assert found[1].bytes == len(image_of(5))
    assert found[1].own_bytes > 0
    assert found[2].own_bytes == 0  # step 6 has the bytes of step 5


def test_an_unreadable_manifest_is_listed_with_its_reason(rig: Rig) -> None:
    for step in (4, 5):
        rig.commit(step, image_of(step))
    spoil_manifest(rig)
    found, _ = inventory.entries(rig.objects, RUN, pointer=None, quarantined=())
    assert [bool(entry.reason) for entry in found] == [False, True]

"""Cases CW-07 and CW-11: how large and how many. An object is one PUT without parts, so none can have too many."""

from __future__ import annotations

import os

import pytest

from spotproof.checkpoint import inventory
from spotproof.checkpoint.chunks import MIB, chunk_bytes_for, spans
from spotproof.contract import s3keys
from spotproof.contract.runspec import parse
from spotproof.errors import BadRunSpec
from spotproof.plan.retention import DAY_S
from spotproof.store import collecting
from spotproof.store.erase import FolderEraser
from tests.fakes.checkpoints import RUN, Rig, image_of

GIB = 1024 * MIB
LARGEST_PUT = 5 * GIB  # of S3, for a request without parts
NOW = 2_000_000_000.0
SPEC = {"run": "r", "image": "a@sha256:" + "0" * 64, "command": ["x"], "pools": {"types": ["g5.xlarge"]}}


@pytest.mark.parametrize("image_bytes", [79 * GIB, 500 * GIB, 5 * 1024 * GIB])
@pytest.mark.parametrize("gbit_s", [0.1, 2.5, 25, 3200])
def test_cw_07_no_object_of_any_state_is_too_large_for_one_request(image_bytes: int, gbit_s: float) -> None:
    sizes = [size for _, size in spans(image_bytes, chunk_bytes_for(gbit_s * 1e9 / 8))]
    assert sum(sizes) == image_bytes
    assert 0 < max(sizes) <= LARGEST_PUT


def test_cw_07_a_chunk_size_that_a_person_sets_is_checked_before_the_run() -> None:
    largest = parse({**SPEC, "checkpoint": {"chunk_mib": 512}}).checkpoint.chunk_mib * MIB
    assert largest <= LARGEST_PUT
    with pytest.raises(BadRunSpec, match="chunk_mib"):
        parse({**SPEC, "checkpoint": {"chunk_mib": 6 * 1024}})


def test_cw_11_retention_goes_by_step_numbers_and_counts_what_is_whole(rig: Rig) -> None:
    for step in (9800, 9900, 10000):
        rig.commit(step, image_of(step))
    everything_is_old(rig)

    def collected() -> list[int]:
        planned = collecting.plan(rig.stores, RUN, keep=2, now=NOW)
        collecting.collect(planned, rig.objects, FolderEraser(rig.folder / "bucket"))
        return [order[1] for order in inventory.entries(rig.objects, RUN, pointer=None, quarantined=())[1]]

    assert collected() == [9900, 10000]
    rig.commit(10100, image_of(10100))
    rig.path(s3keys.manifest(RUN, 1, 10100)).unlink()  # as if the save had failed before its last write
    everything_is_old(rig)
    assert collected() == [9900, 10000]
    assert [inventory.verify(rig.objects, RUN, (1, step)) for step in (9900, 10000)] == [(), ()]


def everything_is_old(rig: Rig) -> None:
    """Thirty days; younger checkpoints are kept whatever their number."""
    for path in (rig.folder / "bucket").rglob("*"):
        if path.is_file():
            os.utime(path, (NOW - 30 * DAY_S, NOW - 30 * DAY_S))

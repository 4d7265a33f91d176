"""Cases of many nodes that need no processes. MN-01 to MN-06 are in tests/lab and tests/unit/rendezvous."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from spotproof.checkpoint.commit import Commit, Committer, Save, make_part
from spotproof.checkpoint.fetch import Fetcher
from spotproof.contract.layout import image_name
from spotproof.contract.states import SaveKind
from spotproof.errors import Unavailable
from spotproof.store.objects import Objects
from tests.fakes.checkpoints import RUN, FailingObjects, Rig, bytes_of, content_of, image_of

WORLD = 2


def committer(rig: Rig, objects: Objects) -> Committer:
    stores = rig.stores
    return Committer(
        objects=objects,
        checkpoints=stores.checkpoints,
        pointers=stores.pointers,
        clock=lambda: 1.0,
        threads=1,
    )


def commit(rig: Rig, rank: int, step: int, *, objects: Objects | None = None) -> Commit:
    save = Save(run=RUN, generation=1, step=step, kind=SaveKind.PERIODIC, rank=rank, world=WORLD)
    content = content_of(image_of(step + rank))
    part = make_part(save, content, image_name=image_name(rank))
    return committer(rig, objects or rig.objects).commit(part, content, kind=SaveKind.PERIODIC)


def newest(rig: Rig, rank: int) -> tuple[int, int]:
    fetched = Fetcher(stores=rig.stores, run=RUN, clock=time.time, rank=rank).newest()
    assert fetched is not None
    assert bytes_of(fetched) == image_of(fetched.order[1] + rank)
    return fetched.order


def test_CW_06_a_throttled_rank_holds_up_nobody_and_tears_nothing(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    commit(rig, 0, 10)
    whole = commit(rig, 1, 10)
    assert whole.manifest is not None
    assert whole.is_pointed
    throttled = FailingObjects(rig.objects.inner, fails=lambda number, key: True)
    with pytest.raises(Unavailable):
        commit(rig, 1, 20, objects=throttled)
    other = commit(rig, 0, 20)  # returns at once: no rank waits for another one's upload
    assert other.manifest is None
    assert not other.is_pointed
    assert [newest(rig, rank) for rank in range(WORLD)] == [(1, 10), (1, 10)]
    commit(rig, 0, 30)
    assert commit(rig, 1, 30).is_pointed
    assert [newest(rig, rank) for rank in range(WORLD)] == [(1, 30), (1, 30)]

"""Cases of many nodes that need no processes. MN-01, 03, 04 and 06 are in tests/lab and tests/unit/rendezvous."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from spotproof.checkpoint.commit import Commit, Committer, Save, make_part
from spotproof.checkpoint.fetch import Fetcher
from spotproof.contract.layout import image_name
from spotproof.contract.states import NodePhase, RunStatus, SaveKind
from spotproof.errors import Unavailable
from spotproof.store.objects import Objects
from tests.fakes.checkpoints import RUN, FailingObjects, Rig, bytes_of, content_of, image_of
from tests.fakes.control import World, notice, state

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


def test_MN_02_a_worker_node_is_gone_and_the_head_is_fine(tmp_path: Path) -> None:
    """Recovery begins from the event, and the survivors are told: their membership is marked."""
    world = World(folder=tmp_path)
    _, lost = world.started(slots=2)
    world.beat_all()
    world.ec2.instances[lost].state = "terminated"
    assert world.deliver(state(lost, world.clock(), "terminated")) == {}
    slot = world.slot(number=1)
    assert (slot.incarnation, slot.holder_instance) == (2, lost)
    assert slot.successor_instance not in (None, lost)
    assert world.head().bad == 1
    assert world.slot(number=0).successor_instance is None


def test_MN_02_no_event_comes_and_the_sweep_sees_it(tmp_path: Path) -> None:
    world = World(folder=tmp_path)
    _, lost = world.started(slots=2)
    world.beat_all()
    world.tick(after_s=1)
    world.ec2.instances[lost].state = "terminated"
    world.tick(after_s=60)
    assert world.slot(number=1).incarnation == 2
    assert world.head().bad == 1


def test_MN_02_a_node_with_time_to_flush_is_not_lost_yet_and_is_when_it_ends(tmp_path: Path) -> None:
    world = World(folder=tmp_path)
    _, leaver = world.started(slots=2)
    world.beat_all()
    world.deliver(notice(leaver, world.clock()))
    assert world.head().bad == 0  # it leaves by itself, once all ranks have saved
    world.clock.advance(20)
    world.ec2.instances[leaver].state = "terminated"
    world.deliver(state(leaver, world.clock(), "terminated"))
    assert world.head().bad == 1


def test_MN_02_a_notice_that_comes_after_its_deadline_is_a_loss(tmp_path: Path) -> None:
    world = World(folder=tmp_path)
    _, lost = world.started(slots=2)
    world.beat_all()
    world.deliver(notice(lost, world.clock() - 300))
    assert world.slot(number=1).incarnation == 2
    assert world.head().bad == 1


def test_MN_05_a_replacement_is_taken_while_it_recovers_three_times_and_the_run_goes_on(tmp_path: Path) -> None:
    world = World(folder=tmp_path)
    world.started(slots=2)
    for _ in range(3):
        slot = world.slot(number=1)
        world.boot()
        world.deliver(notice(str(slot.successor_instance or slot.holder_instance), world.clock()))
        world.tick(after_s=5)
    assert world.head().status is RunStatus.ACTIVE
    assert world.slot(number=1).incarnation == 4


def test_MN_05_a_trainer_that_fails_without_any_notice_ends_the_run_and_nothing_is_left(tmp_path: Path) -> None:
    world = World(folder=tmp_path)
    first, _ = world.started(slots=2)
    world.beat_all()
    world.beat("mini", first, NodePhase.FAILED, generation=1, exit_code=1)  # its agent has counted to the run's budget
    for _ in range(15):
        world.tick()
    assert world.head().status is RunStatus.FAILED
    assert not [one for one in world.ec2.instances.values() if one.is_alive]

"""Every run is collected, one after the other, and none costs the others anything."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from lambdas.collecting import RESERVE_S, Collector, in_turn
from spotproof.contract import s3keys
from spotproof.contract.limits import COLLECT_PERIOD_S
from spotproof.errors import Damaged
from spotproof.plan.retention import DAY_S
from spotproof.store.erase import FolderEraser
from spotproof.store.spec import Specs
from tests.fakes.checkpoints import RUN, Rig

NOW = 2_000_000_000.0


class Said:
    """A log that is read."""

    def __init__(self) -> None:
        self.lines: list[tuple[str, Mapping[str, object]]] = []

    def info(self, msg: object, *args: object, extra: Mapping[str, object] | None = None) -> None:
        self.lines.append((str(msg), {"args": args, **(extra or {})}))

    warning = info

    def error(
        self, msg: object, *args: object, exc_info: bool = False, extra: Mapping[str, object] | None = None
    ) -> None:
        self.info(msg, *args, exc_info, extra=extra)


def old(rig: Rig) -> None:
    for step in range(1, 8):
        rig.commit(step, step.to_bytes(4, "big") * 500)
    for path in (rig.folder / "bucket").rglob("*.json"):
        os.utime(path, (NOW - 30 * DAY_S, NOW - 30 * DAY_S))
    for path in (rig.folder / "bucket" / "runs" / RUN / "blobs").iterdir():
        os.utime(path, (NOW - 30 * DAY_S, NOW - 30 * DAY_S))


def collector(rig: Rig, runs: Sequence[str], said: Said, clock: Sequence[float] = ()) -> Collector:
    times = list(clock)
    return Collector(
        runs=lambda: runs,
        stores=rig.stores,
        specs=Specs(rig.table),
        eraser=FolderEraser(rig.folder / "bucket"),
        log=said,
        clock=lambda: times.pop(0) if times else NOW,
    )


def left(rig: Rig) -> list[int]:
    found = (s3keys.order_of_first_part(info.key) for info in rig.objects.list(s3keys.checkpoints_prefix(RUN)))
    return sorted(order[1] for order in found if order)


def test_old_checkpoints_go_and_a_second_collection_finds_nothing(tmp_path: Path) -> None:
    rig, said = Rig(tmp_path), Said()
    with rig.table:
        old(rig)
        first = collector(rig, [RUN], said).collect(until=NOW + 900)
        assert left(rig) == [5, 6, 7]
        assert first["objects"] == 4 * 3  # manifest, part and its own chunk of each
        assert first["bytes"] > 4 * 1000
        second = collector(rig, [RUN], said).collect(until=NOW + 900)
        assert second == {"runs": 1, "objects": 0, "bytes": 0}


def test_a_run_that_cannot_be_read_costs_only_itself_and_is_told(tmp_path: Path) -> None:
    rig, said = Rig(tmp_path), Said()
    with rig.table:
        old(rig)
        torn = rig.path(s3keys.manifest("a", 1, 1))
        torn.parent.mkdir(parents=True)
        torn.write_bytes(b"{")
        with pytest.raises(Damaged, match="runs/a/"):
            collector(rig, ["a", RUN], said).collect(until=NOW + 900)
        assert torn.exists()
        assert left(rig) == [5, 6, 7]
        assert [extra["run"] for text, extra in said.lines if text == "not collected"] == ["a"]


def test_without_time_nothing_is_begun(tmp_path: Path) -> None:
    rig, said = Rig(tmp_path), Said()
    with rig.table:
        old(rig)
        done = collector(rig, [RUN], said).collect(until=NOW + RESERVE_S - 1)
        assert done["runs"] == 0
        assert left(rig) == list(range(1, 8))


def test_every_run_is_the_first_one_once() -> None:
    runs = ("a", "b", "c")
    orders = [in_turn(runs, now=hour * COLLECT_PERIOD_S) for hour in range(3)]
    assert {order[0] for order in orders} == set(runs)
    assert all(sorted(order) == list(runs) for order in orders)
    assert in_turn((), now=NOW) == ()

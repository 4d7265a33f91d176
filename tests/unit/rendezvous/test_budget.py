"""Pitfall 11: what a generation asks of the table is counted, and too much of it fails."""

from __future__ import annotations

import pytest

from benchmarks.rendezvous_budget import WRITES_PER_NODE, ours, problems
from spotproof.rendezvous.joining import poll_s, spread_s
from tests.fakes.metered_table import Meter


@pytest.mark.parametrize("nodes", [4, 64])
def test_pitfall_11_a_generation_stays_within_its_budget(nodes: int) -> None:
    rows = {row.phase: row for row in ours(nodes)}
    assert not [problem for row in rows.values() for problem in problems(row)]
    for phase in ("join", "replace"):
        assert 1.0 <= rows[phase].meter.writes / nodes <= WRITES_PER_NODE
    minute = rows["60 s"].meter
    assert minute.lost == 0
    assert minute.writes / nodes <= 13  # a beat each 5 s
    assert minute.reads / nodes <= 75  # NEWEST each second, the neighbour each 5 s


def test_the_budget_can_be_broken() -> None:
    row = ours(4)[0]
    assert not problems(row)
    row.meter.writes = 17
    assert problems(row)
    row.meter.writes = 4
    row.meter.by_second["r", "p", 0] = 3000
    assert problems(row)
    assert Meter().busiest_reads == 0


@pytest.mark.parametrize("nodes", [1, 64, 500, 1000, 5000])
def test_however_many_nodes_look_one_item_is_read_a_sixth_of_what_a_partition_takes(nodes: int) -> None:
    assert nodes / poll_s(nodes) <= 500
    units = -(-nodes * 32 // 4096)
    assert nodes * units / max(spread_s(nodes), 1.0) <= 2000

"""A run's story, read from the table: the newest part of its timeline, its checkpoints, what its machines cost.

For the command line and the dashboard's widget. Reads HIST, the run's own items and its checkpoints; never INSTANCE
items one by one, since the timeline says where each node came from.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from itertools import pairwise
from typing import Final

from spotproof.contract.history import HistoryKind
from spotproof.contract.items import Generation, History
from spotproof.report.model import Point, Segment, Story
from spotproof.report.money import bill, on_demand_prices, rentals
from spotproof.report.story import Sources, tell
from spotproof.store.checkpoints import Checkpoints
from spotproof.store.head import Heads
from spotproof.store.history import Histories
from spotproof.store.members import Memberships
from spotproof.store.spec import Specs
from spotproof.store.table import Table

__all__ = ["ENTRIES_AT_MOST", "starts_of", "story_from"]

ENTRIES_AT_MOST: Final = 20_000  # about 4 MB: a thousand nodes, each lost three times
CHECKPOINTS_AT_MOST: Final = 200
MEMBERSHIPS_AT_MOST: Final = 100


def story_from(
    table: Table,
    run: str,
    *,
    now: float,
    entries_at_most: int = ENTRIES_AT_MOST,
    segments: Sequence[Segment] = (),
    reference: Sequence[Point] = (),
) -> Story:
    """The story up to `now`, or to the end of a run that is over; `segments` and `reference` are the losses, if any."""
    head, spec = Heads(table).read(run), Specs(table).read(run)
    history = Histories(table).newest(run, limit=entries_at_most) or _memberships(table, run)
    goes_on = head is not None and head.status.is_live
    sources = Sources(
        segments=segments,
        reference=reference,
        checkpoints=Checkpoints(table).newest(run, limit=CHECKPOINTS_AT_MOST),
        until=now if goes_on else None,
    )
    told = tell(history, sources, run=run, title=run, lead=_lead(history, entries_at_most))
    on_demand = on_demand_prices(() if spec is None else spec.pools.on_demand_usd)
    until = now if goes_on else told.end_at
    return dataclasses.replace(told, money=bill(rentals(history, on_demand=on_demand, until=until)).money())


def starts_of(table: Table, run: str) -> dict[tuple[int, int], float]:
    """(slot, incarnation) -> when it joined, as the newest memberships tell."""
    starts: dict[tuple[int, int], float] = {}
    for entry in _memberships(table, run):
        if entry.what != HistoryKind.SEALED:
            continue
        starts.setdefault((entry.slot or 0, entry.incarnation or 0), entry.at_ms / 1000)
    return starts


def _memberships(table: Table, run: str) -> list[History]:
    """The seals of the run as a timeline: all there is of a local run, which no control plane looks after."""
    memberships = Memberships(table)
    newest = memberships.newest(run)
    numbers = range(max(1, newest.generation - MEMBERSHIPS_AT_MOST + 1), newest.generation + 1) if newest else ()
    sealed = [one for one in (memberships.generation(run, number) for number in numbers) if one is not None]
    joins = [
        _entry(one, member, what)
        for one in sealed
        for member in one.members
        for what in (HistoryKind.BOOTED, HistoryKind.SEALED)
    ]
    ends = [
        _entry(after, member, HistoryKind.ENDED)
        for before, after in pairwise(sealed)
        for member in before.members
        if member not in after.members
    ]
    return [*joins, *ends]


def _entry(sealed: Generation, member: str, what: HistoryKind) -> History:
    slot, incarnation, instance = member.split(":", 2)
    return History(
        run=sealed.run,
        at_ms=sealed.sealed_at * 1000,
        what=what.value,
        slot=int(slot),
        incarnation=int(incarnation),
        instance=instance,
        step=sealed.start_step,
    )


def _lead(history: Sequence[History], at_most: int) -> str:
    return f"The newest {at_most} entries of its timeline." if len(history) == at_most else ""

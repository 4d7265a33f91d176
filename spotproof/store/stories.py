"""A run's story, read from the table: the newest part of its timeline, its checkpoints, what its machines cost.

For the command line and the dashboard's widget. Reads HIST, the run's own items and its checkpoints; never INSTANCE
items one by one, since the timeline says where each node came from.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Final

from spotproof.contract.items import History
from spotproof.report.model import Point, Segment, Story
from spotproof.report.money import bill, on_demand_prices, rentals
from spotproof.report.story import Sources, tell
from spotproof.store.checkpoints import Checkpoints
from spotproof.store.head import Heads
from spotproof.store.history import Histories
from spotproof.store.spec import Specs
from spotproof.store.table import Table

__all__ = ["ENTRIES_AT_MOST", "story_from"]

ENTRIES_AT_MOST: Final = 20_000  # about 4 MB: a thousand nodes, each lost three times
CHECKPOINTS_AT_MOST: Final = 200


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
    history = Histories(table).newest(run, limit=entries_at_most)
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


def _lead(history: Sequence[History], at_most: int) -> str:
    return f"The newest {at_most} entries of its timeline." if len(history) == at_most else ""

"""Nodes that the stack starts for advice alone, counted: in a storm, when a whole pool is shaky, there are no more."""

from __future__ import annotations

from spotproof.contract import keys
from spotproof.contract.limits import STORM_QUIET_S
from spotproof.errors import Lost
from spotproof.store.table import Absent, AllOf, AnyOf, Eq, Le, Lt, Put, Table, Update

__all__ = ["Storms"]


class Storms:
    """Counted in windows of fixed length; an item of an earlier window is begun anew."""

    def __init__(self, table: Table) -> None:
        self._table = table

    def spend(self, region: str, *, window: int, limit: int) -> int:
        """Count one prewarmed node of the stack in this window and return how many there are now.

        Raises Lost when `limit` nodes have been prewarmed in it: this is a storm, prewarm no more.
        """
        key = keys.stack_prewarms(region, window)
        more = Update(key=key, increment={"prewarms": 1}, when=AllOf(Eq("window", window), Lt("prewarms", limit)))
        first = Put(key=key, item={"window": window, "prewarms": 1}, when=AnyOf(Absent("pk"), Lt("window", window)))
        try:
            return int(str(self._table.write(more)["prewarms"]))
        except Lost as lost:
            if lost.current is not None and lost.current.get("window") == window:
                raise
        try:
            return int(str(self._table.write(first)["prewarms"]))
        except Lost:  # another handler began the window in this moment
            return int(str(self._table.write(more)["prewarms"]))

    def note(self, region: str, *, now: int) -> None:
        """Note that people are told of a storm. Raises Lost if they were told less than STORM_QUIET_S ago."""
        quiet = AnyOf(Absent("pk"), Le("said_at", now - STORM_QUIET_S))
        self._table.write(Put(key=keys.storm(region), item={"said_at": now}, when=quiet))

"""The launcher's short lease: it only saves work. Correctness never rests on it; LAUNCH#n and the slots carry that."""

from __future__ import annotations

from spotproof.contract import keys
from spotproof.contract.items import LauncherLease, from_item, to_item
from spotproof.errors import Lost
from spotproof.store.table import Absent, AnyOf, Delete, Eq, Le, Put, Table

__all__ = ["LauncherLeases"]


class LauncherLeases:
    """One lease per run. Its time stands in the item and in the condition; TTL has no part in it."""

    def __init__(self, table: Table) -> None:
        self._table = table

    def take(self, run: str, owner: str, *, now: int, until: int) -> LauncherLease:
        """Take or renew the lease until `until`.

        Raises Lost while somebody else has it: he will look again after letting go, so there is nothing to do here.
        """
        lease = LauncherLease(run=run, owner=owner, until=until)
        free = AnyOf(Absent("pk"), Eq("owner", owner), Le("until", now))
        return from_item(LauncherLease, self._table.write(Put(key=keys.launcher(run), item=to_item(lease), when=free)))

    def let_go(self, run: str, owner: str) -> None:
        """Give the lease back. If it has expired and is another's by now, it stays his."""
        try:
            self._table.write(Delete(key=keys.launcher(run), when=AnyOf(Absent("pk"), Eq("owner", owner))))
        except Lost:
            return  # another's lease: not ours to remove

"""A claim and the launch that fills it as one write: whoever sees the claim sees the launch's record.

The way of one loss of a run on which nothing else is going on (lambdas.decisions.express). Slower ways make the same
writes one by one; each condition here is theirs.
"""

from __future__ import annotations

from spotproof.contract import keys
from spotproof.contract.items import Head
from spotproof.contract.states import LaunchState
from spotproof.store.table import Absent, AllOf, Check, Condition, Eq, Op, Table, Update, Write

__all__ = ["Replacements"]


class Replacements:
    """Claims with their launches."""

    def __init__(self, table: Table) -> None:
        self._table = table

    def begin(self, seen: Head, claim: Update, launch: Write, *, order: Update | None, count: Write | None) -> None:
        """Claim a place and put its launch's record; with them the run's flush order and the hour's count. All or none.

        The run must have the status that was seen, and the launch whose outcome it counted last must be closed: then
        none is unfinished, because a launch is only begun when all before it are closed, and its own number is free.

        Raises Lost if anything has changed since it was seen: nothing has been done, decide anew.
        """
        ops: list[Op] = [_in_status(seen, order), claim, launch]
        if seen.counted_launch:
            closed = Eq("state", LaunchState.CLOSED.value)
            ops.append(Check(key=keys.launch(seen.run, seen.counted_launch), when=closed))
        self._table.transact(ops if count is None else [*ops, count])


def _in_status(seen: Head, order: Update | None) -> Op:
    """The head, with the order in place of the one that was seen. Another order's id means another order."""
    active = Eq("status", seen.status.value)
    if order is None:
        return Check(key=keys.head(seen.run), when=active)
    stands: Condition = Absent("order") if seen.order is None else Eq("order", seen.order)
    return Update(key=order.key, set=order.set, when=AllOf(stands, active))

"""Launch records: written before CreateFleet is called, answered after it, closed when every instance has its place."""

from __future__ import annotations

from spotproof.contract import keys
from spotproof.contract.items import Launch, from_item, to_item
from spotproof.contract.states import LaunchState
from spotproof.errors import Lost
from spotproof.store.table import Absent, AllOf, Eq, Put, Table, Update, Write

__all__ = ["Launches"]

_RECENT = 8  # a launch is begun when all before it are closed; a record of a thousand nodes has 60 KB


class Launches:
    """The launch records of all runs. Order of calls: newest, intend, (CreateFleet), answer, (bind), close."""

    def __init__(self, table: Table) -> None:
        self._table = table

    def read(self, run: str, number: int) -> Launch | None:
        """Return one record, or None."""
        item = self._table.get(keys.launch(run, number))
        return None if item is None else from_item(Launch, item)

    def recent(self, run: str, *, limit: int = _RECENT) -> tuple[Launch, ...]:
        """Return the newest `limit` records, oldest of them first."""
        items = self._table.query(keys.run_partition(run), prefix=keys.LAUNCH_PREFIX, limit=limit, newest_first=True)
        return tuple(from_item(Launch, item) for item in reversed(items))

    def unfinished(self, run: str) -> tuple[Launch, ...]:
        """Return the records that are not closed, oldest first: replay these before a new one is put.

        Because they are replayed first, there is never an open one behind the newest few.
        """
        return tuple(launch for launch in self.recent(run) if launch.state is not LaunchState.CLOSED)

    def next_number(self, run: str) -> int:
        """Return the number after the newest record, from 1, by a consistent read."""
        newest = self.recent(run, limit=1)
        return newest[-1].launch + 1 if newest else 1

    def intend(self, launch: Launch) -> Launch:
        """Put the record if its number is free; the same request with the same wants already there is success.

        Raises Lost if another launch has the number: let go, look again for open claims.
        """
        try:
            return from_item(Launch, self._table.write(self.intending(launch)))
        except Lost as lost:
            stands = None if lost.current is None else from_item(Launch, lost.current)
            if stands is None or (stands.token, stands.wants) != (launch.token, launch.wants):
                raise
            return stands

    def intend_counted(self, launch: Launch, count: Write) -> None:
        """Put the record and count it, both or none. Raises Lost if its number is taken or the count is another."""
        self._table.transact([self.intending(launch), count])

    def intending(self, launch: Launch) -> Put:
        """The write that puts the record if its number is free, for a transaction."""
        return Put(key=keys.launch(launch.run, launch.launch), item=to_item(launch), when=Absent("pk"))

    def answer(
        self,
        run: str,
        number: int,
        *,
        instances: tuple[str, ...],
        errors: tuple[str, ...],
        now: int,
        pools: tuple[str, ...] = (),
    ) -> Launch:
        """Write what CreateFleet answered; the same answer again is success.

        Raises Lost if another answer stands (a replay by somebody else was faster): act on that one, and amend it
        with instances that it lacks.
        """
        change = Update(
            key=keys.launch(run, number),
            set={
                "state": LaunchState.ANSWERED.value,
                "instances": list(instances),
                "pools": list(pools),
                "errors": list(errors),
                "answered_at": now,
            },
            when=Eq("state", LaunchState.INTENDED.value),
        )
        try:
            return from_item(Launch, self._table.write(change))
        except Lost as lost:
            stands = None if lost.current is None else from_item(Launch, lost.current)
            if stands is None or set(stands.instances) != set(instances):
                raise
            return stands

    def amend(self, seen: Launch, instances: tuple[str, ...]) -> Launch:
        """Add instances that carry the launch's tag and are not in its answer.

        Raises Lost if the record changed since it was seen: read it again.
        """
        joined = list(dict.fromkeys((*seen.instances, *instances)))
        change = Update(
            key=keys.launch(seen.run, seen.launch),
            set={"instances": joined},
            when=AllOf(Eq("state", seen.state.value), Eq("instances", list(seen.instances))),
        )
        return from_item(Launch, self._table.write(change))

    def release(self, seen: Launch) -> Launch:
        """Give up an answered launch of a gang that brought too few: its instances are ended, never bound.

        A second time is success. Raises Lost if instances were added since it was seen: look again.
        """
        change = Update(
            key=keys.launch(seen.run, seen.launch),
            set={"released": True},
            when=AllOf(Eq("state", LaunchState.ANSWERED.value), Eq("instances", list(seen.instances))),
        )
        return from_item(Launch, self._table.write(change))

    def close(self, run: str, number: int) -> Launch:
        """Say that every instance of an answered launch is bound or ended; a second time is success.

        Raises Lost if it has no answer yet: it must be replayed.
        """
        change = Update(
            key=keys.launch(run, number),
            set={"state": LaunchState.CLOSED.value},
            when=Eq("state", LaunchState.ANSWERED.value),
        )
        try:
            return from_item(Launch, self._table.write(change))
        except Lost as lost:
            if lost.current is None or lost.current.get("state") != LaunchState.CLOSED.value:
                raise
            return from_item(Launch, lost.current)

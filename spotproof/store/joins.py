"""JOIN and SEALER: the launchers in a run's rendezvous, and which of them gathers the next membership."""

from __future__ import annotations

from spotproof.contract import keys
from spotproof.contract.items import Join, Sealer, from_item, to_item
from spotproof.errors import Lost, Superseded
from spotproof.store.table import Absent, AllOf, AnyOf, Eq, Exists, Item, Lt, Ne, Put, Table, Update

__all__ = ["Joins"]


class Joins:
    """The rendezvous of all runs. A node writes only its own JOIN; SEALER is written by whoever takes the work on."""

    def __init__(self, table: Table) -> None:
        self._table = table

    def put(self, join: Join) -> None:
        """Write the node's whole entry; the last one wins, because only the node's own launcher writes it.

        Raises Superseded if the node has left for good.
        """
        try:
            self._table.write(Put(key=keys.join(join.run, join.node), item=to_item(join), when=Ne("gone", True)))
        except Lost as lost:
            raise Superseded(
                f"run {join.run}: {join.node} has left for good", next_step="nothing: its place is another node's now"
            ) from lost

    def beat(self, run: str, node: str) -> None:
        """Let the node's entry change once more. Raises Lost if there is none."""
        change = Update(key=keys.join(run, node), increment={"beats": 1}, when=Exists("pk"))
        self._table.write(change)

    def leave(self, run: str, node: str) -> bool:
        """Mark this node, and nobody else, as gone on purpose; False if it never joined."""
        try:
            self._table.write(Update(key=keys.join(run, node), set={"left": True}, when=Exists("pk")))
        except Lost:
            return False
        return True

    def leave_for_good(self, run: str, node: str) -> None:
        """Mark this node as gone with its machine: its launcher cannot come back, however late it tries to."""
        said: Item = {"run": run, "node": node, "left": True, "gone": True}
        self._table.write(Update(key=keys.join(run, node), set=said))

    def read(self, run: str, node: str) -> Join | None:
        """Return one node's entry, or None."""
        item = self._table.get(keys.join(run, node))
        return None if item is None else from_item(Join, item)

    def list(self, run: str) -> tuple[Join, ...]:
        """Return every entry that was ever made, by node: a query of each shard. Only sealer and standbys ask."""
        items = [
            item for shard in range(keys.NODE_SHARDS) for item in self._table.query(keys.join_partition(run, shard))
        ]
        return tuple(sorted((from_item(Join, item) for item in items), key=lambda join: join.node))

    def sealer(self, run: str) -> Sealer | None:
        """Return who last took on the gathering, of whichever generation."""
        item = self._table.get(keys.sealer(run))
        return None if item is None else from_item(Sealer, item)

    def take_over(self, sealer: Sealer, *, silent: Sealer | None) -> bool:
        """Take the gathering on: nobody has for this generation, or only `silent` has, who has not beaten since.

        False if somebody else was first. Two sealers do no harm: the seal is a transaction and one of them loses.
        """
        free = AnyOf(Absent("number"), Lt("number", sealer.number))
        if silent is not None and silent.number == sealer.number:
            free = AnyOf(free, AllOf(Eq("node", silent.node), Eq("beats", silent.beats)))
        try:
            self._table.write(Put(key=keys.sealer(sealer.run), item=to_item(sealer), when=free))
        except Lost:
            return False
        return True

    def beat_sealer(self, sealer: Sealer) -> bool:
        """Say that the gathering goes on; False if another one has taken it over."""
        mine = AllOf(Eq("number", sealer.number), Eq("node", sealer.node))
        try:
            self._table.write(Update(key=keys.sealer(sealer.run), increment={"beats": 1}, when=mine))
        except Lost:
            return False
        return True

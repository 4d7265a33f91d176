"""NODE items: the heartbeat of each incarnation. What a node says here is a hint to the control plane."""

from __future__ import annotations

from spotproof.contract import keys
from spotproof.contract.items import Node, from_item, to_item
from spotproof.errors import Lost, Superseded
from spotproof.store.table import Absent, AnyOf, Eq, Item, Put, Table

__all__ = ["Nodes", "node_of"]

_IN_THE_KEY = ("run", "slot", "incarnation")


class Nodes:
    """Heartbeats. The key says run, slot and incarnation, so the item does not repeat them: it stays at 200 bytes."""

    def __init__(self, table: Table) -> None:
        self._table = table

    def beat(self, node: Node) -> None:
        """Write the node's whole state; the last one wins, because only the node itself writes it.

        Raises Superseded if another instance beats under this slot and incarnation: this node is not in the run.
        """
        item = {name: value for name, value in to_item(node).items() if name not in _IN_THE_KEY}
        key = keys.node(node.run, node.slot, node.incarnation)
        try:
            self._table.write(Put(key=key, item=item, when=AnyOf(Absent("pk"), Eq("instance", node.instance))))
        except Lost as lost:
            other = "nobody" if lost.current is None else lost.current.get("instance")
            raise Superseded(
                f"slot {node.slot} incarnation {node.incarnation} of run {node.run} belongs to {other}, "
                f"not to {node.instance}",
                next_step="stop this node; its place has been given away",
            ) from lost

    def read(self, run: str, slot: int, incarnation: int) -> Node | None:
        """Return the newest beat of one incarnation, or None before its first."""
        item = self._table.get(keys.node(run, slot, incarnation))
        return None if item is None else node_of(run, item)

    def list(self, run: str, *, slots: int) -> tuple[Node, ...]:
        """Return the newest beat of every incarnation so far, in the order of (slot, incarnation)."""
        shards = range(min(slots, keys.NODE_SHARDS))
        items = [item for shard in shards for item in self._table.query(keys.node_shard_partition(run, shard))]
        return tuple(sorted((node_of(run, item) for item in items), key=lambda node: (node.slot, node.incarnation)))


def node_of(run: str, item: Item) -> Node:
    """Return the beat that an item of the table holds."""
    _, slot, incarnation = str(item["sk"]).split("#")
    return from_item(Node, {**item, "run": run, "slot": int(slot), "incarnation": int(incarnation)})

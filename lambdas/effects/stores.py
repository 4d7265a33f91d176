"""The domain stores of one table, made together, and the bucket beside them."""

from __future__ import annotations

from spotproof.contract.frozen import dataclass
from spotproof.store.checkpoints import Checkpoints
from spotproof.store.head import Heads
from spotproof.store.history import Histories
from spotproof.store.launcher import LauncherLeases
from spotproof.store.launches import Launches
from spotproof.store.live import LiveIndex
from spotproof.store.many import Many
from spotproof.store.members import Members, Memberships
from spotproof.store.nodes import Nodes
from spotproof.store.objects import Objects
from spotproof.store.pointer import Pointers
from spotproof.store.pools import Pools
from spotproof.store.replacements import Replacements
from spotproof.store.slots import Slots
from spotproof.store.spec import Specs
from spotproof.store.storms import Storms
from spotproof.store.table import BulkTable


@dataclass(frozen=True, slots=True, kw_only=True)
class Stores:
    """Everything durable."""

    specs: Specs
    heads: Heads
    slots: Slots
    launches: Launches
    leases: LauncherLeases
    members: Members
    memberships: Memberships
    live: LiveIndex
    nodes: Nodes
    checkpoints: Checkpoints
    pointers: Pointers
    pools: Pools
    replacements: Replacements
    storms: Storms
    histories: Histories
    many: Many
    objects: Objects


def stores_of(table: BulkTable, objects: Objects) -> Stores:
    """The stores over `table`."""
    return Stores(
        specs=Specs(table),
        heads=Heads(table),
        slots=Slots(table),
        launches=Launches(table),
        leases=LauncherLeases(table),
        members=Members(table),
        memberships=Memberships(table),
        live=LiveIndex(table),
        nodes=Nodes(table),
        checkpoints=Checkpoints(table),
        pointers=Pointers(table),
        pools=Pools(table),
        replacements=Replacements(table),
        storms=Storms(table),
        histories=Histories(table),
        many=Many(table),
        objects=objects,
    )

"""Table keys: one table, `pk` and `sk`, both strings. Nodes may write only keys whose pk begins with NODE#."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import Final

from spotproof.contract.frozen import dataclass
from spotproof.contract.limits import LIVE_SHARDS

PK: Final = "pk"
SK: Final = "sk"
TTL: Final = "ttl"  # on history items only; never a lease
NODE_PREFIX: Final = "NODE#"


@dataclass(frozen=True, slots=True, kw_only=True)
class Key:
    """The full key of one item."""

    pk: str
    sk: str


def run_partition(run: str) -> str:
    """Partition of everything the control plane keeps of a run."""
    return f"RUN#{run}"


def spec(run: str) -> Key:
    """What submit wrote."""
    return Key(pk=run_partition(run), sk="SPEC")


def head(run: str) -> Key:
    """Status, cause and the flush order: what agents poll."""
    return Key(pk=run_partition(run), sk="HEAD")


SLOT_PREFIX: Final = "SLOT#"
LAUNCH_PREFIX: Final = "LAUNCH#"


def slot(run: str, number: int) -> Key:
    """Slot `number`, zero-padded so that a query returns slots in order."""
    return Key(pk=run_partition(run), sk=f"{SLOT_PREFIX}{number:04d}")


def launch(run: str, number: int) -> Key:
    """Launch record `number`, in order."""
    return Key(pk=run_partition(run), sk=f"{LAUNCH_PREFIX}{number:08d}")


def launcher(run: str) -> Key:
    """The launcher's short lease."""
    return Key(pk=run_partition(run), sk="LAUNCHER")


def member(instance: str) -> Key:
    """Which run, slot and launch an instance belongs to."""
    return Key(pk=f"INSTANCE#{instance}", sk="INSTANCE")


def live_partition(shard: int) -> str:
    """One of the sweep's index partitions."""
    return f"LIVE#{shard}"


def live(run: str) -> Key:
    """The run's entry in the sweep's index; the shard is a stable hash of the run id."""
    return Key(pk=live_partition(zlib.crc32(run.encode()) % LIVE_SHARDS), sk=f"RUN#{run}")


def resting_partition(shard: int) -> str:
    """One of the partitions of runs that are looked at seldom: paused ones, blocked ones, ended ones."""
    return f"LIVE#REST#{shard}"


def resting(run: str) -> Key:
    """The entry of a run that rests; the same hash."""
    return Key(pk=resting_partition(zlib.crc32(run.encode()) % LIVE_SHARDS), sk=f"RUN#{run}")


def pool_partition(region: str) -> str:
    """Partition of a region's pools."""
    return f"POOL#{region}"


def pool(region: str, instance_type: str, zone: str, market: str) -> Key:
    """What we learned of one pool."""
    return Key(pk=pool_partition(region), sk=f"{instance_type}#{zone}#{market}")


def stack_launches(region: str, hour: int) -> Key:
    """How many launches the stack has made in an hour (hours since 1970); one of 24 items that are used in turn."""
    return Key(pk=f"{pool_partition(region)}#LAUNCHES", sk=f"{hour % 24:02d}")


def stack_prewarms(region: str, window: int) -> Key:
    """How many nodes the stack has started for advice alone in a window of STORM_WINDOW_S; one of 24 items in turn."""
    return Key(pk=f"{pool_partition(region)}#PREWARMS", sk=f"{window % 24:02d}")


def storm(region: str) -> Key:
    """When people were last told of a storm of advice."""
    return Key(pk=f"{pool_partition(region)}#PREWARMS", sk="STORM")


def mass_silence(region: str) -> Key:
    """When the stack's nodes were last seen silent all at once."""
    return Key(pk=f"{pool_partition(region)}#SILENCE", sk="MASS")


def market_look(region: str, types: Sequence[str]) -> Key:
    """When prices and placement scores of these types were last asked for; a key has room for forty types at least."""
    return Key(pk=f"{pool_partition(region)}#MARKET", sk=",".join(sorted(types))[:1000])


def history_partition(run: str) -> str:
    """Partition of a run's timeline."""
    return f"HIST#{run}"


def history(run: str, at_ms: int, entry: str) -> Key:
    """One entry of the timeline; `entry` makes it unique within a millisecond."""
    return Key(pk=history_partition(run), sk=f"{at_ms:013d}#{entry}")


def node_partition(run: str) -> str:
    """Partition of membership, checkpoints and pointer: nodes write here."""
    return f"{NODE_PREFIX}{run}"


NODE_SHARDS: Final = 8


def node_shard_partition(run: str, shard: int) -> str:
    """Partition of the node items of the slots with `slot % NODE_SHARDS == shard` (MULTINODE section 5)."""
    return f"{NODE_PREFIX}{run}#{shard}"


def node(run: str, slot_number: int, incarnation: int) -> Key:
    """The heartbeat item of one incarnation of a slot."""
    shard = slot_number % NODE_SHARDS
    return Key(pk=node_shard_partition(run, shard), sk=f"{NODE_PREFIX}{slot_number:04d}#{incarnation:06d}")


GENERATION_PREFIX: Final = "GEN#"
CHECKPOINT_PREFIX: Final = "CKPT#"


def generation(run: str, number: int) -> Key:
    """One sealed membership."""
    return Key(pk=node_partition(run), sk=f"{GENERATION_PREFIX}{number:08d}")


def newest(run: str) -> Key:
    """The newest sealed generation and its bad-generation mark."""
    return Key(pk=node_partition(run), sk="NEWEST")


def join_partition(run: str, shard: int) -> str:
    """One of the NODE_SHARDS partitions of the launchers in the rendezvous."""
    return f"{NODE_PREFIX}{run}#JOIN#{shard}"


def join(run: str, node_name: str) -> Key:
    """A node's launcher in the rendezvous; the shard is a stable hash of the node's name."""
    return Key(pk=join_partition(run, zlib.crc32(node_name.encode()) % NODE_SHARDS), sk=node_name)


def sealer(run: str) -> Key:
    """Who gathers the members of the next generation."""
    return Key(pk=node_partition(run), sk="SEALER")


def checkpoint(run: str, generation_number: int, step: int) -> Key:
    """Which ranks' parts of a checkpoint are done."""
    return Key(pk=node_partition(run), sk=f"{CHECKPOINT_PREFIX}{generation_number:08d}#{step:012d}")


def quarantine(run: str, generation_number: int, step: int) -> Key:
    """A checkpoint that was found damaged; it is never chosen again."""
    return Key(pk=node_partition(run), sk=f"QUARANTINE#{generation_number:08d}#{step:012d}")


def pointer(run: str) -> Key:
    """The run's newest committed checkpoint."""
    return Key(pk=node_partition(run), sk="POINTER")


def shard_lease(run: str, shard: int) -> Key:
    """The right to a data shard."""
    return Key(pk=f"{NODE_PREFIX}{run}#SHARD#{shard}", sk="LEASE")

"""CKPT items: which ranks' parts of a checkpoint are in S3. Whoever completes the set knows it and commits.

The truth is the manifest in S3; this is how the last rank learns that it is the last without asking the others.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from spotproof.contract import keys
from spotproof.contract.items import CheckpointItem, Quarantine, from_item, to_item
from spotproof.contract.states import SaveKind
from spotproof.errors import Lost
from spotproof.store.table import Absent, AllOf, AnyOf, Eq, Exists, Lacks, Put, Table, Update

if TYPE_CHECKING:
    from spotproof.contract.manifest import Part

__all__ = ["Checkpoints", "is_complete"]

_QUARANTINE_PREFIX = "QUARANTINE#"


class Checkpoints:
    """The checkpoints of all runs, complete or not, and the quarantine."""

    def __init__(self, table: Table) -> None:
        self._table = table

    def add_part(self, part: Part, *, kind: SaveKind, now: int) -> CheckpointItem:
        """Add a rank to the set after its part is in S3, and return the checkpoint as it stands then.

        Where `is_complete` holds for what is returned, the caller writes the manifest (anybody who sees it may: the
        manifest is deterministic). Adding a rank twice changes nothing.

        Raises Lost if the checkpoint was begun with another world size: two layouts must never be mixed.
        """
        rank = str(part.rank)
        change = Update(
            key=keys.checkpoint(part.run, part.generation, part.step),
            set={
                "run": part.run,
                "generation": part.generation,
                "step": part.step,
                "world": part.world,
                "kind": kind.value,
                "begun_at": now,
            },
            increment={"bytes": part.image.bytes},
            include={"done": frozenset({rank})},
            when=AllOf(AnyOf(Absent("world"), Eq("world", part.world)), Lacks("done", rank)),
        )
        try:
            return from_item(CheckpointItem, self._table.write(change))
        except Lost as lost:
            stands = None if lost.current is None else from_item(CheckpointItem, lost.current)
            if stands is None or stands.world != part.world or rank not in stands.done:
                raise
            return stands

    def read(self, run: str, generation: int, step: int) -> CheckpointItem | None:
        """Return one checkpoint's set, or None."""
        item = self._table.get(keys.checkpoint(run, generation, step))
        return None if item is None else from_item(CheckpointItem, item)

    def newest(self, run: str, *, limit: int = 20) -> tuple[CheckpointItem, ...]:
        """Return the newest checkpoints by (generation, step), newest first, complete or not."""
        items = self._table.query(
            keys.node_partition(run), prefix=keys.CHECKPOINT_PREFIX, limit=limit, newest_first=True
        )
        return tuple(from_item(CheckpointItem, item) for item in items)

    def committed(self, run: str, generation: int, step: int, *, manifest_key: str, now: int) -> CheckpointItem:
        """Note that the manifest is in S3; the first time stays.

        Raises Lost if there is no such checkpoint.
        """
        change = Update(
            key=keys.checkpoint(run, generation, step),
            set={"manifest_key": manifest_key, "committed_at": now},
            when=AllOf(Exists("pk"), Absent("committed_at")),
        )
        try:
            return from_item(CheckpointItem, self._table.write(change))
        except Lost as lost:
            if lost.current is None:
                raise
            return from_item(CheckpointItem, lost.current)

    def quarantine(self, damaged: Quarantine) -> None:
        """Mark a checkpoint as damaged, so that it is never chosen again; the first reason stays."""
        key = keys.quarantine(damaged.run, damaged.generation, damaged.step)
        try:
            self._table.write(Put(key=key, item=to_item(damaged), when=Absent("pk")))
        except Lost:
            return  # quarantined already

    def quarantined(self, run: str) -> frozenset[tuple[int, int]]:
        """Return (generation, step) of every quarantined checkpoint of the run."""
        items = self._table.query(keys.node_partition(run), prefix=_QUARANTINE_PREFIX)
        found = (from_item(Quarantine, item) for item in items)
        return frozenset((entry.generation, entry.step) for entry in found)


def is_complete(checkpoint: CheckpointItem) -> bool:
    """Say whether every rank's part is in S3."""
    return len(checkpoint.done) == checkpoint.world

"""Which checkpoints a run could go on from, read from the bucket and the table, and the choice for many nodes.

A seal fixes the choice, so it is made from everything that is durable, not from the pointer alone: a flush whose
pointer the table did not take is committed all the same, and what every rank has on the node that holds it is as good.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from spotproof.contract import s3keys
from spotproof.contract.items import PointerItem
from spotproof.contract.manifest import decode_part
from spotproof.errors import BadManifest, Damaged, Missing, NoLoadableCheckpoint
from spotproof.plan.candidates import Facts, Order, Ranked, Source, rank
from spotproof.store.checkpoints import Checkpoints
from spotproof.store.digest import digest_of
from spotproof.store.members import Memberships
from spotproof.store.objects import Objects
from spotproof.store.pointer import Pointers

__all__ = ["StagedCopy", "Start", "Stores", "ranked", "start_for"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Stores:
    """The stores that a choice reads."""

    objects: Objects
    checkpoints: Checkpoints
    pointers: Pointers
    memberships: Memberships


@dataclass(frozen=True, slots=True, kw_only=True)
class StagedCopy:
    """One rank's part of a checkpoint of `world` ranks, whole on a node's own disk."""

    generation: int
    step: int
    rank: int
    world: int

    def text(self) -> str:
        """As a node's entry in the rendezvous lists it."""
        return f"{self.generation}:{self.step}:{self.rank}:{self.world}"

    @classmethod
    def parse(cls, text: str) -> StagedCopy | None:
        """The copy; None for what a later version may write."""
        fields = text.split(":")
        if len(fields) != 4 or not all(field.isdecimal() for field in fields):
            return None
        generation, step, number, world = (int(field) for field in fields)
        return cls(generation=generation, step=step, rank=number, world=world)


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """What a membership begins with. `manifest_key` empty: no manifest is there, each rank has its part."""

    order: Order
    manifest_key: str = ""
    manifest_digest: str = ""


def ranked(stores: Stores, run: str, pointer: PointerItem | None, staged: AbstractSet[Order]) -> Ranked:
    """Everything that the choice depends on, then the choice. Raises Unavailable, Denied."""
    manifests, parts = _listed(stores.objects, run)
    generations = {order[0] for order in manifests | parts | staged}
    if pointer is not None:
        generations.add(pointer.generation)
    sealed = {g + 1: stores.memberships.generation(run, g + 1) for g in sorted(generations)}
    starts = {
        number: None if one.start_generation is None else (one.start_generation, one.start_step or 0)
        for number, one in sealed.items()
        if one is not None
    }
    return rank(
        Facts(
            manifests=manifests,
            parts=parts,
            staged=staged,
            pointer=None if pointer is None else (pointer.generation, pointer.step),
            quarantined=stores.checkpoints.quarantined(run),
            starts=starts,
        )
    )


def start_for(
    stores: Stores, run: str, pointer: PointerItem | None, copies: Sequence[Sequence[StagedCopy]]
) -> Start | None:
    """What a membership whose members have `copies`, by rank of the node, begins with; None: at step 0.

    Raises NoLoadableCheckpoint if the run has checkpoints and all of them are damaged; Unavailable, Denied.
    """
    newest = stores.memberships.newest(run) if any(copies) else None
    sealed = 0 if newest is None else newest.generation
    whole = {order for order in _whole(stores.objects, run, copies) if order[0] <= sealed}
    found = ranked(stores, run, pointer, whole)
    best = next(iter(found.candidates), None)
    if best is not None:
        if best.source is not Source.MANIFEST:
            return Start(order=best.order)
        key = s3keys.manifest(run, *best.order)
        if pointer is not None and best.order == (pointer.generation, pointer.step):
            return Start(order=best.order, manifest_key=key, manifest_digest=pointer.manifest_digest)
        return Start(order=best.order, manifest_key=key, manifest_digest=digest_of(stores.objects.read(key)))
    if found.had_checkpoint:
        raise NoLoadableCheckpoint(
            f"run {run} has checkpoints but none can be loaded: {'; '.join(found.passed_over) or 'all are gone'}",
            next_step="restore the objects from the bucket's versions, or start a new run",
        )
    return None


def _listed(objects: Objects, run: str) -> tuple[set[Order], set[Order]]:
    """(checkpoints with a manifest, checkpoints without one whose parts are all there)."""
    keys = {entry.key for entry in objects.list(s3keys.checkpoints_prefix(run))}
    manifests = {s3keys.order_of_manifest(key) for key in keys if s3keys.is_manifest(key)}
    firsts = {order: key for key in keys if (order := s3keys.order_of_first_part(key)) and order not in manifests}
    return manifests, {order for order, key in firsts.items() if _has_all_parts(objects, run, order, key, keys)}


def _has_all_parts(objects: Objects, run: str, order: Order, first: str, keys: AbstractSet[str]) -> bool:
    try:
        world = decode_part(objects.read(first)).world
    except (BadManifest, Damaged, Missing):
        return False
    return all(s3keys.part(run, *order, number) in keys for number in range(world))


def _whole(objects: Objects, run: str, copies: Sequence[Sequence[StagedCopy]]) -> set[Order]:
    """Checkpoints each of whose parts is on the node that holds that rank now, or in the bucket."""
    held: Mapping[tuple[Order, int], set[int]] = defaultdict(set)
    for place, mine in enumerate(copies):
        for copy in mine:
            if copy.world % len(copies) == 0 and copy.rank // (copy.world // len(copies)) == place:
                held[(copy.generation, copy.step), copy.world].add(copy.rank)
    found = set()
    for (order, world), ranks in held.items():
        missing = [number for number in range(world) if number not in ranks]
        if all(objects.head(s3keys.part(run, *order, number)) is not None for number in missing):
            found.add(order)
    return found

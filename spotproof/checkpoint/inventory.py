"""What checkpoints a run has, and whether every byte of one is what its manifest says. Reads only."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from spotproof.checkpoint.chunks import digest
from spotproof.contract import layout, s3keys
from spotproof.contract.manifest import Chunk, Manifest, decode_manifest, decode_part
from spotproof.errors import BadManifest, Damaged, Missing
from spotproof.plan.candidates import Order
from spotproof.store.objects import Objects

THREADS: Final = 8

Progress = Callable[[int], None]
"""Called with the bytes that have been read or written since the last call; from several threads."""


class Standing(StrEnum):
    """What a checkpoint is to its run."""

    NEWEST = "newest"  # the pointer names it: the run goes on from here
    COMMITTED = "committed"
    QUARANTINED = "quarantined"  # found damaged: never chosen
    INCOMPLETE = "incomplete"  # parts without a manifest


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A checkpoint in the bucket. `bytes` are of its images, `own_bytes` of the chunks that no older one has."""

    order: Order
    standing: Standing
    world: int
    bytes: int
    own_bytes: int
    committed_at: float  # Unix seconds of its manifest; of its newest part where there is none
    reason: str = ""  # why its manifest cannot be read

    @property
    def name(self) -> str:
        """`generation-step`, the way commands take it."""
        return f"{self.order[0]}-{self.order[1]}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Damage:
    """Something that is not what the manifest says."""

    key: str
    what: str


def entries(
    objects: Objects, run: str, *, pointer: Order | None, quarantined: Iterable[Order]
) -> tuple[tuple[Entry, ...], dict[Order, Manifest]]:
    """Every checkpoint of the run, oldest first, and the manifests that can be read.

    Raises Unavailable, Denied.
    """
    bad, times, manifests = frozenset(quarantined), dict[Order, float](), dict[Order, Manifest]()
    reasons, whole = dict[Order, str](), set[Order]()
    for info in objects.list(s3keys.checkpoints_prefix(run)):
        order = s3keys.order_of(info.key)
        if order is None:
            continue
        is_manifest = s3keys.is_manifest(info.key)
        times[order] = info.modified_at if is_manifest else max(times.get(order, 0.0), info.modified_at)
        if is_manifest:
            whole.add(order)
            try:
                manifests[order] = decode_manifest(objects.read(info.key))
            except (BadManifest, Damaged, Missing) as error:
                reasons[order] = str(error)
    found, known = [], set[str]()
    for order in sorted(times):
        manifest = manifests.get(order)
        chunks = () if manifest is None else manifest.chunks()
        own = [chunk for chunk in chunks if chunk.digest not in known]
        known.update(chunk.digest for chunk in own)
        found.append(
            Entry(
                order=order,
                standing=_standing(order, pointer=pointer, bad=bad, whole=whole),
                world=0 if manifest is None else manifest.world,
                bytes=0 if manifest is None else manifest.bytes,
                own_bytes=sum(chunk.bytes for chunk in own),
                committed_at=times[order],
                reason=reasons.get(order, ""),
            )
        )
    return tuple(found), manifests


def _standing(order: Order, *, pointer: Order | None, bad: frozenset[Order], whole: set[Order]) -> Standing:
    if order in bad:
        return Standing.QUARANTINED
    if order == pointer:
        return Standing.NEWEST
    return Standing.COMMITTED if order in whole else Standing.INCOMPLETE


def read_manifest(objects: Objects, run: str, order: Order) -> Manifest:
    """The manifest of one checkpoint. Raises Missing, Damaged or BadManifest."""
    manifest = decode_manifest(objects.read(s3keys.manifest(run, *order)))
    if (manifest.run, manifest.order) != (run, order):
        raise Damaged(f"the manifest under {order} describes run {manifest.run} {manifest.order}")
    return manifest


def verify(
    objects: Objects, run: str, order: Order, *, threads: int = THREADS, progress: Progress = lambda _: None
) -> tuple[Damage, ...]:
    """Read every byte of a checkpoint and name everything that is wrong with it; () if nothing is.

    Raises Unavailable, Denied: that is no damage.
    """
    key = s3keys.manifest(run, *order)
    try:
        manifest = read_manifest(objects, run, order)
    except (Missing, Damaged, BadManifest) as error:
        return (Damage(key=key, what=str(error)),)

    def look(chunk: Chunk) -> Damage | None:
        damage = _damage_of(objects, run, chunk)
        progress(chunk.bytes)
        return damage

    with ThreadPoolExecutor(threads, thread_name_prefix="verify") as pool:
        found = [damage for damage in pool.map(look, manifest.chunks()) if damage is not None]
    found += _parts_that_differ(objects, manifest)
    return (*found, *_layouts_that_lie(objects, manifest)) if not found else tuple(found)


def _damage_of(objects: Objects, run: str, chunk: Chunk) -> Damage | None:
    key = s3keys.blob(run, chunk.digest)
    try:
        data = objects.get(key, digest=chunk.digest)
    except Missing:
        return Damage(key=key, what=f"it is gone; the manifest needs its {chunk.bytes} bytes")
    except Damaged as error:
        return Damage(key=key, what=str(error))
    if len(data) != chunk.bytes or digest(data) != chunk.digest:
        return Damage(key=key, what=f"{len(data)} bytes, the manifest says {chunk.bytes}")
    return None


def _parts_that_differ(objects: Objects, manifest: Manifest) -> list[Damage]:
    """Parts are what the manifest was made of, and its witnesses: each is there and says the same."""
    found = []
    for part in manifest.parts:
        key = s3keys.part(manifest.run, manifest.generation, manifest.step, part.rank)
        try:
            there = decode_part(objects.read(key))
        except (Missing, Damaged, BadManifest) as error:
            found.append(Damage(key=key, what=str(error)))
            continue
        if there != part:
            found.append(Damage(key=key, what="it and the manifest tell different things"))
    return found


def _layouts_that_lie(objects: Objects, manifest: Manifest) -> list[Damage]:
    """Parts whose layout does not describe their image: every chunk can be whole and the checkpoint still be none."""
    found = []
    for part in manifest.parts:
        key = s3keys.part(manifest.run, manifest.generation, manifest.step, part.rank)
        blobs = [objects.get(s3keys.blob(manifest.run, one.digest), digest=one.digest) for one in part.layout.chunks]
        try:
            described = layout.decode(b"".join(blobs)).image_bytes
        except BadManifest as error:
            found.append(Damage(key=key, what=str(error)))
            continue
        if described != part.image.bytes:
            what = f"its image has {part.image.bytes} bytes, its layout says {described}"
            found.append(Damage(key=key, what=what))
    return found

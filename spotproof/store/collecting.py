"""Retention of one run: drop old checkpoints, then the chunks that no manifest and no part needs.

In this order, so that a collection that is killed leaves nothing half: first the manifests of what is dropped (from
then on nobody can choose it), then its parts, then chunks. A chunk that is young is left alone, since the part that
needs it may not be there yet. What cannot be read stops the collection: a manifest that is not understood needs chunks
that nobody could name.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from spotproof.contract import s3keys
from spotproof.contract.manifest import Chunk, File, Manifest, Part, decode_manifest, decode_part
from spotproof.errors import BadManifest, Damaged, Missing
from spotproof.plan.candidates import Order
from spotproof.plan.retention import GRACE_S, Known, Verdict, judge
from spotproof.store.erase import Eraser
from spotproof.store.objects import ObjectInfo, Objects
from spotproof.store.starts import Stores

__all__ = ["Plan", "collect", "plan"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What a collection of `run` deletes, in order; chunks only if they are older than `before` still."""

    run: str
    before: float  # Unix seconds
    verdict: Verdict
    manifests: tuple[str, ...]
    parts: tuple[str, ...]
    blobs: tuple[str, ...]
    bytes: int  # of everything that is deleted
    kept_bytes: int

    @property
    def keys(self) -> tuple[str, ...]:
        """All keys, in the order in which they go."""
        return self.manifests + self.parts + self.blobs


def plan(stores: Stores, run: str, *, keep: int, now: float) -> Plan:
    """What a collection would delete now; changes nothing.

    Raises:
        Damaged, BadManifest: a manifest or part that would be kept cannot be read; nothing may be deleted.
        Unavailable, Denied.
    """
    # The blobs first: one that is listed after the manifests could belong to a checkpoint that the listing missed.
    blobs = {info.key: info for info in stores.objects.list(blobs_prefix(run))}
    described = {info.key: info for info in stores.objects.list(s3keys.checkpoints_prefix(run))}
    quarantined = stores.checkpoints.quarantined(run)
    verdict = _judged(stores, run, described, quarantined=quarantined, keep=keep, now=now)
    doomed = [key for key in described if s3keys.order_of(key) in verdict.dropped]
    staying = sorted(set(described) - set(doomed))
    needed = {s3keys.blob(run, chunk.digest) for chunk in _needed(stores.objects, staying, quarantined)}
    unneeded = [key for key, info in blobs.items() if key not in needed and info.modified_at <= now - GRACE_S]
    manifests = tuple(key for key in doomed if s3keys.is_manifest(key))
    deleted = {*doomed, *unneeded}
    everything = {**blobs, **described}
    return Plan(
        run=run,
        before=now - GRACE_S,
        verdict=verdict,
        manifests=manifests,
        parts=tuple(key for key in doomed if key not in manifests),
        blobs=tuple(unneeded),
        bytes=sum(everything[key].bytes for key in deleted),
        kept_bytes=sum(info.bytes for key, info in everything.items() if key not in deleted),
    )


def collect(planned: Plan, objects: Objects, eraser: Eraser) -> None:
    """Do what `plan` said. May be repeated, and be killed at any point.

    A chunk that was sent again since (a state that came back) belongs to a save on its way and stays.
    """
    eraser.delete(planned.manifests)
    eraser.delete(planned.parts)
    if planned.blobs:
        doomed, listed = frozenset(planned.blobs), objects.list(blobs_prefix(planned.run))
        eraser.delete([info.key for info in listed if info.key in doomed and info.modified_at <= planned.before])


def blobs_prefix(run: str) -> str:
    """All chunks of a run."""
    return s3keys.blob(run, "")


def _judged(
    stores: Stores,
    run: str,
    described: Mapping[str, ObjectInfo],
    *,
    quarantined: AbstractSet[Order],
    keep: int,
    now: float,
) -> Verdict:
    whole, times = set[Order](), dict[Order, float]()
    for key, info in described.items():
        order = s3keys.order_of(key)
        if order is not None:
            times[order] = max(times.get(order, 0.0), info.modified_at)
            if s3keys.is_manifest(key):
                whole.add(order)
    known = [
        Known(order=order, at=at, is_whole=order in whole, is_quarantined=order in quarantined)
        for order, at in times.items()
    ]
    pointer, newest = stores.pointers.read(run), stores.memberships.newest(run)
    sealed = None if newest is None else stores.memberships.generation(run, newest.generation)
    start = None if sealed is None or sealed.start_generation is None else (sealed.start_generation, sealed.start_step)
    starts = frozenset[Order]() if start is None or start[1] is None else frozenset({(start[0], start[1])})
    pointed = None if pointer is None else (pointer.generation, pointer.step)
    return judge(known, pointer=pointed, starts=starts, keep=keep, now=now)


def _needed(objects: Objects, keys: Iterable[str], quarantined: AbstractSet[Order]) -> Iterator[Chunk]:
    """The chunks of every manifest and part that stays; of a quarantined one those that it still tells."""
    told = set[Order]()  # a manifest lists what its parts list: they need not be read too
    for key in sorted(keys, key=lambda key: not s3keys.is_manifest(key)):
        order = s3keys.order_of(key)
        if order is None:
            raise BadManifest(f"{key} is in the place of checkpoints and is none: nothing is collected")
        if order in told:
            continue
        try:
            data = objects.read(key)
            described = decode_manifest(data) if s3keys.is_manifest(key) else decode_part(data)
        except Missing:  # another collection is at work
            continue
        except (Damaged, BadManifest) as error:
            if order in quarantined:
                continue
            raise Damaged(f"{key} cannot be read, so nothing is collected: {error}") from error
        if isinstance(described, Manifest):
            told.add(order)
        yield from _chunks(described)


def _chunks(described: Manifest | Part) -> Iterable[Chunk]:
    if isinstance(described, Manifest):
        return described.chunks()
    files: tuple[File | None, ...] = (described.image, described.layout, described.metadata)
    return [chunk for file in files if file is not None for chunk in file.chunks]

"""From the bucket (or this node's disk) to a verified image in memory: the newest checkpoint that is whole.

Every byte is checked against its digest before it is used. Damage is recorded (quarantine), said aloud and walked
back over; a service that does not answer is not damage and is raised.
"""

from __future__ import annotations

import mmap
import time
from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from spotproof.checkpoint.chunks import digest
from spotproof.checkpoint.commit import assemble, put_manifest
from spotproof.checkpoint.images import THREADS, ImageRead, Images, ReadChunk
from spotproof.checkpoint.localcopy import LocalCopies, Staged
from spotproof.checkpoint.meter import Meter
from spotproof.checkpoint.sanity import check_state
from spotproof.contract import layout, s3keys
from spotproof.contract.items import PointerItem, Quarantine
from spotproof.contract.manifest import Chunk, Manifest, Part, decode_manifest, decode_part
from spotproof.errors import BadManifest, Damaged, MismatchedState, Missing, NoLoadableCheckpoint
from spotproof.plan.candidates import Candidate, Order, Ranked, Source
from spotproof.store.starts import Stores, ranked

_REASON_CHARACTERS = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class Fetched:
    """A verified image. `image_fd` is a memfd that the receiver closes. `pointer` is the pointer at the choice: the
    seal checks that it has not moved. `manifest` is None for a staged copy that is not committed."""

    order: Order
    source: Source
    part: Part
    manifest: Manifest | None
    manifest_digest: str
    image_fd: int
    layout: bytes
    pointer: PointerItem | None
    skipped: tuple[str, ...]
    seconds: float
    kept_bytes: int = 0  # of the image that had been read before


@dataclass(frozen=True, slots=True, kw_only=True)
class _Described:
    part: Part
    manifest: Manifest | None
    manifest_digest: str


class Fetcher:
    """Chooses and reads checkpoints of one run, for one rank."""

    def __init__(
        self,
        *,
        stores: Stores,
        run: str,
        clock: Callable[[], float],
        rank: int = 0,
        local: LocalCopies | None = None,
        threads: int = THREADS,
        meter: Meter | None = None,
    ) -> None:
        self._stores = stores
        self._run = run
        self._clock = clock
        self._rank = rank
        self._local = local
        self._images = Images(threads=threads, meter=meter or Meter())

    def newest(self, *, instead_of: Fetched | None = None) -> Fetched | None:
        """The newest whole checkpoint, verified; None if the run never had one: it starts at step 0.

        `instead_of` is an earlier answer that nobody has used: its image is given back, and what the new one has in
        common with it is not read again.

        Raises:
            NoLoadableCheckpoint: the run has checkpoints and none of them is whole; every reason is in the message.
            Unavailable, Denied: the bucket or the table does not answer.
        """
        if instead_of is not None:
            self._images.give_back(instead_of.image_fd, instead_of.part.image)
        try:
            return self._newest()
        finally:
            self._images.close()

    def _newest(self) -> Fetched | None:
        began_at = time.monotonic()
        pointer = self._stores.pointers.read(self._run)
        ranked = self._rank_all(pointer)
        skipped = list(ranked.passed_over)
        for candidate in ranked.candidates:
            try:
                described = self._describe(candidate, pointer)
                image = self._read(described.part, self._reader(candidate))
            except (BadManifest, Damaged, Missing) as error:
                skipped.append(self._quarantine(candidate, error))
                continue
            return _fetched(candidate, described, image, pointer, skipped=skipped, began_at=began_at)
        if ranked.had_checkpoint:
            raise NoLoadableCheckpoint(
                f"run {self._run} has checkpoints but none can be loaded: {'; '.join(skipped) or 'all are gone'}",
                next_step="restore the objects from the bucket's versions, or start a new run",
            )
        return None

    def exact(self, order: Order, rank: int, *, is_committed: bool = True, any_world: bool = False) -> Fetched:
        """The image of `rank` in the checkpoint that a membership begins with, verified; chunks that this node's disk
        has come from there. Every rank reads the same checkpoint, so another one is no answer. Where it is not
        committed, the rank's part is on this disk, or in the bucket without a manifest. `any_world`: a rank that the
        checkpoint's world did not have gets the part of another one; what is replicated is the same in all of them.

        Raises:
            Damaged, Missing, BadManifest: it is not whole; it is quarantined, and another one has to be chosen.
            Unavailable, Denied: the bucket or the table does not answer.
        """
        began_at = time.monotonic()
        pointer = self._stores.pointers.read(self._run)
        candidate = Candidate(order=order, source=Source.MANIFEST if is_committed else Source.PARTS)
        try:
            if any_world:
                rank %= self._world(candidate, pointer)
            if is_committed:
                described = self._of_rank(candidate, pointer, rank)
            else:
                described = _Described(part=self._loose_part(order, rank), manifest=None, manifest_digest="")
            image = self._read(described.part, self._nearest_reader(order, rank))
        except (BadManifest, Damaged, Missing) as error:
            self._quarantine(candidate, error)
            raise
        finally:
            self._images.close()
        return _fetched(candidate, described, image, pointer, skipped=(), began_at=began_at)

    def ahead(self, rank: int) -> Fetched | None:
        """The newest commit's image of `rank`, read while there is time; None where that is not to be had."""
        pointer = self._stores.pointers.read(self._run)
        if pointer is None:
            return None
        try:
            return self.exact((pointer.generation, pointer.step), rank)
        except (BadManifest, Damaged, Missing, MismatchedState):
            return None

    def _of_rank(self, candidate: Candidate, pointer: PointerItem | None, rank: int) -> _Described:
        manifest, found = self._manifest(candidate, pointer)
        part = part_of(manifest, rank)
        self._check_against_part(part, candidate, pointer)
        return _Described(part=part, manifest=manifest, manifest_digest=found)

    def _world(self, candidate: Candidate, pointer: PointerItem | None) -> int:
        if candidate.source is Source.MANIFEST:
            return self._manifest(candidate, pointer)[0].world
        copies = (copy for copy in (self._local.find() if self._local else ()) if copy.order == candidate.order)
        copy = next(copies, None)
        return (self._loose_part(candidate.order, 0) if copy is None else copy.part()).world

    def _loose_part(self, order: Order, rank: int) -> Part:
        for copy in self._local.find() if self._local else ():
            if (copy.order, copy.rank) == (order, rank):
                return copy.part()
        return decode_part(self._stores.objects.read(s3keys.part(self._run, *order, rank)))

    def _nearest_reader(self, order: Order, rank: int) -> ReadChunk:
        copies = self._local.find() if self._local else []
        if self._local is None or all((copy.order, copy.rank) != (order, rank) for copy in copies):
            return self._read_blob
        local = self._local.reader(order, rank)

        def read(chunk: Chunk, target: memoryview) -> None:
            try:
                local(chunk, target)
            except (KeyError, Damaged):  # not in that copy, or it has gone bad: the bucket has it too
                self._read_blob(chunk, target)

        return read

    def is_still_newest(self, fetched: Fetched | None) -> bool:
        """Whether `newest` would choose this again; reads no chunk. The pointer alone does not tell: a flush whose
        pointer the table did not take is durable too.

        Raises Unavailable, Denied.
        """
        pointer = self._stores.pointers.read(self._run)
        if (None if fetched is None else fetched.pointer) != pointer:
            return False
        best = next(iter(self._rank_all(pointer).candidates), None)
        return (None if best is None else best.order) == (None if fetched is None else fetched.order)

    def _rank_all(self, pointer: PointerItem | None) -> Ranked:
        return ranked(self._stores, self._run, pointer, self._staged())

    def _staged(self) -> set[Order]:
        """Local copies of generations that this run has sealed; others are of an earlier run of the same name.

        Where several ranks train on this node, only what all of them have here.
        """
        copies = self._local.find() if self._local else []
        newest = self._stores.memberships.newest(self._run) if copies else None
        sealed = 0 if newest is None else newest.generation
        ranks: dict[Order, set[int]] = {}
        for copy in copies:
            ranks.setdefault(copy.order, set()).add(copy.rank)
        mine = [copy for copy in copies if copy.rank == self._rank and copy.generation <= sealed]
        return {copy.order for copy in mine if is_everyone_in(copy, ranks[copy.order])}

    def _describe(self, candidate: Candidate, pointer: PointerItem | None) -> _Described:
        if candidate.source is Source.STAGED:
            return _Described(part=self._staged_part(candidate.order), manifest=None, manifest_digest="")
        manifest, found = self._manifest(candidate, pointer)
        if self._rank >= manifest.world:
            raise Damaged(f"missing shard: rank {self._rank} of {manifest.world}")
        part = manifest.parts[self._rank]
        self._check_against_part(part, candidate, pointer)
        return _Described(part=part, manifest=manifest, manifest_digest=found)

    def _check_against_part(self, part: Part, candidate: Candidate, pointer: PointerItem | None) -> None:
        """A manifest whose digest the pointer does not promise has a witness: the part, written before it by the rank.

        Raises Damaged where the two differ. A part that is gone or cannot be read witnesses nothing.
        """
        if pointer is not None and candidate.order == (pointer.generation, pointer.step):
            return
        key = s3keys.part(self._run, *candidate.order, part.rank)
        try:
            witness = decode_part(self._stores.objects.read(key))
        except (BadManifest, Damaged, Missing):
            return
        if witness != part:
            raise Damaged(f"the manifest and {key} tell different things of rank {part.rank}")

    def _manifest(self, candidate: Candidate, pointer: PointerItem | None) -> tuple[Manifest, str]:
        """The manifest and its digest. Raises Damaged if it is that of another checkpoint."""
        manifest, found = self._manifest_there(candidate, pointer)
        if (manifest.run, manifest.order) != (self._run, candidate.order):
            raise Damaged(f"the manifest describes run {manifest.run} {manifest.order}")
        return manifest, found

    def _manifest_there(self, candidate: Candidate, pointer: PointerItem | None) -> tuple[Manifest, str]:
        generation, step = candidate.order
        objects = self._stores.objects
        if candidate.source is Source.PARTS:
            first = decode_part(objects.read(s3keys.part(self._run, generation, step, 0)))
            manifest = assemble(objects, first)
            return manifest, put_manifest(objects, manifest)
        key = s3keys.manifest(self._run, generation, step)
        if pointer is not None and candidate.order == (pointer.generation, pointer.step):
            data = objects.get(key, digest=pointer.manifest_digest)
        else:
            data = objects.read(key)
        return decode_manifest(data), digest(data)

    def _staged_part(self, order: Order) -> Part:
        for copy in self._local.find() if self._local else ():
            if copy.order == order and copy.rank == self._rank:
                return copy.part()
        raise Missing(f"the local copy of {order} is gone")

    def _reader(self, candidate: Candidate) -> ReadChunk:
        """Chunks from the bucket; of a staged copy from this disk."""
        if candidate.source is Source.STAGED and self._local is not None:
            return self._local.reader(candidate.order, self._rank)
        return self._read_blob

    def _read_blob(self, chunk: Chunk, target: memoryview) -> None:
        """A quarantine is for ever, so bytes that are wrong are read once more: they may be so only on the way."""
        key = s3keys.blob(self._run, chunk.digest)
        try:
            self._stores.objects.get_into(key, target, digest=chunk.digest)
        except Damaged:
            self._stores.objects.get_into(key, target, digest=chunk.digest)

    def _read(self, part: Part, read: ReadChunk) -> ImageRead:
        """The verified image, whose state is that of its step and fit to go on from. Raises as `Images.read`."""
        image = self._images.read(part, read)
        try:
            with mmap.mmap(image.fd, image.bytes, access=mmap.ACCESS_READ) as mapped, memoryview(mapped) as view:
                check_state(view, layout.decode(image.layout), step=part.step)
        except (Damaged, BadManifest):
            self._images.give_back(image.fd, part.image)
            raise
        return image

    def _quarantine(self, candidate: Candidate, error: Exception) -> str:
        """Record that the checkpoint is damaged; returns the text for people. A staged copy is only passed over."""
        generation, step = candidate.order
        reason = str(error)[:_REASON_CHARACTERS]
        if candidate.source is not Source.STAGED:
            self._stores.checkpoints.quarantine(
                Quarantine(run=self._run, generation=generation, step=step, reason=reason, found_at=int(self._clock()))
            )
        return f"generation {generation} step {step}: {reason}"


def _fetched(
    candidate: Candidate,
    described: _Described,
    image: ImageRead,
    pointer: PointerItem | None,
    *,
    skipped: Sequence[str],
    began_at: float,
) -> Fetched:
    return Fetched(
        order=candidate.order,
        source=candidate.source,
        part=described.part,
        manifest=described.manifest,
        manifest_digest=described.manifest_digest,
        image_fd=image.fd,
        layout=image.layout,
        pointer=pointer,
        skipped=tuple(skipped),
        seconds=time.monotonic() - began_at,
        kept_bytes=image.kept_bytes,
    )


def part_of(manifest: Manifest, rank: int) -> Part:
    """What `rank` has in a checkpoint. Raises MismatchedState where it was saved by another number of ranks."""
    if rank >= manifest.world:
        raise MismatchedState(
            f"step {manifest.step} was saved by {manifest.world} ranks, rank {rank} has no part in it",
            next_step="train with as many ranks as before",
        )
    return manifest.parts[rank]


def is_everyone_in(copy: Staged, ranks: AbstractSet[int]) -> bool:
    """Whether `ranks` are all of the copy's checkpoint. One that does not say is found damaged when it is read."""
    try:
        return ranks >= set(range(copy.part().world))
    except Damaged:
        return True

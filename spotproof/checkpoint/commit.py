"""From an image to a commit: chunks, the part, then (by whoever sees the last part) the manifest, then the pointer.

Nothing is visible before everything under it is there, so the order is the safety. Each step can be done twice and by
two processes: chunks are named by their content, part and manifest are put if absent, the pointer only rises. After a
kill at any place, committing the same image again finishes what was begun.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Set as AbstractSet
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass

from spotproof.checkpoint.chunks import digest, file_of
from spotproof.checkpoint.content import LAYOUT_FILE, METADATA_FILE, Content, Save
from spotproof.checkpoint.describing import Described, Source, part_of
from spotproof.contract import s3keys
from spotproof.contract.items import PointerItem, pointer_rank
from spotproof.contract.manifest import Chunk, Manifest, Part, decode_manifest, decode_part, encode
from spotproof.contract.states import SaveKind
from spotproof.errors import BadManifest, Damaged, Lost, Missing, Unavailable
from spotproof.store.checkpoints import Checkpoints, is_complete
from spotproof.store.objects import NO_DEADLINE, Objects, PutOutcome
from spotproof.store.pointer import Pointers

__all__ = [
    "LAYOUT_FILE",
    "METADATA_FILE",
    "Commit",
    "Committer",
    "Content",
    "Save",
    "assemble",
    "make_part",
    "part_keys",
    "put_manifest",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Commit:
    """What has been reached. `manifest` None: other ranks' parts are missing, one of them will finish.

    `is_pointed`: the pointer names this checkpoint or a newer one. Where it is False the table did not answer; the
    checkpoint is durable all the same, since who seals the next membership lists the manifests too.
    """

    part: Part
    manifest: Manifest | None
    sent_bytes: int
    is_pointed: bool


class Committer:
    """Commits the checkpoints of one run. A context manager: it owns the threads that send."""

    def __init__(
        self,
        *,
        objects: Objects,
        checkpoints: Checkpoints,
        pointers: Pointers,
        clock: Callable[[], float],
        threads: int = 4,
    ) -> None:
        self._objects = objects
        self._checkpoints = checkpoints
        self._pointers = pointers
        self._clock = clock
        self._threads = threads
        self._newest: Manifest | None = None
        self._taken: tuple[object, set[str]] = (None, set())  # of the checkpoint that was sent to last

    def commit(self, part: Part, content: Content, *, kind: SaveKind, until: float = NO_DEADLINE) -> Commit:
        """Commit what is described already; see `commit_from`."""
        save = Save(
            run=part.run, generation=part.generation, step=part.step, kind=kind, rank=part.rank, world=part.world
        )
        return self.commit_from(Described(part, content, save), until=until)

    def commit_from(self, source: Source, *, until: float = NO_DEADLINE) -> Commit:
        """Send what the part needs, then put the part, then finish the checkpoint if this was its last part.

        Chunks are sent while later ones are still being hashed. `until` (time.monotonic()) bounds every request. Where
        another part of this rank and step is there already, that one is the checkpoint's: two saves of one step are
        one.

        Raises:
            Superseded: a newer membership was sealed; what was sent is not part of the run.
            Unavailable, Denied: the bucket did not take it. Committing the same source again goes on where this ended.
            Damaged: another manifest of this very step exists, or this step was found damaged earlier: its name
                is spent, the next step will do.
        """
        save = source.save
        known_damage = self._known_damage(save.run)
        if known_damage is not None and (save.generation, save.step) in known_damage:
            raise Damaged(
                f"generation {save.generation} step {save.step} was found damaged earlier and is quarantined",
                next_step="save another step, or seal a new generation",
            )
        self._send(source, self._listed_digests(save.run, known_damage), until)
        sent_bytes = sum(source.sent.values())
        part = self._put_part(source.part(), until)
        is_last = self._note_part(part, save.kind)
        if not is_last:
            return Commit(part=part, manifest=None, sent_bytes=sent_bytes, is_pointed=False)
        manifest = assemble(self._objects, part, until=until)
        is_pointed = self._point(put_manifest(self._objects, manifest, until=until), manifest)
        self._newest = manifest
        return Commit(part=part, manifest=manifest, sent_bytes=sent_bytes, is_pointed=is_pointed)

    def _send(self, source: Source, listed: AbstractSet[str], until: float) -> None:
        """Send in order, a few at a time; the first failure ends it, so that no part is put after a missing chunk.

        A chunk is skipped only if the newest committed manifest lists it, or the bucket has taken it for this very
        checkpoint: in an earlier try, or as part of another rank of this node, which has the same where state is
        replicated. That an object exists is no reason: it may be about to be collected, or a torn leftover.
        """
        sends: dict[str, Future[None]] = {}
        save = source.save
        if self._taken[0] != (save.run, save.generation, save.step):
            self._taken = ((save.run, save.generation, save.step), set())
        with ThreadPoolExecutor(self._threads, thread_name_prefix="send") as pool:
            for chunk, data in source.pieces():
                is_there = chunk.digest in listed or chunk.digest in source.sent or chunk.digest in self._taken[1]
                if not is_there and chunk.digest not in sends:
                    sends[chunk.digest] = pool.submit(self._send_one, source, chunk, data, until)
            done, waiting = wait(sends.values(), return_when=FIRST_EXCEPTION)
            for send in waiting:
                send.cancel()
        for send in done:
            send.result()

    def _send_one(self, source: Source, chunk: Chunk, data: memoryview, until: float) -> None:
        self._objects.put(s3keys.blob(source.save.run, chunk.digest), data, digest=chunk.digest, until=until)
        source.sent[chunk.digest] = chunk.bytes
        self._taken[1].add(chunk.digest)

    def _put_part(self, part: Part, until: float) -> Part:
        key, data = s3keys.part(part.run, part.generation, part.step, part.rank), encode(part)
        if self._objects.put_if_absent(key, data, digest=digest(data), until=until) is PutOutcome.DIFFERENT:
            return decode_part(self._objects.read(key, until=until))
        return part

    def _note_part(self, part: Part, kind: SaveKind) -> bool:
        """Whether every rank's part is there now. Where the table is silent, the listing of the bucket tells."""
        try:
            return is_complete(self._checkpoints.add_part(part, kind=kind, now=int(self._clock())))
        except Unavailable:
            prefix = s3keys.checkpoint_prefix(part.run, part.generation, part.step)
            keys = {entry.key for entry in self._objects.list(prefix)}
            return part_keys(part) <= keys

    def _point(self, manifest_digest: str, manifest: Manifest) -> bool:
        run, (generation, step) = manifest.run, manifest.order
        key = s3keys.manifest(run, generation, step)
        now = int(self._clock())
        pointer = PointerItem(
            run=run,
            generation=generation,
            step=step,
            rank=pointer_rank(generation, step),
            manifest_key=key,
            manifest_digest=manifest_digest,
            committed_at=now,
        )
        try:
            self._pointers.rise(pointer, own_generation=generation)
            self._checkpoints.committed(run, generation, step, manifest_key=key, now=now)
        except Lost:
            return True  # a newer checkpoint is the newest; this one is whole all the same
        except Unavailable:
            return False
        return True

    def _known_damage(self, run: str) -> AbstractSet[tuple[int, int]] | None:
        """(generation, step) of what is quarantined, None if the table does not answer.

        Looked up for each save, because it is another process that finds the damage.
        """
        try:
            return self._checkpoints.quarantined(run)
        except Unavailable:
            return None

    def _listed_digests(self, run: str, known_damage: AbstractSet[tuple[int, int]] | None) -> AbstractSet[str]:
        """What need not be sent: the chunks of the newest committed checkpoint, unless that one is known as damaged.

        Where that cannot be known everything is sent: more bytes, the same safety.
        """
        try:
            newest = self._newest or self._read_newest(run)
        except (Missing, Damaged, BadManifest, Unavailable):
            newest = None
        if newest is None or known_damage is None or newest.order in known_damage:
            return frozenset()
        return frozenset(chunk.digest for chunk in newest.chunks())

    def _read_newest(self, run: str) -> Manifest | None:
        pointer = self._pointers.read(run)
        if pointer is None:
            return None
        return decode_manifest(self._objects.get(pointer.manifest_key, digest=pointer.manifest_digest))


def make_part(save: Save, content: Content, *, image_name: str) -> Part:
    """The part that describes `content`. Reads every byte once."""
    image = file_of(image_name, content.image, chunk_bytes=content.chunk_bytes)
    layout = file_of(LAYOUT_FILE, memoryview(content.layout), chunk_bytes=content.chunk_bytes)
    metadata = file_of(METADATA_FILE, memoryview(content.metadata), chunk_bytes=content.chunk_bytes)
    return part_of(save, image, layout, metadata if content.metadata else None)


def part_keys(part: Part) -> AbstractSet[str]:
    """Keys of every part of the checkpoint that `part` belongs to."""
    return {s3keys.part(part.run, part.generation, part.step, rank) for rank in range(part.world)}


def assemble(objects: Objects, part: Part, *, until: float = NO_DEADLINE) -> Manifest:
    """The manifest of the checkpoint that `part` belongs to, whose parts are all in the bucket."""
    parts = [part if rank == part.rank else _read_part(objects, part, rank, until) for rank in range(part.world)]
    return Manifest(run=part.run, generation=part.generation, step=part.step, world=part.world, parts=tuple(parts))


def put_manifest(objects: Objects, manifest: Manifest, *, until: float = NO_DEADLINE) -> str:
    """Make the checkpoint exist; returns the manifest's digest. The equal one already there is success.

    Raises Damaged if a different manifest has the name.
    """
    data = encode(manifest)
    found = digest(data)
    key = s3keys.manifest(manifest.run, manifest.generation, manifest.step)
    if objects.put_if_absent(key, data, digest=found, until=until) is PutOutcome.DIFFERENT:
        raise Damaged(f"{key} exists and describes another checkpoint of the same step")
    return found


def _read_part(objects: Objects, part: Part, rank: int, until: float) -> Part:
    return decode_part(objects.read(s3keys.part(part.run, part.generation, part.step, rank), until=until))

"""Damage of every kind to a run's objects: never a wrong restore, and each damage is named.

One trial takes a run of real torch checkpoints (two generations, the newest staged on disk too), damages it, and
restores as a node does: the fetcher chooses, a fresh training is filled, and the quarantine stays for the next one.
Checked: what comes back has the bits of the uninterrupted training at its step; it is the newest checkpoint of which
every byte that a restore needs is still as it was written; each newer one is passed over by name with a reason, and
where nothing had to be passed over `verify` names the object. Where no checkpoint is left, the error names them all.

The bucket is a folder, which unlike S3 keeps no digest beside an object: what is found here, S3 finds too.
"""

from __future__ import annotations

import mmap
import os
import random
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import Self

from spotproof.checkpoint import commit as committing
from spotproof.checkpoint import restore as restoring
from spotproof.checkpoint.chunks import digest
from spotproof.checkpoint.commit import Committer, Content, Save, make_part
from spotproof.checkpoint.fetch import Fetched, Fetcher
from spotproof.checkpoint.inventory import verify
from spotproof.checkpoint.localcopy import LocalCopies
from spotproof.contract import keys, layout, s3keys
from spotproof.contract.items import Generation
from spotproof.contract.layout import image_name
from spotproof.contract.manifest import decode_manifest, encode
from spotproof.contract.states import SaveKind
from spotproof.errors import NoLoadableCheckpoint, SpotproofError
from spotproof.plan.candidates import Order
from spotproof.plan.retention import DAY_S
from spotproof.store import collecting
from spotproof.store.checkpoints import Checkpoints
from spotproof.store.erase import FolderEraser
from spotproof.store.folder import FolderObjects
from spotproof.store.local import LocalTable
from spotproof.store.members import Memberships
from spotproof.store.objects import NO_DEADLINE, Buffer, PutOutcome
from spotproof.store.pointer import Pointers
from spotproof.store.starts import Stores
from spotproof.store.table import Update
from tests.fakes.training import Training, snapshots
from tests.simulation.kill import RUN, fingerprint

STEPS = 5
SECOND_FROM = 3  # steps from here on are generation 2's
CHUNK_BYTES = 8192  # several chunks in an image
NOW = 2_000_000_000.0


class Kind(StrEnum):
    """What is done to the run."""

    TRUNCATED = "truncated"
    FLIPPED = "flipped"
    SWAPPED = "swapped"
    MISSING = "missing"
    DUPLICATED = "duplicated"  # its bytes twice
    OLDER = "older"  # the file of an earlier step in its place
    MIXED = "mixed"  # metadata of one step with data of another, its digests all in order
    LOST = "lost"  # the server acknowledged a put and kept nothing
    COLLECTED = "collected"  # a collection in the middle of a save
    STAGED = "staged"  # the copy on the node's own disk
    SEVERAL = "several"  # of these at once


FILES = (Kind.TRUNCATED, Kind.FLIPPED, Kind.SWAPPED, Kind.MISSING, Kind.DUPLICATED, Kind.OLDER)


class Forgetful(FolderObjects):
    """Acknowledges every put; keeps nothing of the chosen one."""

    def __init__(self, root: Path, *, forgets: int) -> None:
        super().__init__(root)
        self._left = forgets

    def put(self, key: str, data: Buffer, *, digest: str, until: float = NO_DEADLINE) -> None:
        """See `Objects`; a lie now and then."""
        self._left -= 1
        if self._left != -1:
            super().put(key, data, digest=digest, until=until)


class Watched(FolderObjects):
    """Calls `between` before the chosen put or put-if-absent."""

    def __init__(self, root: Path, *, at: int, between: Callable[[], None]) -> None:
        super().__init__(root)
        self._left, self._between = at, between

    def put(self, key: str, data: Buffer, *, digest: str, until: float = NO_DEADLINE) -> None:
        """See `Objects`."""
        self._count()
        super().put(key, data, digest=digest, until=until)

    def put_if_absent(self, key: str, data: Buffer, *, digest: str, until: float = NO_DEADLINE) -> PutOutcome:
        """See `Objects`."""
        self._count()
        return super().put_if_absent(key, data, digest=digest, until=until)

    def _count(self) -> None:
        self._left -= 1
        if self._left == -1:
            self._between()


@dataclass(frozen=True)
class Image:
    """One step's state as an agent gets it."""

    step: int
    body: bytes
    layout: bytes
    metadata: bytes

    @property
    def generation(self) -> int:
        return 1 if self.step < SECOND_FROM else 2

    @property
    def order(self) -> Order:
        return self.generation, self.step

    def content(self) -> Content:
        return Content(image=memoryview(self.body), layout=self.layout, metadata=self.metadata, chunk_bytes=CHUNK_BYTES)


def images() -> tuple[list[Image], list[str]]:
    """(an image of each step from 1, fingerprints from step 0): one training, saved by the real snapshotter."""
    training = Training()
    made, prints = list[Image](), [fingerprint(training)]
    with snapshots(training.objects) as (snapshotter, memory):
        for step in range(1, STEPS + 1):
            training.step()
            prints.append(fingerprint(training))
            snapshotter.save(step=step, generation=1 if step < SECOND_FROM else 2, counters={})
            plan = memory.plans[-1]
            made.append(Image(step, memory.image(), layout.encode(plan.layout), plan.metadata))
            memory.free()
    return made, prints


@dataclass
class Material:
    """A whole run in a folder, from which each trial takes a copy, and the truth about it."""

    folder: Path
    images: list[Image]
    prints: list[str]

    @classmethod
    def make(cls, folder: Path) -> Material:
        made, prints = images()
        with Place(folder) as place:
            place.seal(1, None)
            for image in made:
                if image.step == SECOND_FROM:
                    place.seal(2, made[SECOND_FROM - 2].order)
                place.commit(image)
        return cls(folder, made, prints)


@dataclass
class Place:
    """The stores of a run in a folder."""

    folder: Path
    objects: FolderObjects = field(init=False)
    table: LocalTable = field(init=False)

    def __post_init__(self) -> None:
        self.folder.mkdir(exist_ok=True)
        self.objects = FolderObjects(self.bucket)

    def __enter__(self) -> Self:
        self.table = LocalTable(self.folder / "table.sqlite").__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self.table.close()

    @property
    def bucket(self) -> Path:
        return self.folder / "bucket"

    @property
    def stores(self) -> Stores:
        return Stores(
            objects=self.objects,
            checkpoints=Checkpoints(self.table),
            pointers=Pointers(self.table),
            memberships=Memberships(self.table),
        )

    @property
    def local(self) -> LocalCopies:
        return LocalCopies(self.folder / "scratch", RUN)

    def seal(self, number: int, start: Order | None) -> None:
        first = None if start is None else start[0]
        sealed = Generation(
            run=RUN,
            generation=number,
            members=("0:1:i-1",),
            sealed_at=0,
            start_generation=first,
            start_step=None if start is None else start[1],
        )
        self.stores.memberships.seal(sealed, pointer=self.stores.pointers.read(RUN))

    def commit(self, image: Image, *, objects: FolderObjects | None = None) -> None:
        stores, content = self.stores, image.content()
        committer = Committer(
            objects=objects or stores.objects,
            checkpoints=stores.checkpoints,
            pointers=stores.pointers,
            clock=lambda: 1.0,
            threads=1,
        )
        save = Save(run=RUN, generation=image.generation, step=image.step, kind=SaveKind.PERIODIC)
        committer.commit(make_part(save, content, image_name=image_name(0)), content, kind=SaveKind.PERIODIC)

    def stage(self, image: Image) -> None:
        save = Save(run=RUN, generation=image.generation, step=image.step, kind=SaveKind.PERIODIC)
        part = make_part(save, image.content(), image_name=image_name(0))
        files = {part.image.name: image.body, committing.LAYOUT_FILE: image.layout, ".metadata": image.metadata}
        self.local.stage(part, files)

    def fetcher(self, *, local: bool) -> Fetcher:
        return Fetcher(stores=self.stores, run=RUN, clock=lambda: 2.0, local=self.local if local else None, threads=2)

    def files(self) -> list[Path]:
        """Every object of the run, in order."""
        return sorted(path for path in (self.bucket / "runs").rglob("*") if path.is_file())

    def manifests(self) -> dict[Order, Path]:
        found = {s3keys.order_of(self.key(path)): path for path in self.files() if s3keys.is_manifest(self.key(path))}
        return {order: path for order, path in found.items() if order is not None}

    def key(self, path: Path) -> str:
        return path.relative_to(self.bucket).as_posix()

    def path(self, key: str) -> Path:
        return self.bucket / key


@dataclass
class Truth:
    """What was written, by key: the state before the damage, and what a restore of each step needs of it."""

    written: dict[str, bytes]
    needs: dict[Order, set[str]]
    whole: dict[Order, set[str]]  # with what only stock DCP and people need

    @classmethod
    def of(cls, place: Place) -> Truth:
        written = {place.key(path): path.read_bytes() for path in place.files()}
        needs, whole = dict[Order, set[str]](), dict[Order, set[str]]()
        for order, path in place.manifests().items():
            manifest = decode_manifest(path.read_bytes())
            (part,) = manifest.parts
            chunks = [*part.image.chunks, *part.layout.chunks]
            needs[order] = {place.key(path), *(s3keys.blob(RUN, chunk.digest) for chunk in chunks)}
            own = s3keys.part(RUN, *order, 0)
            whole[order] = {place.key(path), own, *(s3keys.blob(RUN, one.digest) for one in manifest.chunks())}
        return cls(written, needs, whole)

    def damaged(self, place: Place) -> set[str]:
        """Keys whose objects are not as they were written."""
        return {
            key
            for key, data in self.written.items()
            if not place.path(key).is_file() or place.path(key).read_bytes() != data
        }


@dataclass
class Trial:
    """One run, what is done to it, and what must come of it."""

    place: Place
    material: Material
    chance: random.Random
    local: bool = False
    done: list[str] = field(default_factory=list)  # in words

    def play(self, kind: Kind) -> str:
        """'' if all was well, else what was not."""
        truth = Truth.of(self.place)
        match kind:
            case Kind.MIXED:
                self._mix()
                return self._judge_mixed()
            case Kind.LOST:
                return self._judge(self._lose())
            case Kind.COLLECTED:
                return self._judge(self._collect())
            case Kind.STAGED:
                self._stage()
                return self._judge(truth)
            case Kind.SEVERAL:
                for _ in range(self.chance.randint(2, 6)):
                    self._damage(self.chance.choice(FILES), truth)
                return self._judge(truth)
            case _:
                self._damage(kind, truth)
                return self._judge(truth)

    # ------------------------------------------------------------------------------------------------- damage
    def _damage(self, kind: Kind, truth: Truth) -> None:
        """To one object: most often one that the newest checkpoints need."""
        key = self._victim(truth)
        path = self.place.path(key)
        if not path.is_file():
            return
        self.done.append(f"{kind} {key}")
        hurt(path, kind, self.chance, self._other(path))

    def _victim(self, truth: Truth) -> str:
        orders = sorted(truth.needs)
        roll = self.chance.random()
        if roll < 0.5:
            return self.chance.choice(sorted(truth.needs[orders[-1]]))
        if roll < 0.8:
            return self.chance.choice(sorted(truth.whole[self.chance.choice(orders)]))
        return s3keys.manifest(RUN, *self.chance.choice(orders))

    def _other(self, path: Path) -> Path:
        """An object of the same kind with other bytes, an earlier one where there is one."""
        same = [one for one in self.place.files() if one.name == path.name or one.parent == path.parent]
        others = [one for one in same if one != path and one.read_bytes() != path.read_bytes()]
        earlier = [one for one in others if one < path]
        return self.chance.choice(earlier or others or [path])

    def _mix(self) -> None:
        """The manifest of the newest step, with an earlier step's chunks; the pointer promises the forgery."""
        newest, other = max(self.place.manifests()), self.chance.choice(sorted(self.place.manifests())[:-1])
        manifest, donor = (decode_manifest(self.place.manifests()[one].read_bytes()) for one in (newest, other))
        (own,), (foreign,) = manifest.parts, donor.parts
        forged = encode(replace(manifest, parts=(replace(own, image=foreign.image, layout=foreign.layout),)))
        self.done.append(f"manifest of {newest} with the data of {other}")
        self.place.manifests()[newest].write_bytes(forged)
        self.place.path(s3keys.part(RUN, *newest, 0)).write_bytes(encode(decode_manifest(forged).parts[0]))
        promised = {"manifest_digest": digest(forged)}  # as nobody of ours would write it
        self.place.table.write(Update(key=keys.pointer(RUN), set=promised))

    def _lose(self) -> Truth:
        """Two more commits on a server that loses one put; the truth is what should have been there."""
        *_, last = self.material.images
        fresh = [self._later(last.step + number) for number in (1, 2)]
        with Place(self.place.folder.with_name("honest")) as honest:
            shutil.copytree(self.place.bucket, honest.bucket, dirs_exist_ok=True)
            honest.seal(1, None)
            honest.seal(2, None)
            for image in fresh:
                honest.commit(image)
            truth = Truth.of(honest)
        liar = Forgetful(self.place.bucket, forgets=self.chance.randrange(len(last.body) // CHUNK_BYTES))
        for image in fresh:
            self.place.commit(image, objects=liar)
        self.done.append("a put was acknowledged and lost")
        return truth

    def _later(self, step: int) -> Image:
        """The state of a later step: the uninterrupted training goes on."""
        while len(self.material.images) < step:
            extend(self.material)
        return self.material.images[step - 1]

    def _collect(self) -> Truth:
        """Everything is old but the save on its way; a collection runs between two of its puts."""
        for path in self.place.files():
            os.utime(path, (NOW - 30 * DAY_S, NOW - 30 * DAY_S))
        image = self._later(STEPS + 1)

        def between() -> None:
            now_of_save(self.place)
            plan = collecting.plan(self.place.stores, RUN, keep=1, now=NOW)
            collecting.collect(plan, self.place.objects, FolderEraser(self.place.bucket))

        at = self.chance.randrange(len(image.body) // CHUNK_BYTES + 4)
        self.place.commit(image, objects=Watched(self.place.bucket, at=at, between=between))
        self.done.append(f"a collection before put {at} of a save")
        return Truth.of(self.place)

    def _stage(self) -> None:
        """The newest step also lies on this node's disk, and that copy is damaged; the bucket has it too, or not."""
        self.local = True
        image = self._later(STEPS + self.chance.randint(0, 1))
        self.place.stage(image)
        (copy,) = [one for one in self.place.local.find() if one.step == image.step]
        path = self.chance.choice(sorted(copy.folder.iterdir()))
        kind = self.chance.choice(FILES)
        self.done.append(f"{kind} local {path.name} of step {image.step}")
        others = [one for one in sorted(copy.folder.iterdir()) if one != path]
        hurt(path, kind, self.chance, self.chance.choice(others))

    # ------------------------------------------------------------------------------------------------- judging
    def _judge(self, truth: Truth) -> str:
        damaged = truth.damaged(self.place)
        # Beside a damaged part nobody can tell which of the two is right, once the pointer names another manifest.
        good = [order for order, needs in truth.needs.items() if not needs & damaged]
        sure = [order for order in good if s3keys.part(RUN, *order, 0) not in damaged]
        expected = max(sure, default=None)
        try:
            fetched = self.place.fetcher(local=self.local).newest()
        except NoLoadableCheckpoint as error:
            unnamed = [order for order in truth.needs if f"generation {order[0]} step {order[1]}" not in str(error)]
            return "" if expected is None and not unnamed else self._wrong(f"no restore: {error}")
        if fetched is None:
            return self._wrong("it would start from step 0")
        try:
            problem = self._restored(fetched)
        except SpotproofError as error:
            problem = f"it came as far as the trainer: {error}"
        if problem:
            return self._wrong(problem)
        if expected is None or fetched.order < expected:
            return self._wrong(f"restored {fetched.order}, {expected} is whole")
        return self._all_named(truth, damaged, fetched)

    def _all_named(self, truth: Truth, damaged: set[str], fetched: Fetched) -> str:
        said = "; ".join(fetched.skipped)
        newer = [order for order in truth.needs if order > fetched.order]
        if any(f"generation {order[0]} step {order[1]}: " not in said for order in newer):
            return self._wrong(f"passed over {newer} and said {said!r}")
        for order, whole in truth.whole.items():
            hurt_here = whole & damaged
            if not hurt_here or order in newer:
                continue
            found = {one.key for one in verify(self.place.objects, RUN, order, threads=1)}
            if not found:  # a manifest that differs from its part is named by both
                return self._wrong(f"nobody names {hurt_here}: verify of {order} says {found}")
        again = self.place.fetcher(local=self.local).newest()
        return "" if again is not None and self._ends(again) == fetched.order else self._wrong("the next one differs")

    def _judge_mixed(self) -> str:
        """No digest tells: the state itself says which step it is of."""
        newest, *_, expected = sorted(self.place.manifests(), reverse=True)[:2]
        try:
            fetched = self.place.fetcher(local=False).newest()
        except SpotproofError as error:
            return self._wrong(f"no choice: {error}")
        if fetched is None:
            return self._wrong("it would start from step 0")
        problem = self._restored(fetched)
        if problem or fetched.order != expected:
            return self._wrong(problem or f"restored {fetched.order}, not {expected}")
        is_named = any("holds the state of step" in one for one in fetched.skipped)
        return "" if is_named else self._wrong(f"{newest} was passed over for {fetched.skipped}")

    def _restored(self, fetched: Fetched) -> str:
        training = Training(seed=0)
        step = fetched.order[1]
        try:
            with mmap.mmap(fetched.image_fd, fetched.part.image.bytes, access=mmap.ACCESS_COPY) as image:
                restoring.restore(training.objects, image, layout.decode(fetched.layout), step=step)
        finally:
            os.close(fetched.image_fd)
        return "" if fingerprint(training) == self.material.prints[step] else f"WRONG restore of step {step}"

    def _ends(self, fetched: Fetched) -> Order:
        os.close(fetched.image_fd)
        return fetched.order

    def _wrong(self, what: str) -> str:
        return f"{'; '.join(self.done)}: {what}"


def hurt(path: Path, kind: Kind, chance: random.Random, other: Path) -> None:
    """Do it to one file."""
    data = path.read_bytes()
    match kind:
        case Kind.TRUNCATED:
            path.write_bytes(data[: chance.randrange(max(1, len(data)))])
        case Kind.FLIPPED:
            at = chance.randrange(len(data)) if data else 0
            path.write_bytes(data[:at] + bytes([data[at] ^ (1 << chance.randrange(8))]) + data[at + 1 :])
        case Kind.SWAPPED:
            path.write_bytes(other.read_bytes())
            other.write_bytes(data)
        case Kind.MISSING:
            path.unlink()
        case Kind.DUPLICATED:
            path.write_bytes(data + data)
        case _:
            path.write_bytes(other.read_bytes())


def extend(material: Material) -> None:
    """One more step of the uninterrupted training, from the newest image."""
    newest, training = material.images[-1], Training(seed=0)
    with mmap.mmap(-1, len(newest.body)) as memory:
        memory[:] = newest.body
        restoring.restore(training.objects, memory, layout.decode(newest.layout), step=newest.step)
        training.step()
        with snapshots(training.objects) as (snapshotter, arena):
            snapshotter.save(step=newest.step + 1, generation=2, counters={})
            plan = arena.plans[-1]
            body = arena.image()
    material.images.append(Image(newest.step + 1, body, layout.encode(plan.layout), plan.metadata))
    material.prints.append(fingerprint(training))


def now_of_save(place: Place) -> None:
    """What the save has put so far is of now: its files have the clock of this machine, the others that of long ago."""
    for path in place.files():
        if abs(path.stat().st_mtime - (NOW - 30 * DAY_S)) > 1:
            os.utime(path, (NOW, NOW))


def kinds(count: int) -> Iterator[Kind]:
    """In turn, so that each comes."""
    every = list(Kind)
    for number in range(count):
        yield every[number % len(every)]


def play(count: int, seed: int, where: Path, report: Callable[[str], None]) -> dict[Kind, int]:
    """`count` trials, each with its own seed; how many of each kind went wrong."""
    material = Material.make(where / "material")
    bad = dict.fromkeys(Kind, 0)
    for number, kind in enumerate(kinds(count)):
        chance = random.Random(f"{seed}:{number}")
        problem = one(material, kind, chance, where / "trial")
        if problem:
            bad[kind] += 1
            report(f"corruption {number} of seed {seed}, {kind}: {problem}")
    return bad


def one(material: Material, kind: Kind, chance: random.Random, folder: Path) -> str:
    """One trial in a copy of the run."""
    try:
        shutil.copytree(material.folder, folder)
        with Place(folder) as place:
            return Trial(place=place, material=material, chance=chance).play(kind)
    finally:
        for left in (folder, folder.with_name("honest")):
            shutil.rmtree(left, ignore_errors=True)


def summary(bad: dict[Kind, int], count: int) -> str:
    """What came of it, in a line."""
    return f"{count} corruptions of {len(bad)} kinds: {sum(bad.values())} with a wrong restore or a damage not named"

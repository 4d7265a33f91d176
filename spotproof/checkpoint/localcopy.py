"""Copies on the node's own disk: written aside, fsync, renamed. A folder under its final name is whole.

One folder per checkpoint and rank: `<root>/<run>/<generation>-<step>-<rank>/` with the image, the layout, DCP's
`.metadata` and `part.json`. On a node with one rank stock `dcp.load` reads it as it is.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from spotproof.checkpoint.chunks import digest, placed
from spotproof.contract.manifest import Chunk, Part, decode_part, encode
from spotproof.errors import BadManifest, CheckpointError, Damaged, DiskFull, Missing

PART_FILE: Final = "part.json"
_ASIDE: Final = ".aside-"
_NAME: Final = re.compile(r"(\d{8})-(\d{12})-(\d{5})")
_WRITE_BYTES: Final = 16 * 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Staged:
    """A whole copy on this node's disk."""

    generation: int
    step: int
    rank: int
    folder: Path

    @property
    def order(self) -> tuple[int, int]:
        """(generation, step)."""
        return self.generation, self.step

    def part(self) -> Part:
        """What the copy consists of. Raises Damaged if the folder does not say."""
        try:
            return decode_part((self.folder / PART_FILE).read_bytes())
        except (OSError, BadManifest) as error:
            raise Damaged(f"local copy {self.folder}: {error}") from error


class LocalCopies:
    """The local copies of one run. Keeps the newest `keep`, never removes one before a newer one is whole."""

    def __init__(self, root: Path, run: str, *, keep: int = 2) -> None:
        self._folder = root / run
        self._keep = keep

    def stage(self, part: Part, files: Mapping[str, bytes | memoryview]) -> Staged:
        """Write `files` (name -> content) as the copy of `part`; one that is there already is kept as it is.

        Raises:
            DiskFull: it does not fit; what was begun is gone, older copies are untouched.
            CheckpointError: the folder cannot be written to for another reason.
        """
        name = f"{part.generation:08d}-{part.step:012d}-{part.rank:05d}"
        staged = Staged(generation=part.generation, step=part.step, rank=part.rank, folder=self._folder / name)
        whole = {**files, PART_FILE: encode(part)}
        with self._explained(part.step, sum(len(content) for content in whole.values())):
            if not staged.folder.is_dir():
                self._write_whole(staged.folder, whole)
                self._prune(part.rank)
        return staged

    def find(self) -> list[Staged]:
        """Every whole copy, newest first."""
        if not self._folder.is_dir():
            return []
        found = [(match, path) for path in self._folder.iterdir() if (match := _NAME.fullmatch(path.name))]
        copies = [
            Staged(generation=int(match[1]), step=int(match[2]), rank=int(match[3]), folder=path)
            for match, path in found
        ]
        return sorted(copies, key=lambda copy: copy.order, reverse=True)

    def reader(self, order: tuple[int, int], rank: int) -> Callable[[Chunk, memoryview], None]:
        """Reads chunks of one copy by their digest into memory of their size; each read is checked.

        Raises Missing if there is no such copy.
        """
        copy = next((one for one in self.find() if one.order == order and one.rank == rank), None)
        if copy is None:
            raise Missing(f"no local copy of {order} in {self._folder}")
        part = copy.part()
        places = {
            chunk.digest: (copy.folder / file.name, offset)
            for file in (part.image, part.layout, part.metadata)
            if file is not None
            for offset, chunk in placed(file)
        }
        return lambda chunk, target: _read_chunk(*places[chunk.digest], chunk, target)

    def clean(self) -> None:
        """Remove what a killed process left half-written. Only one process may stage while this runs."""
        if self._folder.is_dir():
            for path in self._folder.glob(f"{_ASIDE}*"):
                shutil.rmtree(path)

    def _write_whole(self, folder: Path, files: Mapping[str, bytes | memoryview]) -> None:
        aside = self._folder / f"{_ASIDE}{folder.name}-{os.getpid()}"
        try:
            aside.mkdir(parents=True)
            for name, content in files.items():
                _write(aside / name, content)
            _sync_folder(aside)
            aside.rename(folder)
        except BaseException:
            shutil.rmtree(aside, ignore_errors=True)
            raise
        _sync_folder(self._folder)

    def _prune(self, rank: int) -> None:
        """Drop the oldest copies of `rank`; aside first, because a folder under its own name must be whole."""
        mine = [copy for copy in self.find() if copy.rank == rank]
        for copy in mine[self._keep :]:
            aside = self._folder / f"{_ASIDE}{copy.folder.name}-{os.getpid()}"
            copy.folder.rename(aside)
            shutil.rmtree(aside)

    @contextmanager
    def _explained(self, step: int, wanted_bytes: int) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                free_bytes = self._free_bytes()
                raise DiskFull(
                    f"local copy of step {step} needs {wanted_bytes} bytes, {self._folder} has {free_bytes} free",
                    next_step="make room there or choose a larger scratch folder; the upload goes on without it",
                ) from error
            raise CheckpointError(
                f"local copy of step {step} in {self._folder}: {error.strerror}", next_step="check the scratch folder"
            ) from error

    def _free_bytes(self) -> int:
        existing = next(path for path in (self._folder, *self._folder.parents) if path.exists())
        return shutil.disk_usage(existing).free


def _read_chunk(path: Path, offset: int, chunk: Chunk, target: memoryview) -> None:
    try:
        with path.open("rb", buffering=0) as file:
            file.seek(offset)
            rest = target
            while rest and (count := file.readinto(rest)):
                rest = rest[count:]
    except OSError as error:  # a disk that fails is one copy less, not a run that cannot start
        raise Damaged(f"{path}: {error.strerror}") from error
    if rest or digest(target) != chunk.digest:
        raise Damaged(f"{path}: bytes {offset} to {offset + chunk.bytes} are not those that were written")


def _write(path: Path, content: bytes | memoryview) -> None:
    """Write and fsync a new file."""
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        rest = memoryview(content)
        while rest:
            rest = rest[os.write(handle, rest[:_WRITE_BYTES]) :]
        os.fsync(handle)
    finally:
        os.close(handle)


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)

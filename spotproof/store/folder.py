"""The bucket off AWS: `Objects` in a folder. A file under its final name is complete, whatever dies when."""

from __future__ import annotations

import errno
import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from spotproof.errors import Missing, StoreError, Unavailable
from spotproof.store.digest import digest_of
from spotproof.store.objects import NO_DEADLINE, Buffer, ObjectInfo, PutOutcome, checked, other_size

__all__ = ["LEFT_BEHIND_S", "FolderObjects"]

_ASIDE: Final = ".aside"
"""Files that are being written; beside the objects, so that a rename never crosses a file system."""

LEFT_BEHIND_S: Final = 3600
"""A file aside that is older was left by a writer that died: no write takes an hour."""


class FolderObjects:
    """See `Objects` for the promises. Data and name are on disk (fsync of both) when a put returns.

    `read` cannot check anything: a folder keeps no digests. `until` is not needed: a disk answers or fails.
    """

    def __init__(self, root: Path) -> None:
        self._root = root
        self._aside = root / _ASIDE
        self._aside.mkdir(parents=True, exist_ok=True)
        self._clear_aside()

    def put(self, key: str, data: Buffer, *, digest: str, until: float = NO_DEADLINE) -> None:  # noqa: ARG002
        """See `Objects`."""
        path = self._path(key)
        with self._written(path, data) as aside:
            aside.replace(path)
            _sync_folder(path.parent)

    def put_if_absent(self, key: str, data: Buffer, *, digest: str, until: float = NO_DEADLINE) -> PutOutcome:  # noqa: ARG002
        """See `Objects`."""
        path = self._path(key)
        with self._written(path, data) as aside:
            try:
                path.hardlink_to(aside)  # unlike a rename, a link never replaces
            except FileExistsError:
                return PutOutcome.SAME if digest_of(path.read_bytes()) == digest else PutOutcome.DIFFERENT
            _sync_folder(path.parent)
        return PutOutcome.CREATED

    def get(self, key: str, *, digest: str, until: float = NO_DEADLINE) -> bytes:
        """See `Objects`."""
        return checked(key, self.read(key, until=until), digest=digest)

    def get_into(self, key: str, target: memoryview, *, digest: str, until: float = NO_DEADLINE) -> None:  # noqa: ARG002
        """See `Objects`."""
        path = self._path(key)
        try:
            with path.open("rb", buffering=0) as file:
                size = os.fstat(file.fileno()).st_size
                if size != len(target):
                    raise other_size(key, size, len(target))
                rest = target
                while rest and (count := file.readinto(rest)):
                    rest = rest[count:]
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError) as error:
            raise _missing(path) from error
        checked(key, target, digest=digest)

    def read(self, key: str, *, until: float = NO_DEADLINE) -> bytes:  # noqa: ARG002
        """See `Objects`."""
        path = self._path(key)
        try:
            return path.read_bytes()
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError) as error:
            raise _missing(path) from error

    def head(self, key: str, *, until: float = NO_DEADLINE) -> ObjectInfo | None:  # noqa: ARG002
        """See `Objects`."""
        path = self._path(key)
        return _info(key, path) if path.is_file() else None

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        """See `Objects`."""
        folder = self._root / prefix.rpartition("/")[0]
        found = (path for path in folder.rglob("*") if self._aside not in path.parents and path.is_file())
        named = ((path.relative_to(self._root).as_posix(), path) for path in found)
        for key, path in sorted(
            (pair for pair in named if pair[0].startswith(prefix)), key=lambda pair: pair[0].encode()
        ):
            yield _info(key, path)

    @contextmanager
    def _written(self, path: Path, data: Buffer) -> Iterator[Path]:
        """Yield a file aside that holds `data` on disk; it is gone afterwards unless it was renamed."""
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            handle, name = tempfile.mkstemp(dir=self._aside)
            try:
                with os.fdopen(handle, "wb") as file:
                    file.write(data)
                    file.flush()
                    os.fsync(file.fileno())
                yield Path(name)
            finally:
                Path(name).unlink(missing_ok=True)
        except OSError as error:
            raise _failure(path, error) from error

    def _clear_aside(self) -> None:
        for left in self._aside.iterdir():
            with suppress(FileNotFoundError):  # its writer lives after all, or another process clears too
                if left.stat().st_mtime < time.time() - LEFT_BEHIND_S:
                    left.unlink()

    def _path(self, key: str) -> Path:
        parts = key.split("/")
        if not all(parts) or any(part.startswith(".") for part in parts):
            raise StoreError(f"{key!r} is no object key", next_step="report it: keys come from the contract")
        return self._root.joinpath(*parts)


def _missing(path: Path) -> Missing:
    return Missing(f"{path}: no such object", next_step="check the folder")


def _failure(path: Path, error: OSError) -> StoreError:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        disk = os.statvfs(path.parent if path.parent.exists() else path.anchor)
        free_bytes = disk.f_bavail * disk.f_frsize
        return Unavailable(f"{path}: the disk is full ({free_bytes} bytes free)", next_step="make room there")
    return Unavailable(f"{path}: {error.strerror}", next_step="check the folder and its rights")


def _info(key: str, path: Path) -> ObjectInfo:
    found = path.stat()
    return ObjectInfo(key=key, bytes=found.st_size, modified_at=found.st_mtime)


def _sync_folder(folder: Path) -> None:
    """Make the name durable too: without this a power loss can take the link although the data is there."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)

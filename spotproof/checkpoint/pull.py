"""A checkpoint as a folder that stock torch DCP loads: each rank's image, `.metadata`, the layouts and the manifest.

The folder gets its name when it is whole. What an interrupted pull left is looked at again and not read twice.
"""

from __future__ import annotations

import os
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

from spotproof.checkpoint.chunks import digest, placed
from spotproof.checkpoint.inventory import THREADS, Progress, read_manifest
from spotproof.contract import s3keys
from spotproof.contract.manifest import Chunk, File, Manifest, encode
from spotproof.errors import BadSettings, Damaged, DiskFull
from spotproof.plan.candidates import Order
from spotproof.store.objects import Objects

MANIFEST_FILE: Final = "manifest.json"
_PARTIAL: Final = ".partial"


def pull(
    objects: Objects,
    run: str,
    order: Order,
    folder: Path,
    *,
    threads: int = THREADS,
    progress: Progress = lambda _: None,
) -> Manifest:
    """Write the checkpoint into `folder`, which must not exist, and return its manifest. Every byte is verified.

    Raises:
        BadSettings: the folder exists.
        DiskFull: there is not enough room; nothing has been written.
        Missing, Damaged, BadManifest: the checkpoint is not whole.
    """
    if folder.exists():
        raise BadSettings(f"{folder} exists already", next_step="name a folder that does not exist yet")
    manifest = read_manifest(objects, run, order)
    partial = folder.with_name(folder.name + _PARTIAL)
    partial.mkdir(parents=True, exist_ok=True)
    files = _files(manifest)
    _check_room(partial, files)
    for name, file in files.items():
        _write(objects, run, partial / name, file, threads=threads, progress=progress)
    (partial / MANIFEST_FILE).write_bytes(encode(manifest))
    for left in partial.iterdir():
        if left.name not in {*files, MANIFEST_FILE}:
            left.unlink()  # of an interrupted pull of another checkpoint
    os.sync()
    partial.rename(folder)
    return manifest


def _files(manifest: Manifest) -> dict[str, File]:
    found = {part.image.name: part.image for part in manifest.parts}
    found |= {f"layout-{part.rank:05d}.json": part.layout for part in manifest.parts}
    return found | {part.metadata.name: part.metadata for part in manifest.parts if part.metadata is not None}


def _check_room(folder: Path, files: dict[str, File]) -> None:
    there = sum((folder / name).stat().st_size for name in files if (folder / name).exists())
    wanted, free = sum(file.bytes for file in files.values()) - there, shutil.disk_usage(folder).free
    if wanted > free:
        raise DiskFull(
            f"{folder} needs {wanted} bytes more and has {free} free", next_step="make room, or pull to another disk"
        )


def _write(objects: Objects, run: str, path: Path, file: File, *, threads: int, progress: Progress) -> None:
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)

    def place(where: tuple[int, Chunk]) -> None:
        offset, chunk = where
        if digest(os.pread(handle, chunk.bytes, offset)) != chunk.digest:
            data = objects.get(s3keys.blob(run, chunk.digest), digest=chunk.digest)
            if len(data) != chunk.bytes:
                raise Damaged(f"chunk {chunk.digest[:16]} has {len(data)} bytes, the manifest says {chunk.bytes}")
            os.pwrite(handle, data, offset)
        progress(chunk.bytes)

    try:
        with ThreadPoolExecutor(threads, thread_name_prefix="pull") as pool:
            for _ in pool.map(place, placed(file)):
                pass
        os.ftruncate(handle, file.bytes)
        os.fsync(handle)
    finally:
        os.close(handle)

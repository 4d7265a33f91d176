"""Files of a checkpoint that somebody else wrote, in a folder or under an S3 prefix, and what can be read from them.

Nothing in them is trusted: pickles are read by torch's `weights_only` loader, `.metadata` by an unpickler that knows
DCP's own plain classes and nothing else. What does not hold together is an error that names the file.
"""

from __future__ import annotations

import io
import json
import mmap
import os
import pickle
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor

from spotproof.checkpoint.export import DTYPES
from spotproof.checkpoint.place import S3_SCHEME
from spotproof.errors import BadSettings, Damaged, MismatchedState, Missing, NoLoadableCheckpoint
from spotproof.store.clients import Clients
from spotproof.store.objects import Objects
from spotproof.store.s3 import S3Objects

_OTHER: Final = "name another checkpoint, or get this one again"
_TORCH_DTYPES: Final[Mapping[str, torch.dtype]] = {name: getattr(torch, dtype) for dtype, name in DTYPES.items()}
_METADATA: Final = "torch.distributed.checkpoint.metadata"
_FILESYSTEM: Final = "torch.distributed.checkpoint.filesystem"
_SAFE: Final = {
    (_METADATA, "Metadata"),
    (_METADATA, "MetadataIndex"),
    (_METADATA, "StorageMeta"),
    (_METADATA, "TensorProperties"),
    (_METADATA, "TensorStorageMetadata"),
    (_METADATA, "BytesStorageMetadata"),
    (_METADATA, "ChunkStorageMetadata"),
    (_METADATA, "_MEM_FORMAT_ENCODING"),
    (_FILESYSTEM, "_StorageInfo"),
    (_FILESYSTEM, "_StoragePrefix"),
    ("torch", "Size"),
    ("torch", "device"),
    ("torch.serialization", "_get_layout"),
    ("pathlib", "PosixPath"),
    ("pathlib", "PurePosixPath"),
    ("collections", "OrderedDict"),
    ("builtins", "set"),
}
_BROKEN: Final = (
    EOFError,
    IndexError,
    KeyError,
    OSError,
    RuntimeError,
    TypeError,
    ValueError,
    AttributeError,
    AssertionError,
    zipfile.BadZipFile,
    zlib.error,
)


@dataclass(slots=True, kw_only=True)
class Files:
    """Files by their names below `where`. Of a bucket whole objects are read, each once."""

    where: str
    names: tuple[str, ...]
    _read: Callable[[str], memoryview]
    _known: dict[str, memoryview] = field(default_factory=dict)

    @classmethod
    def of(cls, where: str) -> Files:
        """The files of a folder, of a prefix, or the one that `where` is. Raises BadSettings if there is none."""
        files = _in_bucket(where) if where.startswith(S3_SCHEME) else _in_folder(Path(where))
        if not files.names:
            raise BadSettings(f"{where}: there is nothing", next_step="start from a file, a folder or an S3 prefix")
        return files

    def read(self, name: str) -> memoryview:
        """The bytes of a file. Raises NoLoadableCheckpoint, naming it, if it is not there."""
        if name not in self.names:
            raise NoLoadableCheckpoint(f"{self.where}: {name} is missing", next_step=_OTHER)
        if name not in self._known:
            try:
                self._known[name] = self._read(name)
            except (OSError, Missing, Damaged) as error:
                raise NoLoadableCheckpoint(f"{self.where}: {name}: {error}", next_step=_OTHER) from error
        return self._known[name]

    @contextmanager
    def reading(self, name: str, key: str = "") -> Iterator[None]:
        """Errors of parsing become one that names the file, and the key in it."""
        what = f"{self.where}: {name}" + (f": {key}" if key else "")
        try:
            yield
        except pickle.UnpicklingError as error:
            first = str(error).strip().splitlines()[0] if str(error).strip() else "it is no pickle"
            raise MismatchedState(
                f"{what} cannot be read without running code of its own, or is damaged: {first}",
                next_step="save state_dicts that hold tensors and plain values",
            ) from error
        except _BROKEN as error:
            raise NoLoadableCheckpoint(f"{what} is damaged: {error}", next_step=_OTHER) from error


def _in_folder(path: Path) -> Files:
    def read(name: str) -> memoryview:
        with (root / name).open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            memory = mmap.mmap(file.fileno(), size, access=mmap.ACCESS_COPY) if size else b""
        return memoryview(memory)

    root = path if path.is_dir() else path.parent
    found = sorted(str(one.relative_to(root)) for one in root.rglob("*") if one.is_file()) if path.is_dir() else []
    names = tuple(found) if path.is_dir() else ((path.name,) if path.exists() else ())
    return Files(where=str(path), names=names, _read=read)


def _in_bucket(where: str) -> Files:
    bucket, _, prefix = where.removeprefix(S3_SCHEME).partition("/")
    return in_objects(S3Objects(Clients().s3, bucket), prefix, where=where)


def in_objects(objects: Objects, prefix: str, *, where: str) -> Files:
    """The objects below a prefix; or the one whose key it is."""
    keys = [info.key for info in objects.list(prefix)]
    folder, _, name = prefix.rpartition("/")
    is_one = prefix in keys
    base = (f"{folder}/" if folder else "") if is_one else (f"{prefix.rstrip('/')}/" if prefix else "")
    names = (name,) if is_one else tuple(key.removeprefix(base) for key in keys if key.startswith(base))

    def read(name: str) -> memoryview:
        return memoryview(bytearray(objects.read(base + name)))

    return Files(where=where, names=names, _read=read)


class SafeUnpickler(pickle.Unpickler):
    """Knows DCP's metadata classes, dtypes and shapes. Anything else is refused: it could run code."""

    def find_class(self, module: str, name: str, /) -> Any:  # Any: a class or a dtype
        """The class, if it is one of these. Raises UnpicklingError."""
        if (module, name) in _SAFE:
            return super().find_class(module, name)
        if module == "torch" and isinstance(
            getattr(torch, name, None), torch.dtype | torch.layout | torch.memory_format
        ):
            return getattr(torch, name)
        raise pickle.UnpicklingError(f"it refers to {module}.{name}")


def loaded(files: Files, name: str, data: memoryview, key: str = "") -> Any:  # Any: what the file holds
    """What `torch.save` wrote, by the `weights_only` loader. Zip entries have to agree with their CRCs."""
    with files.reading(name, key):
        _check_crc(data)
        return torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)


def _check_crc(data: memoryview) -> None:
    """`torch.load` does not look at them. A frame of ours has none that is right: its digests are in the manifest."""
    stream = io.BytesIO(data)
    if not zipfile.is_zipfile(stream):
        return  # torch's older format
    with zipfile.ZipFile(stream) as archive:
        bad = archive.testzip()
    if bad is not None:
        raise zipfile.BadZipFile(f"the checksum of {bad} is wrong")


def safetensors(files: Files, name: str) -> dict[str, Tensor]:
    """The tensors of one safetensors file, sharing its memory. Raises NoLoadableCheckpoint."""
    data = files.read(name)
    with files.reading(name):
        size = int.from_bytes(data[:8], "little")
        if size > len(data) - 8:
            raise ValueError(f"its header has {size} bytes and the file {len(data)}")
        header = json.loads(bytes(data[8 : 8 + size]))
        header.pop("__metadata__", None)
        body, end, found = data[8 + size :], 0, dict[str, Tensor]()
        for key, entry in sorted(header.items(), key=lambda item: item[1]["data_offsets"]):
            begin, until = entry["data_offsets"]
            if begin != end or until > len(body):
                raise ValueError(f"{key} lies at {begin}..{until}, expected was {end} in {len(body)} bytes")
            dtype, shape = _TORCH_DTYPES[entry["dtype"]], torch.Size(entry["shape"])
            if until - begin != shape.numel() * dtype.itemsize:
                raise ValueError(f"{key} has {until - begin} bytes, not those of {tuple(shape)} {dtype}")
            found[key] = _tensor(body[begin:until], dtype, shape)
            end = until
        if end != len(body):
            raise ValueError(f"{len(body) - end} bytes are left over")
    return found


def _tensor(data: memoryview, dtype: torch.dtype, shape: torch.Size) -> Tensor:
    if not len(data):
        return torch.empty(shape, dtype=dtype)
    return torch.frombuffer(bytearray(data), dtype=torch.uint8).view(dtype).reshape(shape)

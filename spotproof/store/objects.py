"""The one small interface to the bucket: whole objects under keys, with blake3 digests in hex.

`S3Objects` is the bucket, `FolderObjects` a folder off AWS; one test body holds both to the promises below. There is
no delete: nodes cannot delete, and nothing is ever renamed.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from enum import StrEnum
from typing import Final, Protocol, TypeVar

from spotproof.contract.frozen import dataclass
from spotproof.errors import Damaged
from spotproof.store.digest import digest_of

__all__ = ["NO_DEADLINE", "Buffer", "ObjectInfo", "Objects", "PutOutcome", "checked"]

NO_DEADLINE: Final = math.inf

Buffer = bytes | bytearray | memoryview
"""What can be stored. The caller does not change it until the call returns."""

AnyBuffer = TypeVar("AnyBuffer", bytes, memoryview)


class PutOutcome(StrEnum):
    """How a put-if-absent ended. Nothing was overwritten in any of the cases."""

    CREATED = "created"
    SAME = "same"  # somebody (or an earlier try of ours) wrote the same bytes: as good as created
    DIFFERENT = "different"  # the name holds other bytes: it is not ours to write


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectInfo:
    """An object in a listing."""

    key: str
    bytes: int
    modified_at: float  # Unix seconds


class Objects(Protocol):
    """Objects under keys like `runs/r/blobs/ab12`. An object that can be seen is complete.

    Calls are tried again after transient failures until `until` (time.monotonic()) or the time that the
    implementation was given, whichever is earlier; then they raise Unavailable. Denied: credentials or permissions.
    """

    def put(self, key: str, data: Buffer, *, digest: str, until: float = NO_DEADLINE) -> None:
        """Store `data`, replacing what was there. `digest` is its digest; it is trusted here and checked by `get`."""

    def put_if_absent(self, key: str, data: Buffer, *, digest: str, until: float = NO_DEADLINE) -> PutOutcome:
        """Store `data` if nothing has that key; of several at once exactly one creates."""

    def get(self, key: str, *, digest: str, until: float = NO_DEADLINE) -> bytes:
        """Return the object's bytes. Raises Damaged if they do not have this digest, Missing if there is none."""

    def get_into(self, key: str, target: memoryview, *, digest: str, until: float = NO_DEADLINE) -> None:
        """Read the object into `target`, which has its size, without a copy on the way, and check it there.

        Raises Damaged if the size or the digest is another one, Missing if there is none; `target` is then anything.
        """

    def read(self, key: str, *, until: float = NO_DEADLINE) -> bytes:
        """Return the object's bytes where no digest is known beforehand: a manifest or part found by listing.

        Raises Damaged if they do not have the digest that was stored with them (S3 only), Missing if there is none.
        """

    def head(self, key: str, *, until: float = NO_DEADLINE) -> ObjectInfo | None:
        """Return size and time of the object, or None."""

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        """Yield every object whose key begins with `prefix`, in the order of keys (UTF-8 bytes), page by page."""


def checked(key: str, data: AnyBuffer, *, digest: str) -> AnyBuffer:
    """Return `data` if it has the digest. Raises Damaged."""
    found = digest_of(data)
    if found != digest:
        raise Damaged(
            f"{key}: {len(data)} bytes with digest {found[:16]}.., promised was {digest[:16]}..",
            next_step="use an older checkpoint; spotproof does so by itself and quarantines this one",
        )
    return data


def other_size(key: str, found: int, promised: int) -> Damaged:
    """The error for an object of another size than its manifest says."""
    return Damaged(f"{key}: {found} bytes, promised were {promised}", next_step="use an older checkpoint")

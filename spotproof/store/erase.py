"""Deleting objects: apart from `Objects`, because no node can and only the collection does."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Final, Protocol

from spotproof.errors import Unavailable
from spotproof.store.retry import Patience

PATIENCE: Final = Patience(total_s=60, first_s=0.1, longest_s=5)
_PER_REQUEST: Final = 1000  # what DeleteObjects takes


class Eraser(Protocol):
    """Deletes keys; what is gone already is no error."""

    def delete(self, keys: Sequence[str]) -> None:
        """Delete every key. Raises Unavailable or Denied; then some are deleted, and trying again is right."""


class S3Eraser:
    """In the bucket. Its versions keep what was deleted for a day more."""

    def __init__(self, client: Any, bucket: str, *, patience: Patience = PATIENCE) -> None:
        self._client = client
        self._bucket = bucket
        self._patience = patience

    def delete(self, keys: Sequence[str]) -> None:
        """See `Eraser`."""
        for batch in _batches(keys):
            answer = self._patience.call(
                partial(self._delete, batch), doing=f"delete {len(batch)} objects from s3://{self._bucket}"
            )
            if refused := answer.get("Errors"):
                first = refused[0]
                raise Unavailable(
                    f"{len(refused)} of {len(batch)} objects were not deleted: {first.get('Key')}: {first.get('Code')}",
                    next_step="the next collection tries again",
                )

    def _delete(self, keys: Sequence[str]) -> dict[str, Any]:
        request = {"Objects": [{"Key": key} for key in keys], "Quiet": True}
        answer: dict[str, Any] = self._client.delete_objects(Bucket=self._bucket, Delete=request)
        return answer


class FolderEraser:
    """In a folder."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def delete(self, keys: Sequence[str]) -> None:
        """See `Eraser`."""
        for key in keys:
            with suppress(FileNotFoundError):
                self._root.joinpath(*key.split("/")).unlink()


def _batches(keys: Sequence[str]) -> Iterator[Sequence[str]]:
    for first in range(0, len(keys), _PER_REQUEST):
        yield keys[first : first + _PER_REQUEST]

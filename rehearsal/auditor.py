"""A second pair of eyes on the data path: reads table and bucket as a stranger would and checks every commit.

It shares no code with the product's commit or restore: it reads POINTER, fetches the manifest that it names, and reads
every chunk that the manifest lists. A pointer that names something that is not whole, or that went back, is a problem.
"""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import botocore.exceptions
from blake3 import blake3

POLL_S = 0.3


@dataclass(frozen=True, slots=True, kw_only=True)
class Commit:
    """A value of POINTER that was seen. `chunks` are digests; `seen_at` is Unix time."""

    generation: int
    step: int
    manifest_key: str
    chunks: tuple[str, ...]
    image_digest: str
    seen_at: float

    @property
    def order(self) -> tuple[int, int]:
        return self.generation, self.step


class Auditor:
    """Watches one run. `commits` and `problems` may be read at any time."""

    def __init__(self, *, run: str, dynamodb: Any, s3: Any, table: str, bucket: str) -> None:
        self.commits: list[Commit] = []
        self.problems: list[str] = []
        self._run, self._dynamodb, self._s3, self._table, self._bucket = run, dynamodb, s3, table, bucket
        self._stop = threading.Event()
        self._pause = threading.Lock()  # held while the script damages objects on purpose
        self._known: set[str] = set()  # chunks that were read and found right

    @contextlib.contextmanager
    def watching(self) -> Iterator[Auditor]:
        """Watches inside the with block, and once more at its end."""
        thread = threading.Thread(target=self._watch, name="auditor", daemon=True)
        thread.start()
        try:
            yield self
        finally:
            self._stop.set()
            thread.join(30)

    def pause(self) -> threading.Lock:
        """A lock: while it is held nothing is read."""
        return self._pause

    def newest(self) -> Commit | None:
        """The newest commit that was seen."""
        return self.commits[-1] if self.commits else None

    def _watch(self) -> None:
        while not self._stop.wait(POLL_S):
            self.look()
        self.look()

    def look(self) -> None:
        """Reads POINTER once and checks what is new."""
        with self._pause:
            try:
                item = self._pointer()
                if item is None or (self.commits and self.commits[-1].order == _order(item)):
                    return
                self._check(item)
            except botocore.exceptions.ConnectionError as error:
                self.problems.append(f"the region did not answer the auditor: {error}")
            except botocore.exceptions.ClientError as error:
                self.problems.append(f"the auditor was refused: {error}")

    def _pointer(self) -> dict[str, Any] | None:
        key = {"pk": {"S": f"NODE#{self._run}"}, "sk": {"S": "POINTER"}}
        answer = self._dynamodb.get_item(TableName=self._table, Key=key, ConsistentRead=True)
        item: dict[str, Any] | None = answer.get("Item")
        return item

    def _check(self, item: dict[str, Any]) -> None:
        order = _order(item)
        if self.commits and order < self.commits[-1].order:
            self.problems.append(f"the pointer went back from {self.commits[-1].order} to {order}")
        body = self._read(item["manifest_key"]["S"])
        if body is None:
            self.problems.append(f"the pointer names {item['manifest_key']['S']}, which does not exist")
            return
        if blake3(body).hexdigest() != item["manifest_digest"]["S"]:
            self.problems.append(f"the manifest of {order} is not the one that the pointer names")
        manifest = json.loads(body)
        files = [f for part in manifest["parts"] for f in (part["image"], part["layout"], part["metadata"]) if f]
        digests = [chunk["digest"] for file in files for chunk in file["chunks"]]
        for digest in dict.fromkeys(digests):
            self._check_chunk(digest, order)
        self.commits.append(
            Commit(
                generation=order[0],
                step=order[1],
                manifest_key=item["manifest_key"]["S"],
                chunks=tuple(chunk["digest"] for chunk in manifest["parts"][0]["image"]["chunks"]),
                image_digest=manifest["parts"][0]["receipt"]["state_digest"],
                seen_at=time.time(),
            )
        )

    def _check_chunk(self, digest: str, order: tuple[int, int]) -> None:
        if digest in self._known:
            return
        body = self._read(f"runs/{self._run}/blobs/{digest}")
        if body is None:
            self.problems.append(f"the commit {order} lists chunk {digest[:12]}, which does not exist")
        elif blake3(body).hexdigest() != digest:
            self.problems.append(f"the commit {order} lists chunk {digest[:12]}, whose bytes are others")
        else:
            self._known.add(digest)

    def _read(self, key: str) -> bytes | None:
        try:
            body: bytes = self._s3.get_object(Bucket=self._bucket, Key=key)["Body"].read()
        except self._s3.exceptions.NoSuchKey:
            return None
        return body


def _order(item: dict[str, Any]) -> tuple[int, int]:
    return int(item["generation"]["N"]), int(item["step"]["N"])

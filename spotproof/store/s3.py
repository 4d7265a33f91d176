"""The bucket: `Objects` over a low-level S3 client, one request per object; of a node that uploads, PUTs by a `Sender`.

S3 verifies the checksum that goes with each body, so a body damaged on the way is refused, not stored. The blake3
digest goes along as metadata: it tells after a 412 whether the object that is there is ours.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum
from typing import Any, Final

from spotproof.errors import Damaged, Missing, Unavailable
from spotproof.store.awserrors import Failure, aws_failures, kind_of
from spotproof.store.digest import digest_of
from spotproof.store.objects import NO_DEADLINE, Buffer, ObjectInfo, PutOutcome, checked, other_size
from spotproof.store.pouring import poured
from spotproof.store.retry import Patience
from spotproof.store.sender import Sender

__all__ = ["Checksum", "S3Objects"]

PATIENCE: Final = Patience(total_s=60, first_s=0.1, longest_s=5)
"""A save that is throttled keeps trying for 60 s (DESIGN section 10); a flush passes its own `until`."""

_DIGEST: Final = "blake3"
_VANISHING_LIMIT: Final = 5  # 412 and then 404: the object was deleted between the two requests


class Checksum(StrEnum):
    """What goes with a body for the server to verify. CRC64NVME needs awscrt, which a Lambda does not have."""

    CRC64NVME = "CRC64NVME"
    CRC32 = "CRC32"


class S3Objects:
    """See `Objects` for the promises."""

    def __init__(
        self,
        client: Any,
        bucket: str,
        *,
        checksum: Checksum = Checksum.CRC64NVME,
        patience: Patience = PATIENCE,
        sender: Sender | None = None,
    ) -> None:
        self._client = client
        self._sender = sender
        self._bucket = bucket
        self._checksum = checksum
        self._patience = patience

    def put(self, key: str, data: Buffer, *, digest: str, until: float = NO_DEADLINE) -> None:
        """See `Objects`."""
        self._patience.call(lambda: self._put(key, data, digest, until), doing=self._doing("put", key), until=until)

    def put_if_absent(self, key: str, data: Buffer, *, digest: str, until: float = NO_DEADLINE) -> PutOutcome:
        """See `Objects`."""

        def attempt() -> PutOutcome | None:
            try:
                self._put(key, data, digest, until, is_first=True)
            except aws_failures() as failure:
                if kind_of(failure) is not Failure.CONDITION:
                    raise
                return self._compared(key, digest)
            return PutOutcome.CREATED

        doing = self._doing("put if absent", key)
        for _ in range(_VANISHING_LIMIT):
            outcome = self._patience.call(attempt, doing=doing, until=until)
            if outcome is not None:
                return outcome
        raise Unavailable(f"{doing}: it exists and does not, again and again", next_step="see who deletes there")

    def get(self, key: str, *, digest: str, until: float = NO_DEADLINE) -> bytes:
        """See `Objects`."""
        data, _ = self._fetch(key, until=until)
        return checked(key, data, digest=digest)

    def get_into(self, key: str, target: memoryview, *, digest: str, until: float = NO_DEADLINE) -> None:
        """See `Objects`. The digest is checked and not the checksum: it tells as much, and each costs a pass."""

        def attempt() -> None:
            answer = self._client.get_object(Bucket=self._bucket, Key=key)
            if answer["ContentLength"] != len(target):
                answer["Body"].close()
                raise other_size(key, answer["ContentLength"], len(target))
            poured(answer["Body"], target, url=f"s3://{self._bucket}/{key}")

        self._patience.call(attempt, doing=self._doing("get", key), until=until)
        checked(key, target, digest=digest)

    def read(self, key: str, *, until: float = NO_DEADLINE) -> bytes:
        """See `Objects`."""
        data, stored = self._fetch(key, until=until)
        return data if stored is None else checked(key, data, digest=stored)

    def head(self, key: str, *, until: float = NO_DEADLINE) -> ObjectInfo | None:
        """See `Objects`."""
        try:
            answer = self._patience.call(
                lambda: self._client.head_object(Bucket=self._bucket, Key=key),
                doing=self._doing("head", key),
                until=until,
            )
        except Missing:
            return None
        return ObjectInfo(key=key, bytes=answer["ContentLength"], modified_at=answer["LastModified"].timestamp())

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        """See `Objects`."""
        request: dict[str, Any] = {"Bucket": self._bucket, "Prefix": prefix}
        while True:
            answer = self._patience.call(
                lambda: self._client.list_objects_v2(**request), doing=self._doing("list", prefix)
            )
            for entry in answer.get("Contents", ()):
                yield ObjectInfo(key=entry["Key"], bytes=entry["Size"], modified_at=entry["LastModified"].timestamp())
            if not answer.get("IsTruncated"):
                return
            request["ContinuationToken"] = answer["NextContinuationToken"]

    def _put(self, key: str, data: Buffer, digest: str, until: float, *, is_first: bool = False) -> None:
        """One try. `is_first`: only if nothing has that key."""
        if self._sender is not None:
            condition = {"If-None-Match": "*"} if is_first else {}
            headers = {f"x-amz-meta-{_DIGEST}": digest, **condition}
            self._sender.put(key, memoryview(data), headers, until=until)
            return
        self._client.put_object(
            Bucket=self._bucket,
            Key=key,
            Body=data if isinstance(data, bytes) else bytes(data),
            ChecksumAlgorithm=self._checksum.value,
            Metadata={_DIGEST: digest},
            **({"IfNoneMatch": "*"} if is_first else {}),
        )

    def _fetch(self, key: str, *, until: float) -> tuple[bytes, str | None]:
        def attempt() -> tuple[bytes, str | None]:
            answer = self._client.get_object(Bucket=self._bucket, Key=key, ChecksumMode="ENABLED")
            # Read inside the attempt: a connection that breaks in the middle of a body is tried again too.
            return answer["Body"].read(), answer.get("Metadata", {}).get(_DIGEST)

        doing = self._doing("get", key)
        try:
            return self._patience.call(attempt, doing=doing, until=until)
        except Damaged:  # the checksum is wrong, perhaps only on the way: a second time it is the object's
            return self._patience.call(attempt, doing=doing, until=until)

    def _compared(self, key: str, digest: str) -> PutOutcome | None:
        """Say whether the object that is there is the one that was to be put; None if it is not there any more."""
        try:
            stored = self._client.head_object(Bucket=self._bucket, Key=key).get("Metadata", {}).get(_DIGEST)
            if stored is None:  # written by another tool: its bytes decide
                stored = digest_of(self._client.get_object(Bucket=self._bucket, Key=key)["Body"].read())
        except aws_failures() as failure:
            if kind_of(failure) is not Failure.MISSING:
                raise
            return None
        return PutOutcome.SAME if stored == digest else PutOutcome.DIFFERENT

    def _doing(self, verb: str, key: str) -> str:
        return f"{verb} s3://{self._bucket}/{key}"

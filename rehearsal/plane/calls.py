"""What was called: one record per API call that reached the emulated account."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One request as it arrived. `role` is the role behind the access key, '' for the operator's own key.

    `seen` are the instances that the call is about, each with the tags that it carried at that moment.
    """

    service: str  # botocore's name: ec2, dynamodb, ...
    operation: str  # AWS's spelling: CreateFleet
    params: dict[str, Any]
    access_key: str = ""
    role: str = ""
    seen: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    at: float = field(default_factory=time.time)


@dataclass(frozen=True, slots=True, kw_only=True)
class Answered:
    """A call and its end: an HTTP status (0 when the connection was dropped) and AWS's error code, '' for success."""

    call: Call
    status: int
    error: str = ""


class CallLog:
    """Append-only, safe from several threads."""

    def __init__(self) -> None:
        self._records: list[Answered] = []
        self._lock = threading.Lock()

    def add(self, record: Answered) -> None:
        with self._lock:
            self._records.append(record)

    def __iter__(self) -> Iterator[Answered]:
        with self._lock:
            return iter(list(self._records))

    def __len__(self) -> int:
        return len(self._records)

    def of(self, service: str, operation: str, *, role: str | None = None) -> list[Answered]:
        """Records of one operation in their order of arrival; `role` is matched by its ending, None means anybody's."""
        return [
            record
            for record in self
            if (record.call.service, record.call.operation) == (service, operation)
            and (role is None or record.call.role.endswith(role))
        ]

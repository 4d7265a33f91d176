"""The runs that have objects in the bucket: folders under the runs' prefix, without a look at what is in them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from spotproof.contract import ids, s3keys
from spotproof.store.erase import PATIENCE
from spotproof.store.retry import Patience

__all__ = ["runs_in"]


def runs_in(client: Any, bucket: str, *, patience: Patience = PATIENCE) -> Iterator[str]:
    """Yield every run id; what is no run id is not ours and left out. Raises Unavailable, Denied."""
    request: dict[str, Any] = {"Bucket": bucket, "Prefix": s3keys.RUNS, "Delimiter": "/"}
    while True:
        answer = patience.call(lambda: client.list_objects_v2(**request), doing=f"list the runs of s3://{bucket}")
        for entry in answer.get("CommonPrefixes", ()):
            run = str(entry["Prefix"]).removeprefix(s3keys.RUNS).rstrip("/")
            if ids.is_run_id(run):
                yield run
        if not answer.get("IsTruncated"):
            return
        request["ContinuationToken"] = answer["NextContinuationToken"]

"""An object's body straight from the socket into the caller's memory.

botocore's body reads into memory of its own and copies it, under Python's lock; at the rate of a fast network the copy
is a third of a restore (benchmarks/restore.py measures both).
"""

from __future__ import annotations

from http.client import HTTPException, HTTPResponse
from typing import Any

__all__ = ["poured"]


def poured(body: Any, target: memoryview, *, url: str) -> None:
    """Fill `target` from a StreamingBody of as many bytes, and give its connection back.

    Raises what botocore raises for a connection that breaks or stands still.
    """
    from botocore.exceptions import ConnectionClosedError, ReadTimeoutError

    raw = body._raw_stream  # noqa: SLF001 -- a StreamingBody has no other way to its stream
    try:
        _fill(raw._fp, target)  # noqa: SLF001 -- the http.client answer, which reads without a copy
    except TimeoutError as error:
        body.close()
        raise ReadTimeoutError(endpoint_url=url, error=error) from error
    except (OSError, HTTPException) as error:
        body.close()
        raise ConnectionClosedError(endpoint_url=url, error=error) from error
    raw.release_conn()


def _fill(answer: HTTPResponse, target: memoryview) -> None:
    rest = target
    while rest:
        count = answer.readinto(rest)
        if not count:
            raise HTTPException(f"{len(rest)} bytes are missing")
        rest = rest[count:]

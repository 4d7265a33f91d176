"""S3 over its wire: the proxy records method, bucket, key and query string.

Source: Service Authorization Reference, S3; API Reference of GetObject and HeadObject ("if the object you request
doesn't exist", the answer is 404 only with s3:ListBucket, else 403), PutObject (If-None-Match needs s3:PutObject only).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final
from urllib.parse import parse_qs

from rehearsal.permissions.requests import Request
from rehearsal.permissions.world import Underivable, World
from rehearsal.plane.calls import Answered

# Query parameters that leave the action what it is.
_PLAIN: Final = {"x-id", "list-type", "prefix", "delimiter", "max-keys", "continuation-token", "encoding-type"}
_UPLOAD: Final = frozenset({"uploads", "uploadId", "partNumber"})
_PARTS: Final = frozenset({"multipart"})
_ALONE: Final = frozenset[str]()
_ACTIONS: Final[Mapping[tuple[str, frozenset[str]], str]] = {
    ("GET object", _ALONE): "s3:GetObject",
    ("HEAD object", _ALONE): "s3:GetObject",
    ("PUT object", _ALONE): "s3:PutObject",
    ("PUT object", _PARTS): "s3:PutObject",
    ("POST object", _PARTS): "s3:PutObject",
    ("DELETE object", _ALONE): "s3:DeleteObject",
    ("DELETE object", _PARTS): "s3:AbortMultipartUpload",
    ("GET bucket", _ALONE): "s3:ListBucket",
}
_NOT_THERE: Final = 404


def derive(answered: Answered, world: World) -> tuple[Request, ...]:
    """The actions of one S3 exchange."""
    call = answered.call
    query = parse_qs(call.params["Query"], keep_blank_values=True)
    if (call.operation, set(query)) == ("POST bucket", {"delete"}):
        bucket = call.params["Bucket"]
        return tuple(
            Request(action="s3:DeleteObject", resource=world.bucket(bucket, key)) for key in call.params["Keys"]
        )
    others = set(query) - _PLAIN
    bucket, key = call.params["Bucket"], call.params["Key"]
    action = _ACTIONS.get((call.operation, _PARTS if others and others <= _UPLOAD else frozenset(others)))
    if action is None or (call.operation == "GET bucket" and "list-type" not in query):
        raise Underivable(f"S3 {call.operation} ?{call.params['Query']}")
    listing = Request(
        action="s3:ListBucket", resource=world.bucket(bucket), context={"s3:prefix": query.get("prefix", [key])[0]}
    )
    if call.operation == "GET bucket":
        return (listing,)
    asked = Request(action=action, resource=world.bucket(bucket, key))
    return (asked, listing) if action == "s3:GetObject" and answered.status == _NOT_THERE else (asked,)

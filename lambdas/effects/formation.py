"""CloudFormation's side of a custom resource: the answer goes to a signed address that came with the request."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Mapping
from typing import Any, Final

from lambdas.decisions.guarding import Answer
from spotproof.errors import Unavailable

ANSWER_S: Final = 10.0  # of the function's minute; the call is repeated by Lambda if it fails
REASON_BYTES: Final = 1024  # an answer may have 4,096 bytes in all


def respond(request: Mapping[str, Any], answer: Answer) -> None:
    """Send the answer. Raises Unavailable: without one CloudFormation waits until the guard's time-out.

    The address is signed for a request without a content type.
    """
    body = json.dumps(
        {
            "Status": "FAILED" if answer.refusal else "SUCCESS",
            "Reason": answer.refusal.encode()[:REASON_BYTES].decode(errors="ignore"),
            "PhysicalResourceId": answer.guard,
            "StackId": request["StackId"],
            "RequestId": request["RequestId"],
            "LogicalResourceId": request["LogicalResourceId"],
        }
    ).encode()
    said = urllib.request.Request(  # noqa: S310 - the address is CloudFormation's
        str(request["ResponseURL"]), data=body, method="PUT", headers={"Content-Type": ""}
    )
    try:
        with urllib.request.urlopen(said, timeout=ANSWER_S) as answered:  # noqa: S310
            answered.read()
    except (urllib.error.URLError, TimeoutError) as error:
        raise Unavailable(f"answer CloudFormation: {error}", next_step="it comes again") from error

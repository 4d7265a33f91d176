"""ClientToken as EC2 honours it."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from rehearsal.plane.failures import AwsFailure


class Tokens:
    """Same token and same parameters: the first answer again, nothing is launched. Other parameters: a refusal."""

    def __init__(self) -> None:
        self._seen: dict[str, tuple[str, Any]] = {}

    def check(self, params: dict[str, Any]) -> Any | None:
        """The stored answer of this token, None for a new one. Raises IdempotentParameterMismatch."""
        token = params.get("ClientToken")
        if not token or token not in self._seen:
            return None
        asked, answer = self._seen[token]
        if asked != _fingerprint(params):
            raise AwsFailure(
                "IdempotentParameterMismatch",
                f"The client token {token} was used before with other parameters.",
            )
        return answer

    def once(self, params: dict[str, Any], perform: Callable[[], Any]) -> Any:
        """The token's stored answer, or that of `perform`, which is then stored. A failure is not stored."""
        known = self.check(params)
        if known is not None:
            return known
        answer = perform()
        if params.get("ClientToken"):
            self._seen[params["ClientToken"]] = (_fingerprint(params), answer)
        return answer


def _fingerprint(params: dict[str, Any]) -> str:
    return json.dumps({k: v for k, v in params.items() if k != "ClientToken"}, sort_keys=True, default=str)

"""AWS's Service Authorization Reference for the actions of this stack: which resources and keys an action knows."""

from __future__ import annotations

import json
import re
from functools import cache
from pathlib import Path
from typing import Any

from rehearsal.permissions.evaluate import matches_arn
from rehearsal.permissions.requests import ANY, Request

FILE = Path(__file__).parents[1] / "rehearsal" / "service_authorization.json"
_VARIABLE = re.compile(r"\$\{\w+\}|<key>")


@cache
def _reference() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(FILE.read_text())
    return found


def resource_type(action: str, resource: str) -> str | None:
    """The type of this ARN among those that the action knows; '' for an action that knows none, None for neither."""
    known = _reference()[action]["resources"]
    if not known or resource == ANY:
        return "" if resource == ANY else None
    shapes = {kind: _VARIABLE.sub("*", one["arn"]) for kind, one in known.items()}
    fitting = [kind for kind, shape in shapes.items() if matches_arn(shape, _concrete(resource))]
    return min(fitting, key=lambda kind: shapes[kind].count("*"), default=None)


def _concrete(resource: str) -> str:
    """A pattern as an ARN that it matches."""
    return resource.replace("*", "any")


def findings(request: Request) -> list[str]:
    """What AWS would never ask: a resource or a context key that the action does not know."""
    if request.action not in _reference():
        return [f"{request.action}: not in the reference"]
    kind = resource_type(request.action, request.resource)
    if kind is None:
        return [f"{request.action} knows no {request.resource}"]
    row = _reference()[request.action]
    keys = [*row["keys"], *(row["resources"][kind]["keys"] if kind else [])]
    patterns = [re.compile(_VARIABLE.sub(".+", key), re.IGNORECASE) for key in keys]
    return [
        f"{request.action} on {kind or 'any'} knows no {key}"
        for key in request.context
        if not any(pattern.fullmatch(key) for pattern in patterns)
    ]

"""What IAM is asked: one action on one resource, in a context."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

Value = str | tuple[str, ...]
"""A context key's value; a tuple where AWS calls the key multivalued, such as dynamodb:LeadingKeys."""

ANY: Final = "*"  # the resource of actions that know none


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One decision that IAM makes. A call may need several."""

    action: str
    resource: str
    context: Mapping[str, Value] = field(default_factory=dict)

    def key(self) -> tuple[object, ...]:
        """Equal for equal requests: a thousand heartbeats are one decision."""
        return self.action, self.resource, tuple(sorted(self.context.items()))

    def __str__(self) -> str:
        given = ", ".join(f"{key}={value}" for key, value in sorted(self.context.items()))
        return f"{self.action} on {self.resource}" + (f" with {given}" if given else "")


def tagged(prefix: str, tags: Mapping[str, str]) -> dict[str, Value]:
    """Tags as context keys: `aws:RequestTag/team` and so on."""
    return {f"{prefix}/{key}": value for key, value in tags.items()}

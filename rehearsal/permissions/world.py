"""What a derivation must know beside the call: names of the account, and what a launch template is made of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


class Underivable(Exception):
    """Nobody has written down what this call asks of IAM: add it to the derivation table, with its source."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Template:
    """One version of a launch template: what RunInstances takes from it. `tags` are its own, by resource type."""

    profile: str
    role: str
    image: str
    image_owner: str
    security_groups: tuple[str, ...]
    tags: Mapping[str, Mapping[str, str]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """One account in one Region. `templates` are by (id, version)."""

    partition: str
    region: str
    account: str
    templates: Mapping[tuple[str, str], Template] = field(default_factory=dict)

    def arn(self, service: str, resource: str) -> str:
        """An ARN of this Region and account."""
        return f"arn:{self.partition}:{service}:{self.region}:{self.account}:{resource}"

    def public(self, service: str, resource: str) -> str:
        """An ARN of this Region that names no account: images, snapshots, Amazon's documents."""
        return f"arn:{self.partition}:{service}:{self.region}::{resource}"

    def bucket(self, name: str, key: str = "") -> str:
        """A bucket, or an object in it."""
        return f"arn:{self.partition}:s3:::{name}" + (f"/{key}" if key else "")

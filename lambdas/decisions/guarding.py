"""What CloudFormation is answered when it makes, updates or deletes the guard: a stack with live runs is not destroyed.

The guard depends on everything else of the stack, so it is made last and asked first. A refusal leaves all as it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from spotproof.contract import keys, limits

NAMED: Final = 10  # runs that a refusal lists; CloudFormation shows about a kilobyte
NOT_MADE: Final = "not-made"  # id of a guard whose making failed: its deletion guards nothing


class Wish(StrEnum):
    """What CloudFormation asks for."""

    CREATE = "Create"
    UPDATE = "Update"
    DELETE = "Delete"


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """One request. `guard` is the id that the guard was given when it was made, '' before."""

    wish: Wish
    stack: str
    guard: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """`refusal` says why not and what to do, '' when it may go on. `guard` is the guard's id from now on."""

    guard: str
    refusal: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttachedTable:
    """A table that the stack did not make: its keys in order, and the attribute by which items expire."""

    name: str
    keys: tuple[str, ...]
    expires_by: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AttachedBucket:
    """A bucket that the stack did not make. Days are 0 where no enabled rule of the whole bucket does it."""

    name: str
    versioned: bool
    abort_uploads_days: int
    expire_noncurrent_days: int


def id_of(stack: str) -> str:
    """The guard's id. It never changes, so that no update is taken for a deletion."""
    return f"{stack}-guard"


def protects(asked: Asked) -> bool:
    """Whether the live runs must be read: only for the deletion of a guard that was made."""
    return asked.wish is Wish.DELETE and asked.guard == id_of(asked.stack)


def of_deletion(asked: Asked, live: Sequence[str]) -> Answer:
    """Refused as long as there are live runs, by name."""
    if not protects(asked) or not live:
        return Answer(guard=asked.guard)
    runs = sorted(live)
    more = f" and {len(runs) - NAMED} more" if len(runs) > NAMED else ""
    what = "is a live run" if len(runs) == 1 else f"are {len(runs)} live runs"
    refusal = (
        f"stack {asked.stack} is not destroyed, there {what}: {', '.join(runs[:NAMED])}{more}."
        f" Next: `spotproof stop {runs[0]} --stack {asked.stack}`{' (and the others)' if len(runs) > 1 else ''},"
        " wait until its nodes have ended, then destroy again"
    )
    return Answer(guard=asked.guard, refusal=refusal)


def of_making(asked: Asked, problems: Sequence[str]) -> Answer:
    """Made, unless what is attached does not fit. An update never fails: it may be the way back from one that did."""
    if asked.wish is Wish.UPDATE:
        return Answer(guard=asked.guard)
    if problems:
        return Answer(guard=NOT_MADE, refusal=f"{'; '.join(problems)}. Next: correct that and deploy again")
    return Answer(guard=id_of(asked.stack))


def problems_of_table(table: AttachedTable) -> tuple[str, ...]:
    """What keeps this table from being the stack's."""
    found = []
    if table.keys != (keys.PK, keys.SK):
        found.append(f"attach_table: {table.name} has the key {', '.join(table.keys)}, not {keys.PK}, {keys.SK}")
    if table.expires_by != keys.TTL:
        found.append(f"attach_table: {table.name} does not expire items by {keys.TTL}: switch time to live on")
    return tuple(found)


def problems_of_bucket(bucket: AttachedBucket) -> tuple[str, ...]:
    """What keeps this bucket from being the stack's."""
    found = []
    if not bucket.versioned:
        found.append(f"attach_bucket: {bucket.name} is not versioned")
    if not 1 <= bucket.abort_uploads_days <= limits.MULTIPART_ABORT_DAYS:
        found.append(
            f"attach_bucket: {bucket.name} needs a lifecycle rule that aborts incomplete uploads after"
            f" {limits.MULTIPART_ABORT_DAYS} day"
        )
    if bucket.versioned and not bucket.expire_noncurrent_days:
        found.append(
            f"attach_bucket: {bucket.name} needs a lifecycle rule that expires noncurrent versions after"
            f" {limits.NONCURRENT_DAYS} day"
        )
    return tuple(found)

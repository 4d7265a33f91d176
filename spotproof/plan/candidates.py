"""Which checkpoints a run may go on from, best first, and why others are passed over. Pure: facts in, order out."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from enum import StrEnum

Order = tuple[int, int]
"""(generation, step)."""


class Source(StrEnum):
    """Where a checkpoint's description is."""

    MANIFEST = "manifest"  # committed
    PARTS = "parts"  # every part is in the bucket, the manifest was never written: it is finished when it is chosen
    STAGED = "staged"  # whole on this node's own disk, perhaps not in the bucket


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What is known before a choice. `starts`: sealed generation -> the checkpoint it began with (None: from zero)."""

    manifests: AbstractSet[Order]
    parts: AbstractSet[Order]
    staged: AbstractSet[Order]
    pointer: Order | None
    quarantined: AbstractSet[Order]
    starts: Mapping[int, Order | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A checkpoint to try."""

    order: Order
    source: Source


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranked:
    """Candidates, newest first; what was passed over, one text each; whether the run ever committed anything."""

    candidates: tuple[Candidate, ...]
    passed_over: tuple[str, ...]
    had_checkpoint: bool


def rank(facts: Facts) -> Ranked:
    """Order the checkpoints by (generation, step) and leave out those that are not the run's.

    A generation's checkpoints end where the next generation began: what a node wrote after its successor was sealed
    (it was frozen and woke up) is not part of the run, though it is whole.
    """
    orders = facts.manifests | facts.parts | facts.staged
    if facts.pointer is not None:
        orders = orders | {facts.pointer}
    candidates: list[Candidate] = []
    passed_over: list[str] = []
    for order in sorted(orders, reverse=True):
        why = _why_not(order, facts)
        if why:
            passed_over.append(f"generation {order[0]} step {order[1]}: {why}")
        else:
            candidates.append(Candidate(order=order, source=_source(order, facts)))
    had_checkpoint = facts.pointer is not None or any(_is_of_run(order, facts) for order in facts.manifests)
    return Ranked(candidates=tuple(candidates), passed_over=tuple(passed_over), had_checkpoint=had_checkpoint)


def _why_not(order: Order, facts: Facts) -> str:
    if order in facts.quarantined:
        return "quarantined as damaged"
    if not _is_of_run(order, facts):
        return f"written after generation {order[0] + 1} had been sealed"
    return ""


def _is_of_run(order: Order, facts: Facts) -> bool:
    following = order[0] + 1
    if following not in facts.starts:
        return True
    start = facts.starts[following]
    return start is not None and order <= start


def _source(order: Order, facts: Facts) -> Source:
    """A manifest is the truth; the pointer's checkpoint is tried as one even where the listing does not show it."""
    if order in facts.manifests or order == facts.pointer:
        return Source.MANIFEST
    return Source.PARTS if order in facts.parts else Source.STAGED

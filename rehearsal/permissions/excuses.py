"""Grants that no rehearsal makes use of, each with why it is there all the same. Short on purpose."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Final

from rehearsal.permissions.estate import NODE, PIPELINE, SCHEDULE
from rehearsal.permissions.evaluate import Part
from spotproof.contract.names import Function


@dataclass(frozen=True, slots=True, kw_only=True)
class Excuse:
    """Pieces of one statement, by shell pattern, that need not be used."""

    actors: tuple[str, ...]
    sid: str
    what: str
    because: str

    def covers(self, actor: str, part: Part) -> bool:
        """Whether this piece of this actor's role is meant."""
        return actor in self.actors and part.sid == self.sid and fnmatchcase(part.what, self.what)


EXCUSES: Final = (
    Excuse(
        actors=PIPELINE,
        sid="LaunchKnownImages",
        what="ec2:Owner [0-9]*",
        because="teams may build their own machine image; the stack that is rehearsed names Amazon's",
    ),
    Excuse(
        actors=(Function.REPAIR.value,),
        sid="CommitInTable",
        what="*",
        because="a checkpoint that is whole while all its agents are dead: a kill between two requests, which only the"
        " simulation can place",
    ),
    Excuse(
        actors=(Function.REPAIR.value,),
        sid="Checkpoints",
        what="*",
        because="see CommitInTable",
    ),
    Excuse(
        actors=(Function.REPAIR.value,),
        sid="ListCheckpoints",
        what="*",
        because="see CommitInTable: without it an absent manifest reads as a refusal",
    ),
    Excuse(
        actors=(Function.SWEEP.value,),
        sid="ReportFailedTicks",
        what="*",
        because="Lambda uses it for a tick that fails, and no dead letter may appear in a rehearsal",
    ),
    Excuse(
        actors=(SCHEDULE,),
        sid="ReportLostTicks",
        what="*",
        because="EventBridge Scheduler uses it for a tick that it cannot deliver, which no rehearsal may have",
    ),
    Excuse(
        actors=(NODE,),
        sid="ImageLogin",
        what="*",
        because="the rehearsal's trainer image comes from no registry",
    ),
    Excuse(
        actors=(NODE,),
        sid="PullImages",
        what="*",
        because="see ImageLogin",
    ),
)


def sort_out(unused: Mapping[str, frozenset[Part]], used: Mapping[str, frozenset[Part]]) -> tuple[list[str], int, int]:
    """(unused without an excuse, used by another function of the same pipeline, excused by the list).

    The pipeline's functions run the same code: which of them meets a claim, a loss or a surplus is chance, so a piece
    that one of them used is needed by all that have it.
    """
    shared = frozenset().union(*(used.get(actor, frozenset()) for actor in PIPELINE))
    left, raced, excused = [], 0, 0
    for actor, parts in unused.items():
        for part in sorted(parts):
            if actor in PIPELINE and part in shared:
                raced += 1
            elif any(excuse.covers(actor, part) for excuse in EXCUSES):
                excused += 1
            else:
                left.append(f"{actor}: {part}")
    return left, raced, excused


def stale(parts: Mapping[str, frozenset[Part]]) -> list[str]:
    """Excuses for grants that nobody has: the list must not outlive what it is about."""
    return [
        f"{excuse.sid} of {'/'.join(excuse.actors)}"
        for excuse in EXCUSES
        if not any(excuse.covers(actor, part) for actor, of in parts.items() for part in of)
    ]

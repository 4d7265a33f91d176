"""Grants that no rehearsal makes use of, each with why it is there all the same. Short on purpose."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Final

from rehearsal.permissions.estate import NODE, PIPELINE, SCHEDULE, schedule_of
from rehearsal.permissions.evaluate import Part
from spotproof.contract.names import Function


@dataclass(frozen=True, slots=True, kw_only=True)
class Excuse:
    """Pieces of some statements, by shell pattern, that need not be used, for one reason."""

    actors: tuple[str, ...]
    sids: tuple[str, ...]
    what: str
    because: str

    def covers(self, actor: str, part: Part) -> bool:
        """Whether this piece of this actor's role is meant."""
        return actor in self.actors and part.sid in self.sids and fnmatchcase(part.what, self.what)


EXCUSES: Final = (
    Excuse(
        actors=PIPELINE,
        sids=("LaunchKnownImages",),
        what="ec2:Owner [0-9]*",
        because="teams may build their own machine image; the stack that is rehearsed names Amazon's",
    ),
    Excuse(
        actors=(Function.REPAIR.value,),
        sids=("CommitInTable", "Checkpoints", "ListCheckpoints"),
        what="*",
        because="a checkpoint that is whole while all its agents are dead: no rehearsal can kill between two requests;"
        " a test records repair's own commit instead",
    ),
    Excuse(
        actors=(Function.REPAIR.value,),
        sids=("SeeMarket",),
        what="ec2:GetSpotPlacementScores*",
        because="a run asks for placement scores only if its spec says so; the default story's does not",
    ),
    Excuse(
        actors=PIPELINE,
        sids=("PutOffLooks",),
        what="*",
        because="used when many nodes of one run are lost at once, or EC2 throttles a launch: the story has neither",
    ),
    Excuse(
        actors=(Function.COLLECT.value,),
        sids=("Collect",),
        what="*",
        because="nothing is deleted before it is six hours old, and no rehearsal is; a test records a collection of an"
        " old run instead",
    ),
    Excuse(
        actors=(Function.SWEEP.value, Function.COLLECT.value),
        sids=("ReportFailedTicks",),
        what="*",
        because="Lambda uses it for a tick that fails, and no dead letter may appear in a rehearsal",
    ),
    Excuse(
        actors=(SCHEDULE, schedule_of(Function.COLLECT)),
        sids=("ReportLostTicks",),
        what="*",
        because="EventBridge Scheduler uses it for a tick that it cannot deliver, which no rehearsal may have",
    ),
    Excuse(
        actors=(NODE,),
        sids=("ImageLogin", "PullImages"),
        what="*",
        because="the rehearsal's trainer image comes from no registry",
    ),
)


def excuse_of(actor: str, part: Part) -> Excuse | None:
    """The entry of the list that covers this piece, if there is one."""
    return next((excuse for excuse in EXCUSES if excuse.covers(actor, part)), None)


def stale(parts: Mapping[str, frozenset[Part]]) -> tuple[str, ...]:
    """Excuses for grants that nobody has: the list must not outlive what it is about."""
    return tuple(
        f"the excuse for {sid} of {'/'.join(excuse.actors)}: nobody has such a grant"
        for excuse in EXCUSES
        for sid in excuse.sids
        if not any(part.sid == sid and excuse.covers(actor, part) for actor, of in parts.items() for part in of)
    )

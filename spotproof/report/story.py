"""History, items and loss logs -> Story. What is not recorded is left out of the story, never guessed.

A node's life (`lives.py`) is read from its own entries; recoveries from the claims: each claim with another cause than
submit is one.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from spotproof.contract.history import HistoryKind
from spotproof.contract.items import CheckpointItem, History, Member
from spotproof.contract.states import Cause
from spotproof.report.lives import lives
from spotproof.report.model import Commit, Mark, Point, Recovery, Segment, Stage, StageSpan, Story

_K: Final = HistoryKind


@dataclass(frozen=True, slots=True, kw_only=True)
class Sources:
    """What a story is made of besides the history. `marks` are (instance, mark): what only an onlooker can know, such
    as the moment at which a node was killed."""

    segments: Sequence[Segment] = ()
    reference: Sequence[Point] = ()
    members: Sequence[Member] = ()
    checkpoints: Sequence[CheckpointItem] = ()
    marks: Sequence[tuple[str, Mark]] = ()


def tell(history: Iterable[History], sources: Sources, *, run: str, title: str, lead: str = "") -> Story:
    """The story of `run`. Verdicts and money are the caller's to add (`dataclasses.replace`)."""
    recorded = [entry for entry in history if entry.run == run]
    entries = sorted([*recorded, *_first_steps(recorded, sources.segments)], key=lambda entry: entry.at_ms)
    moments = [entry.at_ms / 1000 for entry in entries] + [mark.at for _, mark in sources.marks]
    moments += [point.at for segment in sources.segments for point in segment.points if point.at is not None]
    begin_at, end_at = (min(moments), max(moments)) if moments else (0.0, 0.0)
    return Story(
        title=title,
        run=run,
        lead=lead,
        begin_at=begin_at,
        end_at=end_at,
        nodes=lives(entries, sources.marks, sources.members, end_at=end_at),
        commits=_commits(entries, sources.checkpoints),
        segments=tuple(sorted(sources.segments, key=lambda one: (one.slot, one.incarnation))),
        reference=tuple(sources.reference),
        recoveries=tuple(_recovery(claim, entries, sources.segments) for claim in _claims(entries)),
    )


def _first_steps(recorded: Sequence[History], segments: Sequence[Segment]) -> list[History]:
    """FIRST_STEP entries that only the loss logs know of."""
    told = {(entry.slot, entry.incarnation) for entry in recorded if entry.what == _K.FIRST_STEP}
    instances = {(entry.slot, entry.incarnation): entry for entry in recorded if entry.instance is not None}
    found = []
    for segment in segments:
        place = (segment.slot, segment.incarnation)
        if place in told or place not in instances or not segment.points or segment.points[0].at is None:
            continue
        first = segment.points[0]
        at_ms = int((first.at or 0.0) * 1000)
        found.append(
            dataclasses.replace(
                instances[place], at_ms=at_ms, what=_K.FIRST_STEP, step=first.step, cause=None, detail=""
            )
        )
    return found


def _commits(entries: Sequence[History], checkpoints: Sequence[CheckpointItem]) -> tuple[Commit, ...]:
    known = {
        (item.generation, item.step): float(item.committed_at) for item in checkpoints if item.committed_at is not None
    }
    steps = {step for _, step in known}
    for entry in entries:
        if entry.what == _K.COMMITTED and entry.step is not None and entry.step not in steps:
            known.setdefault((0, entry.step), entry.at_ms / 1000)
    commits = [Commit(generation=generation, step=step, at=at) for (generation, step), at in known.items()]
    return tuple(sorted(commits, key=lambda commit: commit.at))


# --- recoveries -------------------------------------------------------------------------------------------------------
def _claims(entries: Sequence[History]) -> list[History]:
    return [
        entry
        for entry in entries
        if entry.what == _K.CLAIMED and entry.cause is not Cause.SUBMIT and None not in (entry.slot, entry.incarnation)
    ]


def _recovery(claim: History, entries: Sequence[History], segments: Sequence[Segment]) -> Recovery:
    slot, incarnation = claim.slot or 0, claim.incarnation or 0
    lost = _of(entries, slot, incarnation - 1)
    new = _of(entries, slot, incarnation)
    begin_at = _begin_at(claim, lost)
    before = next((one for one in segments if (one.slot, one.incarnation) == (slot, incarnation - 1)), None)
    after = next((one for one in segments if (one.slot, one.incarnation) == (slot, incarnation)), None)
    flushed_at = _at(lost, _K.FLUSHED)
    last_at = before.points[-1].at if before and before.points else None
    return Recovery(
        slot=slot,
        incarnation=incarnation,
        cause="" if claim.cause is None else claim.cause.value,
        lost=next((entry.instance for entry in lost if entry.instance), ""),
        replacement=next((entry.instance for entry in new if entry.instance), ""),
        begin_at=begin_at,
        stopped_at=flushed_at if last_at is None else last_at,
        end_at=_at(new, _K.FIRST_STEP),
        stages=_stages(claim, sign_at=min(begin_at, last_at or begin_at), flushed_at=flushed_at, new=new),
        last_step=before.points[-1].step if before and before.points else _step(lost, _K.FLUSHED),
        resumed_step=after.points[0].step - 1 if after and after.points else _step(new, _K.SEALED),
        remarks=tuple(entry.detail for entry in new if entry.what in _TELLING and entry.detail),
    )


_TELLING: Final = frozenset({_K.LAUNCH_ANSWERED, _K.QUARANTINED})


def _of(entries: Sequence[History], slot: int, incarnation: int) -> list[History]:
    return [entry for entry in entries if (entry.slot, entry.incarnation) == (slot, incarnation)]


def _begin_at(claim: History, lost: Sequence[History]) -> float:
    """The last warning before the claim that ended the node; else the claim itself."""
    signs = [
        entry.at_ms
        for entry in lost
        if entry.what in (_K.NOTICE, _K.LOST) and entry.cause is not Cause.REBALANCE and entry.at_ms <= claim.at_ms
    ]
    return min(signs, default=claim.at_ms) / 1000


def _stages(
    claim: History, *, sign_at: float, flushed_at: float | None, new: Sequence[History]
) -> tuple[StageSpan, ...]:
    bound, parked = _at(new, _K.BOUND), _at(new, _K.PARKED)
    sealed, restored, first = _at(new, _K.SEALED), _at(new, _K.RESTORED), _at(new, _K.FIRST_STEP)
    candidates = (
        (Stage.NOTICE, sign_at, claim.at_ms / 1000),
        (Stage.FLUSH, sign_at, flushed_at),
        (Stage.REQUEST, claim.at_ms / 1000, bound),
        (Stage.BOOT, bound, sealed if parked is None else parked),
        (Stage.PARK, parked, sealed),
        (Stage.RESTORE, sealed, first if restored is None else restored),
        (Stage.FIRST_STEP, restored, first),
    )
    return tuple(
        StageSpan(stage=stage, begin_at=begin, end_at=end)
        for stage, begin, end in candidates
        if begin is not None and end is not None and end >= begin
    )


def _at(entries: Sequence[History], kind: HistoryKind) -> float | None:
    return next((entry.at_ms / 1000 for entry in entries if entry.what == kind), None)


def _step(entries: Sequence[History], kind: HistoryKind) -> int | None:
    return next((entry.step for entry in entries if entry.what == kind), None)

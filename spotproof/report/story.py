"""History, items and loss logs -> Story. What is not recorded is left out of the story, never guessed.

A node's life (`lives.py`) is read from its own entries; recoveries from the claims: each claim with another cause than
submit is one.
"""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from spotproof.contract.history import AHEAD, HistoryKind, flush_outcome
from spotproof.contract.items import NO_INSTANCE, CheckpointItem, History, Member
from spotproof.contract.states import Cause, FlushOutcome
from spotproof.report.lives import lives, nodes_of
from spotproof.report.model import Commit, Mark, MarkKind, Point, Recovery, Segment, Stage, StageSpan, Story

_K: Final = HistoryKind
_TOOK: Final = frozenset({_K.SEALED, _K.PROMOTED, _K.RESTORED, _K.FIRST_STEP})  # of one that had been ready for long
_WHOLE_SECOND: Final = 1.0  # some entries have the second only: an end that seems this much too early is no end before


@dataclass(frozen=True, slots=True, kw_only=True)
class Sources:
    """What a story is made of besides the history. `marks` are (instance, mark): what only an onlooker can know, such
    as the moment at which a node was killed. `until`: a run that goes on is told up to this moment."""

    segments: Sequence[Segment] = ()
    reference: Sequence[Point] = ()
    members: Sequence[Member] = ()
    checkpoints: Sequence[CheckpointItem] = ()
    marks: Sequence[tuple[str, Mark]] = ()
    until: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Told:
    """The entries in order, and by what they are about: a run has a thousand slots and ten thousand entries."""

    entries: Sequence[History]
    nodes: Mapping[tuple[int, int], str]
    of_instance: Mapping[str | None, Sequence[History]]  # without claims, which name the lost one
    of_node: Mapping[tuple[int | None, int | None], Sequence[History]]
    answers: Sequence[History]


def _sorted_out(entries: Sequence[History]) -> _Told:
    of_instance: dict[str | None, list[History]] = defaultdict(list)
    of_node: dict[tuple[int | None, int | None], list[History]] = defaultdict(list)
    for entry in entries:
        if entry.what != _K.CLAIMED:
            of_instance[entry.instance].append(entry)
            of_node[entry.slot, entry.incarnation].append(entry)
    return _Told(
        entries=entries,
        nodes=nodes_of(entries),
        of_instance=of_instance,
        of_node=of_node,
        answers=[entry for entry in entries if entry.what == _K.LAUNCH_ANSWERED],
    )


def tell(history: Iterable[History], sources: Sources, *, run: str, title: str, lead: str = "") -> Story:
    """The story of `run`. Verdicts and money are the caller's to add (`dataclasses.replace`)."""
    recorded = [entry for entry in history if entry.run == run]
    told = [*_flushes(recorded, sources.checkpoints), *_first_steps(recorded, sources.segments)]
    entries = sorted(_joined_once(_seen_notices(told, sources.marks)), key=lambda entry: entry.at_ms)
    moments = [entry.at_ms / 1000 for entry in entries] + [mark.at for _, mark in sources.marks]
    moments += [point.at for segment in sources.segments for point in segment.points if point.at is not None]
    begin_at, end_at = (min(moments), max(moments)) if moments else (0.0, 0.0)
    if moments and sources.until is not None:
        end_at = max(end_at, sources.until)
    sorted_out = _sorted_out(entries)
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
        recoveries=tuple(
            _recovery(claim, sorted_out, sources.segments)
            for claim in _claims(entries)
            if not _was_withdrawn(claim, sorted_out)
        ),
    )


def _first_steps(recorded: Sequence[History], segments: Sequence[Segment]) -> list[History]:
    """FIRST_STEP entries that only the loss logs know of."""
    told = {(entry.slot, entry.incarnation) for entry in recorded if entry.what == _K.FIRST_STEP}
    instances = nodes_of(recorded)
    found = []
    for segment in segments:
        node = (segment.slot, segment.incarnation)
        first = segment.points[0] if segment.points else None
        if first is None or first.at is None or node in told or node not in instances:
            continue
        found.append(
            History(
                run=recorded[0].run,
                at_ms=int(first.at * 1000),
                what=_K.FIRST_STEP,
                slot=segment.slot,
                incarnation=segment.incarnation,
                instance=instances[node],
                step=first.step,
            )
        )
    return found


def _flushes(recorded: Sequence[History], checkpoints: Sequence[CheckpointItem]) -> list[History]:
    """The entries, each flush at the time when its checkpoint was committed: the control plane hears of it later."""
    durable = {item.step: item.committed_at * 1000 for item in checkpoints if item.committed_at is not None}
    told = []
    for entry in recorded:
        is_durable = entry.what == _K.FLUSHED and flush_outcome(entry.detail) in ("", FlushOutcome.COMMITTED)
        at_ms = durable.get(entry.step or -1, entry.at_ms) if is_durable else entry.at_ms
        told.append(dataclasses.replace(entry, at_ms=min(at_ms, entry.at_ms)))
    return told


def _seen_notices(entries: Sequence[History], marks: Sequence[tuple[str, Mark]]) -> list[History]:
    """The entries; a notice that an onlooker saw being given has the onlooker's time. A rehearsal's notice is shorter
    than two minutes, and its event is dated back so that its deadline is right."""
    seen = {name: int(mark.at * 1000) for name, mark in marks if mark.kind is MarkKind.NOTICE}
    return [
        dataclasses.replace(entry, at_ms=seen[entry.instance])
        if entry.what == _K.NOTICE and entry.cause is not Cause.REBALANCE and entry.instance in seen
        else entry
        for entry in entries
    ]


def _joined_once(entries: Sequence[History]) -> list[History]:
    """The entries; a promotion at the moment of its seal, where the node told it: else it has the second only."""
    sealed = {(entry.slot, entry.incarnation): entry.at_ms for entry in entries if entry.what == _K.SEALED}
    return [
        dataclasses.replace(entry, at_ms=sealed.get((entry.slot, entry.incarnation), entry.at_ms))
        if entry.what == _K.PROMOTED
        else entry
        for entry in entries
    ]


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


def _is_ahead(claim: History) -> bool:
    """Whether the successor got ready while its holder was well: its recovery begins when the holder has to go."""
    return claim.detail.startswith(AHEAD)


def _was_withdrawn(claim: History, told: _Told) -> bool:
    """Whether the holder never had to go: then nothing was lost and nothing recovered."""
    return _is_ahead(claim) and not _signs(claim, told.of_instance.get(claim.instance, []))


def _recovery(claim: History, told: _Told, segments: Sequence[Segment]) -> Recovery:
    slot, incarnation = claim.slot or 0, claim.incarnation or 0
    nodes = told.nodes
    gone = nodes.get((slot, incarnation - 1), "") if claim.instance in (None, NO_INSTANCE) else str(claim.instance)
    lost = told.of_instance.get(gone, [])
    successor, new = _successor((slot, incarnation), told)
    before = [one for one in segments if one.slot == slot and one.incarnation < incarnation and one.points]
    after = next((one for one in segments if (one.slot, one.incarnation) == successor and one.points), None)
    last = _last_of(before[-1], after) if before else None
    begin_at, flushed_at = _begin_at(claim, lost), _at(lost, _K.FLUSHED)
    last_at = None if last is None else last.at
    return Recovery(
        slot=slot,
        incarnation=incarnation,
        cause="" if claim.cause is None else claim.cause.value,
        lost=gone,
        replacement=nodes.get(successor, ""),
        begin_at=begin_at,
        stopped_at=flushed_at if last_at is None else last_at,
        end_at=_at(new, _K.FIRST_STEP),
        stages=_stages(claim, sign_at=min(begin_at, last_at or begin_at), flushed_at=flushed_at, new=new),
        last_step=_step(lost, _K.FLUSHED) if last is None else last.step,
        resumed_step=_step(new, _K.SEALED, _K.PROMOTED) if after is None else after.points[0].step - 1,
        remarks=_remarks(claim, told.answers, new),
    )


def _successor(own: tuple[int, int], told: _Told) -> tuple[tuple[int, int], Sequence[History]]:
    """Who does the lost node's work, and how it came to it: who was launched for it, or one that had stood by."""
    new = told.of_node.get(own, [])
    over = next((entry for entry in new if entry.what == _K.TAKEN_OVER), None)
    if over is None:
        return own, new
    slot, _, incarnation = over.detail.partition(":")
    taker = int(slot), int(incarnation)
    return taker, [entry for entry in told.of_node.get(taker, []) if entry.what in _TOOK]


def _last_of(before: Segment, after: Segment | None) -> Point:
    """Where the lost node stood: what it did after its replacement began, frozen and woken, counts for no one."""
    begun_at = None if after is None else after.points[0].at
    own = [p for p in before.points if begun_at is None or p.at is None or p.at <= begun_at]
    return own[-1] if own else before.points[-1]


def _remarks(claim: History, answered: Sequence[History], new: Sequence[History]) -> tuple[str, ...]:
    """What EC2 answered until the slot was filled, and damaged checkpoints."""
    until_ms = next((entry.at_ms for entry in new if entry.what == _K.BOUND), None)
    answers = [entry.detail for entry in answered if until_ms is not None and claim.at_ms <= entry.at_ms <= until_ms]
    return (*answers, *(entry.detail for entry in new if entry.what == _K.QUARANTINED and entry.detail))


def _begin_at(claim: History, lost: Sequence[History]) -> float:
    """The first sign that the node goes; the claim itself where there was none."""
    return min(_signs(claim, lost), default=claim.at_ms) / 1000


def _signs(claim: History, lost: Sequence[History]) -> list[int]:
    """When it was told that the node goes: before a claim, but after one that was made ahead."""
    signs = [entry for entry in lost if entry.what in (_K.NOTICE, _K.LOST) and entry.cause is not Cause.REBALANCE]
    return [one.at_ms for one in signs if (one.at_ms >= claim.at_ms) is _is_ahead(claim) or one.at_ms == claim.at_ms]


def _stages(
    claim: History, *, sign_at: float, flushed_at: float | None, new: Sequence[History]
) -> tuple[StageSpan, ...]:
    bound, parked = _at(new, _K.BOUND), _at(new, _K.PARKED)
    sealed, restored, first = _at(new, _K.SEALED, _K.PROMOTED), _at(new, _K.RESTORED), _at(new, _K.FIRST_STEP)
    candidates = (
        (Stage.NOTICE, sign_at, claim.at_ms / 1000),
        (Stage.FLUSH, sign_at, flushed_at),
        (Stage.REQUEST, claim.at_ms / 1000, bound),
        (Stage.BOOT, bound, sealed if parked is None else parked),
        (Stage.PARK, parked, sealed),
        (Stage.RESTORE, sealed, first if restored is None else restored),
        (Stage.FIRST_STEP, restored, first),
    )
    known = [(stage, begin, end) for stage, begin, end in candidates if begin is not None and end is not None]
    if _is_ahead(claim):  # what was done while the holder trained on cost nobody anything
        known = [(stage, max(begin, sign_at), end) for stage, begin, end in known if end > sign_at]
    return tuple(
        StageSpan(stage=stage, begin_at=begin, end_at=max(begin, end))
        for stage, begin, end in known
        if end > begin - _WHOLE_SECOND
    )


def _at(entries: Sequence[History], *kinds: HistoryKind) -> float | None:
    return next((entry.at_ms / 1000 for entry in entries if entry.what in kinds), None)


def _step(entries: Sequence[History], *kinds: HistoryKind) -> int | None:
    return next((entry.step for entry in entries if entry.what in kinds and entry.step is not None), None)

"""The life of each node, read from its own entries: which phase each entry begins, and what ends it.

Entries come from several clocks, some of them in whole seconds: a phase never gives way to an earlier one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from spotproof.contract.history import HistoryKind
from spotproof.contract.items import NO_INSTANCE, History, Member
from spotproof.contract.states import Cause
from spotproof.report.model import Mark, MarkKind, NodeLine, Phase, Span

_K: Final = HistoryKind
_BEGINS: Final[Mapping[str, Phase]] = {
    _K.BOUND: Phase.BOOTING,
    _K.BOOTED: Phase.PREPARING,
    _K.PARKED: Phase.PARKED,
    _K.SEALED: Phase.RESTORING,
    _K.PROMOTED: Phase.RESTORING,  # at the time of the seal that made it the holder
    _K.FIRST_STEP: Phase.TRAINING,
    _K.NOTICE: Phase.FLUSHING,
    _K.FLUSHED: Phase.DRAINING,
}
_MARKS: Final[Mapping[str, MarkKind]] = {
    _K.NOTICE: MarkKind.NOTICE,
    _K.LOST: MarkKind.LOST,
    _K.NEVER_JOINED: MarkKind.LOST,
    _K.SUPERSEDED: MarkKind.SUPERSEDED,
    _K.QUARANTINED: MarkKind.DAMAGED,
    _K.ENDED: MarkKind.ENDED,
    _K.SURPLUS_ENDED: MarkKind.ENDED,
    _K.ORPHAN_ENDED: MarkKind.ENDED,
}
_FINAL_MARKS: Final = frozenset({MarkKind.KILLED, MarkKind.SUPERSEDED, MarkKind.ENDED, MarkKind.DONE})
_ORDER: Final = (*Phase,)
_SAME_MARK_S: Final = 5.0  # a notice that the table and an onlooker both tell is one notice
_ADVICE: Final = frozenset({Cause.REBALANCE})  # notices after which training goes on


@dataclass(frozen=True, slots=True, kw_only=True)
class _Turn:
    """At `at` the node may enter a phase and may get a mark."""

    at: float
    begins: Phase | None = None
    mark: Mark | None = None


def lives(
    entries: Sequence[History], marks: Sequence[tuple[str, Mark]], members: Sequence[Member], *, end_at: float
) -> tuple[NodeLine, ...]:
    """One line per node that the entries name, in order of slot and incarnation.

    What has not ended at `end_at` is drawn up to there. A SEALED entry that names no node counts for every node.
    """
    places = {member.instance: f"{member.instance_type}, {member.zone}, {member.market}" for member in members}
    bound = {entry.instance: _place(entry.detail) for entry in entries if entry.what == _K.BOUND}
    lines = []
    turned = _turned(entries)
    for (slot, incarnation), instance in sorted(nodes_of(entries).items()):
        turns = [*turned.get(instance, ()), *turned.get(None, ())]
        turns += [_Turn(at=mark.at, begins=_begun_by(mark), mark=mark) for name, mark in marks if name == instance]
        spans, seen = _lived(sorted(turns, key=lambda turn: turn.at), end_at=end_at)
        place = places.get(instance, bound.get(instance, ""))
        lines.append(
            NodeLine(instance=instance, slot=slot, incarnation=incarnation, place=place, spans=spans, marks=seen)
        )
    return tuple(lines)


def _place(detail: str) -> str:
    """Where a node came from, of a BOUND entry's `type#zone#market[#usd]`."""
    return ", ".join(detail.split("#")[:3])


def _turned(entries: Sequence[History]) -> dict[str | None, list[_Turn]]:
    """The turns by instance; None: those of every node."""
    turned: dict[str | None, list[_Turn]] = {}
    for entry in entries:
        if entry.what != _K.CLAIMED and (entry.instance is not None or _is_for_all(entry)):
            turned.setdefault(entry.instance, []).append(_turn(entry))
    return turned


def nodes_of(entries: Sequence[History]) -> dict[tuple[int, int], str]:
    """(slot, incarnation) -> the instance that was it. A claim names the instance that is lost, not the new one."""
    found: dict[tuple[int, int], str] = {}
    for entry in entries:
        if entry.what == _K.CLAIMED or entry.instance in (None, NO_INSTANCE):
            continue
        if entry.slot is not None and entry.incarnation is not None:
            found.setdefault((entry.slot, entry.incarnation), str(entry.instance))
    return found


def _is_for_all(entry: History) -> bool:
    return entry.what == _K.SEALED and entry.instance is None


def _begun_by(mark: Mark) -> Phase | None:
    return Phase.FROZEN if mark.kind is MarkKind.FROZEN else None


def _turn(entry: History) -> _Turn:
    advice = entry.what == _K.NOTICE and entry.cause in _ADVICE
    kind = MarkKind.ADVICE if advice else _MARKS.get(entry.what)
    says = entry.detail or ("" if entry.cause is None else entry.cause.value)
    mark = None if kind is None else Mark(kind=kind, at=entry.at_ms / 1000, says=says)
    return _Turn(at=entry.at_ms / 1000, begins=None if advice else _BEGINS.get(entry.what), mark=mark)


def _lived(turns: Sequence[_Turn], *, end_at: float) -> tuple[tuple[Span, ...], tuple[Mark, ...]]:
    spans: list[Span] = []
    marks: list[Mark] = []
    phase: Phase | None = None
    since = 0.0
    ended = False
    for turn in turns:
        if turn.mark is not None and not _is_told(turn.mark, marks):
            marks.append(turn.mark)
        if ended or (phase is None and turn.begins is None) or not _changes(phase, turn):
            continue
        if phase is not None:
            spans.append(Span(phase=phase, begin_at=since, end_at=turn.at))
        ended = turn.begins is None
        phase, since = (None, turn.at) if ended else (turn.begins, turn.at)
    if phase is not None and end_at > since:
        spans.append(Span(phase=phase, begin_at=since, end_at=end_at))
    killed = any(mark.kind is MarkKind.KILLED for mark in marks)
    return tuple(spans), tuple(mark for mark in marks if not (killed and mark.kind is MarkKind.ENDED))


def _is_told(mark: Mark, marks: Sequence[Mark]) -> bool:
    return any(one.kind is mark.kind and abs(one.at - mark.at) < _SAME_MARK_S for one in marks)


def _changes(phase: Phase | None, turn: _Turn) -> bool:
    """Whether `turn` ends `phase`. A notice only ends training; a frozen node is not gone when it counts as lost."""
    if turn.begins is Phase.FLUSHING:
        return phase is Phase.TRAINING
    if turn.begins is Phase.RESTORING:
        return phase not in (None, Phase.FROZEN, Phase.RESTORING, Phase.FLUSHING, Phase.DRAINING)
    if turn.begins is not None:
        return phase is None or _ORDER.index(turn.begins) > _ORDER.index(phase)
    if turn.mark is None:
        return False
    if turn.mark.kind is MarkKind.LOST:
        return phase is not Phase.FROZEN
    return turn.mark.kind in _FINAL_MARKS

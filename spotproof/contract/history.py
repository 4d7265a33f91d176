"""The kinds of entry in a run's timeline: what the report draws, in words that people read."""

from __future__ import annotations

from enum import StrEnum
from typing import Final

AHEAD: Final = "ahead"  # a claim whose detail begins so: the holder was well, and its successor got ready first


class HistoryKind(StrEnum):
    """One per thing that happened. `slot`, `instance`, `step` and `detail` of the entry say the rest."""

    SUBMITTED = "submitted"
    NOTICE = "notice"
    FLUSH_ORDERED = "flush-ordered"
    CLAIMED = "claimed"
    LAUNCH_INTENDED = "launch-intended"
    LAUNCH_ANSWERED = "launch-answered"
    BOUND = "bound"
    SURPLUS_ENDED = "surplus-ended"
    ORPHAN_ENDED = "orphan-ended"
    NEVER_JOINED = "never-joined"
    BOOTED = "booted"
    PARKED = "parked"
    SEALED = "sealed"
    PROMOTED = "promoted"
    RESTORED = "restored"  # the state is loaded; the first step begins
    FIRST_STEP = "first-step"
    FLUSHED = "flushed"
    COMMITTED = "committed"
    QUARANTINED = "quarantined"
    LOST = "lost"
    SUPERSEDED = "superseded"
    TAKEN_OVER = "taken-over"  # a lost node's work is that of one that stood by; `detail` is its slot:incarnation
    ENDED = "ended"
    STATUS = "status"
    MASS_SILENCE = "mass-silence"
    MOVE_PLANNED = "move-planned"
    ADOPTED = "adopted"  # a hand-tagged instance has been given a place
    RELEASED = "released"  # a person has taken the run's tag off an instance
    COMEBACK = "comeback"  # an instance runs again whose place has been given away
    COMMAND = "command"  # how Run Command says that it ended on a node: a hint, never proof of a flush


def flushed_detail(outcome: str, why: str) -> str:
    """Detail of a FLUSHED entry: how it ended, and what was chosen at the notice."""
    return f"{outcome}; {why}" if why else outcome


def flush_outcome(detail: str) -> str:
    """How a flush ended, by the detail of its FLUSHED entry."""
    return detail.partition(";")[0]

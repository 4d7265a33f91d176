"""The performance as people see it: one HTML page and a plain summary, both by the product's own renderer."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Final

from rehearsal.evidence import Evidence
from rehearsal.nodes.hosts import Milestone
from rehearsal.plan import RUN
from rehearsal.play import Performance
from rehearsal.stage import Stage
from rehearsal.verdicts import Verdict
from spotproof.contract import names
from spotproof.report import model, story
from spotproof.store.checkpoints import Checkpoints
from spotproof.store.dynamo import DynamoTable
from spotproof.store.history import Histories
from spotproof.store.members import Members

TITLE: Final = "Rehearsal"
LEAD: Final = (
    "A real training on an emulated AWS account, into which the synthesized template was deployed. Nodes were taken"
    " away in different manners; the uninterrupted run went on beside it."
)
_MARKS: Final = {
    "notice": model.MarkKind.NOTICE,
    "destroyed": model.MarkKind.KILLED,
    "frozen": model.MarkKind.FROZEN,
    "woken": model.MarkKind.WOKEN,
}


def tell(performance: Performance, verdicts: Sequence[Verdict]) -> model.Story:
    """The story of a performance whose region is still up."""
    stage, evidence = performance.stage, performance.evidence
    table = DynamoTable(stage.region.client("dynamodb"), stage.outputs[names.OUTPUT_TABLE])
    members = Members(table)
    known = [members.read(machine.instance) for machine in evidence.machines]
    sources = story.Sources(
        segments=_segments(evidence),
        reference=evidence.reference,
        members=[member for member in known if member is not None],
        checkpoints=Checkpoints(table).newest(RUN, limit=200),
        marks=[mark for milestone in stage.region.hosts.milestones for mark in _marks(milestone)],
    )
    told = story.tell(Histories(table).list(RUN), sources, run=RUN, title=TITLE, lead=LEAD)
    kept = tuple(model.Verdict(promise=v.name, kept=v.passed, measured=v.says) for v in verdicts)
    return dataclasses.replace(told, verdicts=kept)


def _segments(evidence: Evidence) -> list[model.Segment]:
    """One per process, in order: the n-th process of a run with one slot belongs to incarnation n."""
    return [
        model.Segment(slot=0, incarnation=number, points=piece.points)
        for number, piece in enumerate(evidence.pieces(), start=1)
    ]


def _marks(milestone: Milestone) -> list[tuple[str, model.Mark]]:
    kind = _MARKS.get(milestone.what)
    return (
        [] if kind is None else [(milestone.instance_id, model.Mark(kind=kind, at=milestone.at, says=milestone.what))]
    )


def lines(verdicts: Sequence[Verdict]) -> list[str]:
    """The verdicts for a terminal."""
    width = max(len(verdict.name) for verdict in verdicts)
    return [f"  {'passed' if v.passed else 'FAILED'}  {v.name:<{width}}  {v.says}" for v in verdicts]


def duration(stage: Stage, seconds: float) -> str:
    """How long it took and how much was trained."""
    return f"{seconds:.0f} s, {stage.step()} steps, {stage.pieces()} trainers, {len(stage.auditor.commits)} commits"

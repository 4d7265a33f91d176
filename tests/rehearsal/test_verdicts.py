"""Each verdict can fail: good evidence passes all of them, and each spoilt piece fails the one that watches it."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from rehearsal import verdicts
from rehearsal.auditor import Commit
from rehearsal.evidence import Coverage, Departure, DepartureKind, Evidence, Machine, steps_lost
from rehearsal.permissions.evaluate import Part
from rehearsal.permissions.ledger import Entry, Use
from rehearsal.permissions.proof import Proof, joined
from spotproof.contract import tags
from spotproof.report.model import Point


def point(step: int, *, pid: int, at: float) -> Point:
    return Point(step=step, loss=1 / step, samples=(step,), at=at, pid=pid)


def span(first: int, last: int, *, pid: int, at: float) -> list[Point]:
    return [point(step, pid=pid, at=at + step - first) for step in range(first, last + 1)]


def commit(generation: int, step: int, *, at: float) -> Commit:
    return Commit(generation=generation, step=step, manifest_key="m", chunks=("c",), image_digest="d", seen_at=at)


REFERENCE = tuple(span(1, 60, pid=1, at=0))
LINES = (
    *span(1, 20, pid=10, at=100),  # noticed at 120, flushed step 20
    *span(21, 37, pid=11, at=200),  # dies silently at 217, newest commit 30
    *span(31, 47, pid=12, at=300),  # frozen at 317, newest whole commit 40
    *span(41, 60, pid=13, at=400),
)
COVERAGE = Coverage(
    gate_findings=(),
    rules_silent=(),
    queues_unused=(),
    functions_unused=(),
    document_steps_unused=(),
    resources=60,
)


PART = Part(sid="Checkpoints", what="s3:GetObject on a")
IDLE = Entry(actor="node", part=PART, use=Use.UNUSED)
PROOF = Proof(
    calls=9,
    requests=5,
    refused=(),
    whole=True,
    ledger=(Entry(actor="node", part=PART, use=Use.USED), Entry(actor="sweep", part=PART, use=Use.EXCUSED)),
    stale=(),
    attacks=3,
    admitted=(),
)


def departure(act: str, kind: DepartureKind, *, at: float, good: int, damaged: bool = False) -> Departure:
    return Departure(act=act, kind=kind, instance=f"i-{act}", at=at, good_step=good, damaged=damaged)


GOOD = Evidence(
    run="demo",
    steps=60,
    interval_steps=10,
    reference=REFERENCE,
    points=LINES,
    departures=(
        departure("a", DepartureKind.NOTICE, at=120, good=20),
        departure("b", DepartureKind.SILENT, at=217, good=30),
        departure("c", DepartureKind.FROZEN, at=317, good=40, damaged=True),
    ),
    commits=(commit(1, 20, at=121), commit(2, 30, at=210), commit(3, 40, at=312), commit(4, 60, at=420)),
    audit_problems=(),
    machines=tuple(
        Machine(
            instance=name,
            tags=tags.of_launch(stack="s", run="demo", launch=1),
            launched_at=0,
            state="terminated",
        )
        for name in ("i-a", "i-b", "i-c", "i-d")
    ),
    left_running=(),
    coverage=COVERAGE,
    woken_committed=(),
    woken_ended=True,
    run_status="done",
    dead_letters={"urgent": 0},
    plane_problems=(),
    permissions=PROOF,
)


def failed(evidence: Evidence) -> set[str]:
    return {verdict.name for verdict in verdicts.judge(evidence) if not verdict.passed}


def test_good_evidence_passes_every_verdict() -> None:
    judged = verdicts.judge(GOOD)
    assert [v for v in judged if not v.passed] == []
    assert len(judged) == 15


def test_lost_steps_are_counted_from_what_ran() -> None:
    assert [steps_lost(GOOD, d) for d in GOOD.departures] == [0, 7, 7]


SPOILT: list[tuple[dict[str, Any], set[str]]] = [
    ({"points": (*LINES[:20], *span(19, 37, pid=11, at=200), *LINES[37:])}, {verdicts.NOTHING_LOST}),
    ({"interval_steps": 6}, {verdicts.SILENT_LOSS}),
    ({"points": tuple(span(1, 60, pid=10, at=100)), "departures": ()}, {verdicts.ONE_REPLACEMENT}),
    (
        {"departures": (*GOOD.departures[:2], dataclasses.replace(GOOD.departures[2], good_step=30))},
        {verdicts.WHOLE_ONLY},
    ),
    (
        {"points": (*LINES[:5], dataclasses.replace(LINES[5], loss=7.0), *LINES[6:])},
        {verdicts.BIT_EQUAL},
    ),
    ({"points": (*LINES[:5], dataclasses.replace(LINES[5], samples=(0,)), *LINES[6:])}, {verdicts.SAMPLES}),
    ({"machines": (*GOOD.machines, dataclasses.replace(GOOD.machines[0], instance="i-x"))}, {verdicts.ONE_REPLACEMENT}),
    ({"woken_ended": False}, {verdicts.FENCED}),
    ({"woken_committed": (commit(3, 50, at=410),)}, {verdicts.FENCED}),
    ({"audit_problems": ("chunk is missing",)}, {verdicts.COMMITS}),
    ({"machines": tuple(dataclasses.replace(m, tags={}) for m in GOOD.machines)}, {verdicts.TAGGED}),
    ({"left_running": ("i-a",)}, {verdicts.NOTHING_LEFT}),
    ({"run_status": "active"}, {verdicts.FINISHED}),
    ({"points": LINES[:-1]}, {verdicts.FINISHED, verdicts.BIT_EQUAL}),
    ({"coverage": dataclasses.replace(COVERAGE, gate_findings=("x",))}, {verdicts.DEPLOYED}),
    ({"coverage": dataclasses.replace(COVERAGE, rules_silent=("x",))}, {verdicts.EXERCISED}),
    ({"coverage": dataclasses.replace(COVERAGE, document_steps_unused=("x",))}, {verdicts.EXERCISED}),
    ({"permissions": dataclasses.replace(PROOF, refused=("node: s3:PutObject",))}, {verdicts.PERMISSIONS}),
    ({"permissions": dataclasses.replace(PROOF, ledger=(IDLE,))}, {verdicts.PERMISSIONS}),
    ({"permissions": dataclasses.replace(PROOF, stale=("x",))}, {verdicts.PERMISSIONS}),
    ({"permissions": dataclasses.replace(PROOF, admitted=("node may delete",))}, {verdicts.PERMISSIONS}),
    ({"permissions": dataclasses.replace(PROOF, calls=0)}, {verdicts.PERMISSIONS}),
    ({"permissions": dataclasses.replace(PROOF, attacks=0)}, {verdicts.PERMISSIONS}),
    ({"dead_letters": {"urgent-dlq": 1}}, {verdicts.NO_SURPRISES}),
    ({"reference": ()}, {verdicts.BIT_EQUAL, verdicts.SAMPLES}),
]


@pytest.mark.parametrize(("spoilt", "names"), SPOILT)
def test_spoilt_evidence_fails_the_verdict_that_watches_it(spoilt: dict[str, Any], names: set[str]) -> None:
    assert failed(dataclasses.replace(GOOD, **spoilt)) == names


def test_what_the_script_declares_is_no_replacement_too_many() -> None:
    more = (*GOOD.machines, dataclasses.replace(GOOD.machines[0], instance="i-x"))
    assert failed(dataclasses.replace(GOOD, machines=more, extras=("surplus",))) == set()
    assert failed(dataclasses.replace(GOOD, extras=("surplus",))) == {verdicts.ONE_REPLACEMENT}
    assert failed(dataclasses.replace(GOOD, machines=more, first=2)) == set()


def test_an_instance_that_a_person_started_is_not_counted_and_needs_no_tags() -> None:
    own = dataclasses.replace(GOOD.machines[0], instance="i-own", tags={}, by_hand=True)
    assert failed(dataclasses.replace(GOOD, machines=(*GOOD.machines, own))) == set()


def test_a_proof_over_an_upgrade_keeps_what_was_wrong_before_it() -> None:
    before = dataclasses.replace(PROOF, refused=("node: s3:PutObject",), admitted=("node may delete",))
    both = joined(before, PROOF)
    assert (both.calls, both.refused, both.admitted) == (18, before.refused, before.admitted)
    assert joined(PROOF) == PROOF


def test_grants_are_judged_only_where_the_whole_story_was_played() -> None:
    part = dataclasses.replace(PROOF, whole=False, ledger=(IDLE,))
    assert failed(dataclasses.replace(GOOD, permissions=part)) == set()

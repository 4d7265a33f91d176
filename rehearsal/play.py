"""One performance: deploy, submit, play the acts, gather the evidence."""

from __future__ import annotations

import contextlib
import functools
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from rehearsal import acts, losses
from rehearsal.evidence import Coverage, Evidence, Machine
from rehearsal.permissions.proof import Proof, joined, prove
from rehearsal.plan import Plan
from rehearsal.reference import Reference
from rehearsal.region import Region
from rehearsal.stage import InVain, Say, Stage
from rehearsal.trouble import Failed, Sorted, sort
from spotproof.contract import tags
from spotproof.report.model import Point

Script = Callable[[Stage], None]
"""What happens on a stage that is deployed, from submit to end."""
BESIDE: Final = "beside-{number}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Performance:
    """A finished performance: the stage is still up, so that the page can read the run's history."""

    stage: Stage
    evidence: Evidence
    beside: tuple[Evidence, ...]  # of its further ranks, and of the runs beside it
    seconds: float


def play(
    region: Region,
    plan: Plan,
    *,
    cdk_out: Path,
    references: Path,
    say: Say,
    spoil: Script | None = None,
    script: Script | None = None,
) -> Performance:
    """Plays `plan` on a region that has been entered: its acts, or `script` in their place.

    `spoil` acts on the stage before the run is submitted. What did not happen in time ends the acts, not the judging:
    the evidence then shows what is missing.
    """
    begun = time.monotonic()
    reference = Reference(region.processes, plan, references)
    say("deploying the synthesized template with the CDK CLI")
    outputs = region.deploy(cdk_out)
    make = functools.partial(Stage, region, plan, cdk_out=cdk_out, outputs=outputs, say=say)
    stage = make()
    stage.companions += [make(run=BESIDE.format(number=number)) for number in range(1, plan.runs)]
    say(f"{region.report().resources} resources created and described")
    if spoil is not None:
        spoil(stage)
    in_vain: list[str] = []
    with contextlib.ExitStack() as watching:
        for one in stage.runs:
            watching.enter_context(one.auditor.watching())
        watching.enter_context(stage.clock())
        try:
            (script or _play_acts)(stage)
        except (InVain, TimeoutError) as error:
            say(f"    {error}")
            in_vain.append(str(error))
    evidence, *beside = gather(stage, reference=reference.result(), in_vain=in_vain)
    return Performance(stage=stage, evidence=evidence, beside=tuple(beside), seconds=time.monotonic() - begun)


def _play_acts(stage: Stage) -> None:
    acts.begin(stage)
    for number, act in enumerate(stage.plan.acts, start=1):
        stage.wait_for_step(number * stage.plan.act_every_steps // 2)
        acts.ACTS[act](stage)
    if stage.plan.covers:
        acts.golden_events(stage)
        acts.destroyed_in_vain(stage)
    acts.end(stage)


def gather(stage: Stage, *, reference: tuple[tuple[Point, ...], ...], in_vain: list[str]) -> list[Evidence]:
    """Reads everything that the verdicts need, from the emulated account and the loss logs: for each rank of each run.

    What is the region's, not a run's (failures, permissions), stands in the evidence of every run.
    """
    region = stage.region
    letters, failures = _troubles(stage)
    shared = _Shared(
        reference=reference,
        coverage=_coverage(stage) if stage.plan.covers else None,
        dead_letters=letters.surprising,
        plane_problems=(
            *in_vain,
            *region.problems(),
            *region.report().refused_deliveries,
            *(f"{name} failed {count} times" for name, count in failures.surprising.items()),
        ),
        explained=Counter(letters.explained) + Counter(failures.explained),
        permissions=_permissions(stage),
        left_running=left_running(stage),
    )
    return [_evidence(one, shared, rank) for one in stage.runs for rank in range(len(one.logs))]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Shared:
    """What is the same for every run of a region."""

    reference: tuple[tuple[Point, ...], ...]
    coverage: Coverage | None
    dead_letters: Mapping[str, int]
    plane_problems: tuple[str, ...]
    explained: Mapping[str, int]
    permissions: Proof
    left_running: tuple[str, ...]


def _evidence(stage: Stage, shared: _Shared, rank: int) -> Evidence:
    auditor = stage.auditor
    woken = [
        commit
        for commit in auditor.commits
        if stage.woke_at is not None and commit.seen_at > stage.woke_at and commit.generation <= stage.woken_generation
    ]
    return Evidence(
        run=stage.run,
        steps=stage.plan.steps,
        interval_steps=stage.plan.interval_steps,
        reference=shared.reference[rank],
        points=losses.read(stage.logs[rank]),
        departures=tuple(stage.departures),
        commits=tuple(auditor.commits),
        audit_problems=tuple(auditor.problems),
        machines=machines(stage),
        left_running=shared.left_running,
        coverage=shared.coverage,
        woken_committed=tuple(woken),
        woken_ended=stage.woken_ended,
        run_status=stage.status(),
        dead_letters=shared.dead_letters,
        permissions=shared.permissions,
        plane_problems=shared.plane_problems,
        first=stage.first,
        extras=tuple(stage.extras),
        explained=shared.explained,
    )


def _troubles(stage: Stage) -> tuple[Sorted, Sorted]:
    """Dead letters and failed invocations, without those that the script expects."""
    region = stage.region
    letters = [
        Failed(name=queue, begin=at, end=at)
        for queue in region.report().dead_letters
        for at in region.queues.sent_at(queue)
    ]
    failures = [
        Failed(name=one.function, begin=one.at, end=one.at + one.seconds)
        for one in list(region.functions.invocations)
        if one.error
    ]
    return sort(letters, stage.expected), sort(failures, stage.expected)


def _permissions(stage: Stage) -> Proof:
    """The proof over all that was called; of a stack that was deployed anew, each call by the policies of its time."""
    now = prove(stage.region, stage.outputs, whole=stage.plan.whole, since=stage.proved_calls)
    return joined(*stage.proofs, now)


def machines(stage: Stage) -> tuple[Machine, ...]:
    """Every instance that was ever started for the stage's run, with its tags."""
    region = stage.region
    begun = {m.instance_id: m.at for m in region.hosts.milestones if m.what == "booted"}
    found = []
    for instance_id in region.instances.launched:
        instance, its_tags = region.instances.require(instance_id), region.instances.tags(instance_id)
        if its_tags.get(tags.RUN, stage.run) != stage.run:
            continue
        found.append(
            Machine(
                instance=instance_id,
                tags=its_tags,
                launched_at=begun.get(instance_id, 0.0),
                state=str(instance.state),
                by_hand=instance_id in stage.by_hand,
            )
        )
    return tuple(found)


def left_running(stage: Stage) -> tuple[str, ...]:
    """Instances that EC2 still bills and machines that still have processes; what a person started is theirs to end."""
    region = stage.region
    machines_on = [i for i in region.hosts.alive() if i not in stage.by_hand and region.hosts.nodes[i].pids()]
    return tuple(dict.fromkeys([*stage.alive(), *machines_on]))


def _coverage(stage: Stage) -> Coverage:
    report = stage.region.report()

    def unused(counts: dict[str, int]) -> tuple[str, ...]:
        return tuple(name for name, count in counts.items() if count == 0)

    return Coverage(
        gate_findings=tuple(stage.region.gate_findings),
        rules_silent=unused(report.rules) + unused(report.schedules),
        queues_unused=unused(report.queues),
        functions_unused=unused(report.functions),
        document_steps_unused=unused(report.document_steps),
        resources=report.resources,
    )

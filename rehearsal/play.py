"""One performance: deploy, submit, play the acts, gather the evidence."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from rehearsal import acts, losses
from rehearsal.evidence import Coverage, Evidence, Machine
from rehearsal.permissions.proof import prove
from rehearsal.plan import RUN, Plan
from rehearsal.reference import Reference
from rehearsal.region import Region
from rehearsal.stage import InVain, Say, Stage
from spotproof.report.model import Point

Sabotage = Callable[[Stage], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Performance:
    """A finished performance: the stage is still up, so that the page can read the run's history."""

    stage: Stage
    evidence: Evidence
    seconds: float


def play(
    region: Region, plan: Plan, *, cdk_out: Path, references: Path, say: Say, spoil: Sabotage | None
) -> Performance:
    """Plays `plan` on a region that has been entered. `spoil` acts on the stage before the run is submitted.

    What did not happen in time ends the acts, not the judging: the evidence then shows what is missing.
    """
    begun = time.monotonic()
    reference = Reference(region.processes, plan, references)
    say("deploying the synthesized template with the CDK CLI")
    outputs = region.deploy(cdk_out)
    stage = Stage(region, plan, outputs=outputs, say=say)
    say(f"{region.report().resources} resources created and described")
    if spoil is not None:
        spoil(stage)
    in_vain: list[str] = []
    with stage.auditor.watching(), stage.clock():
        try:
            _play_acts(stage)
        except (InVain, TimeoutError) as error:
            say(f"    {error}")
            in_vain.append(str(error))
    points = reference.result()
    evidence = gather(stage, reference=points, in_vain=in_vain)
    return Performance(stage=stage, evidence=evidence, seconds=time.monotonic() - begun)


def _play_acts(stage: Stage) -> None:
    acts.begin(stage)
    for number, act in enumerate(stage.plan.acts, start=1):
        stage.wait_for_step(number * stage.plan.act_every_steps // 2)
        acts.ACTS[act](stage)
    if stage.plan.covers:
        acts.golden_events(stage)
    acts.end(stage)


def gather(stage: Stage, *, reference: tuple[Point, ...], in_vain: list[str]) -> Evidence:
    """Reads everything that the verdicts need, from the emulated account and the loss log."""
    region, auditor = stage.region, stage.auditor
    report = region.report()
    woken = [
        commit
        for commit in auditor.commits
        if stage.woke_at is not None and commit.seen_at > stage.woke_at and commit.generation <= stage.woken_generation
    ]
    return Evidence(
        run=RUN,
        steps=stage.plan.steps,
        interval_steps=stage.plan.interval_steps,
        reference=reference,
        points=losses.read(stage.loss_log),
        departures=tuple(stage.departures),
        commits=tuple(auditor.commits),
        audit_problems=tuple(auditor.problems),
        machines=machines(region),
        left_running=left_running(region),
        coverage=_coverage(stage) if stage.plan.covers else None,
        woken_committed=tuple(woken),
        woken_ended=stage.woken_ended,
        run_status=stage.status(),
        dead_letters=report.dead_letters,
        permissions=prove(region, stage.outputs, whole=stage.plan.whole),
        plane_problems=(*in_vain, *region.problems(), *report.refused_deliveries, *_errors(report.function_errors)),
    )


def _errors(counts: dict[str, int]) -> list[str]:
    return [f"{name} failed {count} times" for name, count in counts.items()]


def machines(region: Region) -> tuple[Machine, ...]:
    """Every instance that was ever launched, with its tags."""
    begun = {m.instance_id: m.at for m in region.hosts.milestones if m.what == "booted"}
    found = []
    for instance_id in region.instances.launched:
        instance = region.instances.require(instance_id)
        found.append(
            Machine(
                instance=instance_id,
                tags=region.instances.tags(instance_id),
                launched_at=begun.get(instance_id, 0.0),
                state=str(instance.state),
            )
        )
    return tuple(found)


def left_running(region: Region) -> tuple[str, ...]:
    """Instances that EC2 still bills and machines that still have processes."""
    billed = region.instances.in_state("pending", "running")
    machines_on = [i for i in region.hosts.alive() if region.hosts.nodes[i].pids()]
    return tuple(dict.fromkeys([*billed, *machines_on]))


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

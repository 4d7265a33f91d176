"""SSM refuses every command and EventBridge delivers nothing: the agent hears its own metadata, and saves alone."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from rehearsal import acts, verdicts
from rehearsal.evidence import DepartureKind, Evidence
from rehearsal.plane.bus import Delivery
from rehearsal.plane.faults import FOREVER
from rehearsal.sabotage import inside
from rehearsal.scenarios.scenario import Scenario, Spoil
from rehearsal.stage import Stage
from rehearsal.verdicts import Verdict

ALONE: Final = "agent alone"
SILENT, DEADLINE = "silent", "deadline"


def script(stage: Stage) -> None:
    acts.begin(stage)
    acts.open_pools(stage, ("g6.xlarge", "us-east-1b"))
    stage.wait_for_step(30)
    stage.region.bus.delivery = Delivery(losses=1.0)
    stage.region.faults.add("ssm", "SendCommand", "AccessDeniedException", times=FOREVER)
    stage.region.quiet()  # what is under way was sent before the silence
    stage.mark(SILENT)
    instance, pieces = stage.holder(), stage.pieces()
    stage.say(f"step {stage.step()}: {instance} gets its notice in its metadata; EventBridge and SSM are silent")
    stage.departs("agent alone", DepartureKind.NOTICE, instance, good_step=0)
    stage.moments[DEADLINE] = stage.region.hosts.interrupt(instance, notice_s=stage.plan.notice_s, event=False)
    stage.wait_for_replacement(pieces)
    acts.end(stage)


def promises(stage: Stage, evidence: Evidence) -> Iterator[Verdict]:
    since, deadline = stage.moments.get(SILENT), stage.moments.get(DEADLINE)
    if since is None or deadline is None:
        yield Verdict(name=ALONE, passed=False, says="the silence was never played")
        return
    region = stage.region
    sent = [a for a in region.calls.of("ssm", "SendCommand") if a.call.at > since and not a.error]
    heard = [i for i in region.functions.invocations if i.at > since and _is_event(i.event)]
    flushed = [c for c in evidence.commits if since < c.seen_at <= deadline]
    yield alone(told=len(sent) + len(heard), left_s=[deadline - c.seen_at for c in flushed])


def _is_event(event: object) -> bool:
    """Whether a function got something that a rule had matched: the sweep's own messages name a run only."""
    records = event.get("Records", []) if isinstance(event, dict) else []
    return any("detail-type" in str(record.get("body", "")) for record in records)


def alone(*, told: int, left_s: list[float]) -> Verdict:
    """Nobody told the node, and it committed between its notice and its deadline."""
    saved = f"committed {max(left_s):.0f} s before its deadline" if left_s else "committed nothing before its deadline"
    return Verdict(
        name=ALONE, passed=told == 0 and bool(left_s), says=f"{told} commands or events got through; {saved}"
    )


SCENARIO: Final = Scenario(
    name="agent-alone",
    says="SSM refuses and EventBridge is silent: the agent alone must save",
    script=script,
    promises=promises,
    sabotage=Spoil(
        name="metadata-poll-off",
        says="the agent does not look at its instance's metadata",
        act=inside("metadata-poll"),
        breaks=(verdicts.NOTHING_LOST,),
    ),
)

"""What of the deployed stack a rehearsal exercised: a run proves nothing about a rule that never matched."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rehearsal.region import Region


@dataclass(frozen=True, slots=True, kw_only=True)
class Coverage:
    """Counts by name, zero for what is deployed and was never used; dead letters and refusals beside them."""

    resources: int
    rules: dict[str, int]
    queues: dict[str, int]
    functions: dict[str, int]
    function_errors: dict[str, int]
    schedules: dict[str, int]
    document_steps: dict[str, int]
    dead_letters: dict[str, int]
    refused_deliveries: list[str] = field(default_factory=list)

    def unused(self) -> list[str]:
        """Deployed things that nothing touched. Dead-letter queues are not expected to be."""
        kinds = {
            "rule": self.rules,
            "queue": self.queues,
            "function": self.functions,
            "schedule": self.schedules,
            "document step": self.document_steps,
        }
        return [f"{kind} {name}" for kind, counts in kinds.items() for name, count in counts.items() if count == 0]


def coverage(region: Region) -> Coverage:
    """The counts of a region so far."""
    own = [stack for stack in region.deployed.stacks() if stack != "CDKToolkit"]
    dead = _dead_letter_queues(region)
    with region.account.lock:
        rules = [r.name for r in region.bus.rules()]
        documents = [r for stack in own for r in region.deployed.of("AWS::SSM::Document", stack=stack)]
        steps = [(d.physical_id, step["name"]) for d in documents for step in d.model.content_json["mainSteps"]]
    names = region.queues.names()
    return Coverage(
        resources=sum(1 for r in region.deployed if r.stack in own),
        rules={name: region.bus.matched[name] for name in rules},
        queues={name: region.queues.received[name] for name in names if name not in dead},
        functions={name: region.functions.invoked[name] for name in region.functions.names()},
        function_errors={name: count for name, count in region.functions.failed.items() if count},
        schedules={name: region.schedules.ticks[name] for name in region.schedules.names()},
        document_steps={f"{d}/{s}": region.commands.steps_run.get((d, s), 0) for d, s in steps},
        dead_letters={name: region.queues.waiting(name) for name in names if name in dead},
        refused_deliveries=list(region.bus.refused),
    )


def _dead_letter_queues(region: Region) -> set[str]:
    """Queues that no event source mapping reads: they hold what failed."""
    read = {mapping.queue_arn.rsplit(":", 1)[-1] for mapping in region.pollers.mappings()}
    return {name for name in region.queues.names() if name not in read}

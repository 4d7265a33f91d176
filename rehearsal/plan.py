"""What a rehearsal plays: how long the training is, which acts come, and the run spec that an operator submits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

RUN: Final = "rehearsal"
IMAGE: Final = f"rehearsal.invalid/trainer@sha256:{'0' * 64}"
SEED: Final = 1

# The pools of the story: the first node comes from HOME; later acts open others, one at a time. A pool that has once
# refused cools down for ten minutes, so no later act may need it.
TYPES: Final = ("g5.xlarge", "g6.xlarge", "g6e.xlarge")
HOME: Final = ("g5.xlarge", "us-east-1a")
POOLS: Final = tuple((kind, f"us-east-1{zone}") for kind in TYPES for zone in "abc")


class Act(StrEnum):
    """The acts, in the order of the story."""

    NOTICE = "notice"  # an interruption with notice, while other pools are out of capacity
    SILENT = "silent"  # a node dies without a word
    FROZEN = "frozen"  # a node freezes, a chunk in S3 is damaged, the node is replaced, then it wakes
    STORM = "storm"  # an interruption whose events are duplicated and reordered


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """One performance. `covers` also emits every golden event and judges that all that was deployed was used.

    `notice_s` is short so that nobody waits two minutes: IMDS tells it, and every part reckons with what IMDS tells.
    `patience_s` is how long one thing may take before the rehearsal gives up on it. `spec` is laid over the run spec,
    key by key; `runs` are equal ones beside each other.
    """

    acts: tuple[Act, ...] = ()
    steps: int = 300
    interval_steps: int = 20
    act_every_steps: int = 60
    notice_s: float = 20.0
    patience_s: float = 120.0
    covers: bool = True
    runs: int = 1
    spec: Mapping[str, Any] = field(default_factory=dict)

    @property
    def whole(self) -> bool:
        """Whether everything is played that this story has: only then is an unused grant one grant too many."""
        return self.covers and set(self.acts) == set(Act)

    @property
    def slots(self) -> int:
        """How many nodes a run has."""
        return int(self.spec.get("slots", 1))

    def logs(self, loss_log: Path) -> tuple[Path, ...]:
        """Where each rank notes its steps, when the training is told this loss log."""
        if self.slots == 1:
            return (loss_log,)
        return tuple(loss_log.with_name(f"{loss_log.name}.{rank}") for rank in range(self.slots))

    def training(self, *words: str) -> list[str]:
        """The training command without its launcher: the reference trainer, of one rank or of several."""
        script = ["trainer_image/train.py"] if self.slots == 1 else ["-m", "trainer_image.train_ddp"]
        return [*script, "--steps", str(self.steps), "--seed", str(SEED), *words]


FULL: Final = Plan(acts=tuple(Act), steps=300)
SHORT: Final = Plan(acts=(Act.NOTICE,), steps=90, act_every_steps=30)


def run_spec(plan: Plan, *, run: str, loss_log: Path) -> Mapping[str, Any]:
    """run.yaml as a person would write it; only the times are shortened for the laptop."""
    launcher = "python" if plan.slots == 1 else "torchrun"
    document: dict[str, Any] = {
        "run": run,
        "image": IMAGE,
        "command": [launcher, *plan.training("--loss-log", str(loss_log))],
        "slots": 1,
        "pools": {"types": list(TYPES), "market": "spot"},
        "checkpoint": {"every_s": 3600.0, "every_steps": plan.interval_steps},
        "liveness": {"heartbeat_s": 1.0, "silence_s": 5.0},
    }
    for key, value in plan.spec.items():
        document[key] = {**document.get(key, {}), **value} if isinstance(value, Mapping) else value
    return document

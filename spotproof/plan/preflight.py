"""Whether a layout can be flushed within its notice at all, said before the run needs it; and what would help.

A flush needs up to two steps (the one under way, and the one after which all ranks stop), the copy, and the upload.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from spotproof.contract.limits import PREFLIGHT_BUDGET_S

STEPS: Final = 2
COPY_BYTES_S: Final = 2e9  # as `agent.decide` counts it
_GB: Final = 1e9


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """What one node has to flush. `wire_bytes_s`: measured, or what its type is known for. `lacking_bytes`: what a
    commit usually lacks of it; None: all of it changes. `every_s`: between two commits."""

    image_bytes: int
    wire_bytes_s: float
    step_s: float = 0.0
    lacking_bytes: int | None = None
    every_s: float = 0.0
    is_sharded: bool = False  # more nodes would each have less of it


@dataclass(frozen=True, slots=True, kw_only=True)
class Outlook:
    """What a flush of it will need, of how much; `helps` is empty where it fits."""

    needs_s: float
    budget_s: float
    says: str
    helps: tuple[str, ...] = ()

    @property
    def fits(self) -> bool:
        """Whether a notice is enough."""
        return self.needs_s <= self.budget_s


def outlook(layout: Layout, *, budget_s: float = PREFLIGHT_BUDGET_S) -> Outlook:
    """Compare two steps + copy + upload with the budget of a notice."""
    lacking = layout.image_bytes if layout.lacking_bytes is None else layout.lacking_bytes
    steps_s = STEPS * layout.step_s
    copy_s = layout.image_bytes / COPY_BYTES_S
    upload_s = lacking / layout.wire_bytes_s
    needs_s = steps_s + copy_s + upload_s
    says = (
        f"a flush of {lacking / _GB:.1f} GB needs {needs_s:.0f} s of {budget_s:.0f} s: {STEPS} steps {steps_s:.1f} s, "
        f"copy {copy_s:.1f} s, upload {upload_s:.0f} s at {layout.wire_bytes_s / 1e6:.0f} MB/s"
    )
    found = Outlook(needs_s=needs_s, budget_s=budget_s, says=says)
    if found.fits:
        return found
    helps = _helps(layout, lacking=lacking, for_upload_s=budget_s - steps_s - copy_s)
    return Outlook(needs_s=needs_s, budget_s=budget_s, says=says, helps=helps)


def _helps(layout: Layout, *, lacking: int, for_upload_s: float) -> tuple[str, ...]:
    helps = []
    if for_upload_s > 0:
        gbit_s = lacking / for_upload_s * 8 / 1e9
        helps.append(f"instance types with at least {gbit_s:.1f} Gb/s to S3")
        if layout.is_sharded:
            times = math.ceil(lacking / for_upload_s / layout.wire_bytes_s * 10) / 10
            helps.append(f"{times:.1f} times as many nodes: each has less of the state")
    else:
        helps.append("shorter steps (less gradient accumulation): two of them take most of the notice")
    helps.append("less that changes: frozen weights, adapters, optimizer state of fewer bits")
    commit_s = lacking / layout.wire_bytes_s
    every = f", now {layout.every_s:.0f} s" if layout.every_s else ""
    helps.append(
        f"commits as often as the wire allows (checkpoint.every_s from {math.ceil(commit_s)} s on{every}): "
        "an interruption costs what came after the newest"
    )
    return tuple(helps)

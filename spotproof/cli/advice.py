"""What a person should do about a run now, and the command for it; nothing, where it looks after itself."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from spotproof.contract.items import NO_INSTANCE, Head, Node, Slot
from spotproof.contract.limits import SILENCE_S
from spotproof.contract.states import Cause, NodePhase, RunStatus

CAPACITY_IS_SLOW_S: Final = 600
NOTHING: Final = "nothing to do"


def next_steps(
    run: str, head: Head | None, slots: Sequence[Slot], nodes: Sequence[Node], *, now: int, where: str
) -> list[str]:
    """At least one line."""
    if head is None:
        return [f"spotproof report {run} {where} -o story.html draws the run".replace("  ", " ")]
    match head.status:
        case RunStatus.BLOCKED | RunStatus.PAUSED:
            resume = f"spotproof resume {run} {where}".rstrip()
            return [resume] if head.cause is Cause.USER else [head.reason or "find out why", f"then {resume}"]
        case RunStatus.FAILED:
            again = f"then {f'spotproof resume {run} {where}'.rstrip()}"
            return ["read the log of the trainer of the slot that gave up; the checkpoints are kept", again]
        case RunStatus.DONE | RunStatus.STOPPED:
            return [f"spotproof report {run} {where} -o story.html draws what happened"]
        case RunStatus.STOPPING:
            return ["wait: the last checkpoint is on its way, then the nodes end"]
        case RunStatus.ACTIVE:
            return _of_active(slots, nodes, now=now) or [NOTHING]


def _of_active(slots: Sequence[Slot], nodes: Sequence[Node], *, now: int) -> list[str]:
    found = []
    hungry = [slot for slot in slots if slot.successor_instance == NO_INSTANCE]
    slow = [slot for slot in hungry if slot.claimed_at and now - slot.claimed_at > CAPACITY_IS_SLOW_S]
    if slow:
        found.append(
            f"{len(slow)} slots have found no capacity for {(now - min(s.claimed_at or now for s in slow)) // 60} min: "
            "name more instance types or zones in pools, or allow on-demand (pools.market)"
        )
    holders = {(slot.slot, slot.holder_incarnation) for slot in slots}
    quiet = [node for node in nodes if (node.slot, node.incarnation) in holders and _is_quiet(node, now)]
    if quiet:
        found.append(f"{len(quiet)} nodes have not beaten for {SILENCE_S} s: they are replaced within two minutes")
    faulty = [slot for slot in slots if slot.cause is Cause.NODE_FAULT]
    if faulty:
        found.append("a node failed before it joined: read its agent's log in the stack's log group")
    return found


def _is_quiet(node: Node, now: int) -> bool:
    is_over = node.phase.is_final or node.phase in (NodePhase.DRAINING, NodePhase.SUPERSEDED)
    return not is_over and node.beat_at > 0 and now - node.beat_at > SILENCE_S

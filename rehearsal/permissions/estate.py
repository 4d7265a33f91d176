"""What a deployed stack is made of, by the names that its policies use, and the statements of each of its roles."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from rehearsal.permissions.evaluate import Statement
from rehearsal.permissions.world import World
from spotproof.contract.names import Function

NODE: Final = "node"
SCHEDULE: Final = "schedule"  # the sweep's
PIPELINE: Final = (Function.INTERRUPTION.value, Function.SIGNALS.value, Function.REPAIR.value)
"""The functions that run the one pipeline of messages: which of them meets a claim, a loss or a surplus is chance."""


def schedule_of(function: str) -> str:
    """The actor that ticks a function."""
    return SCHEDULE if function == Function.SWEEP else f"{SCHEDULE} of {function}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Estate:
    """One stack. All names are ARNs but `stack`; `statements` by actor: a function, NODE, what `schedule_of` says."""

    world: World
    stack: str
    table: str
    bucket: str
    document: str
    template: str
    subnet: str
    security_group: str
    image: str
    node_role: str
    profile: str
    topic: str
    queues: Mapping[str, str]  # by the function that reads it
    functions: Mapping[str, str]
    log_groups: Mapping[str, str]  # names, by actor
    statements: Mapping[str, tuple[Statement, ...]]

"""Tag keys. No slash and no blank: EC2 refuses such keys once instance tags are visible in IMDS (AWS_FACTS 7.2)."""

from __future__ import annotations

from typing import Final

MANAGED: Final = "spotproof:managed"  # "true" on everything that a stack launched
STACK: Final = "spotproof:stack"  # the stack's name, in every IAM condition and filter
RUN: Final = "spotproof:run"  # run id; on a hand-tagged instance it is the opt-in
LAUNCH: Final = "spotproof:launch"  # number of the launch record; we terminate only what carries it

MANAGED_TRUE: Final = "true"
ALL: Final = (MANAGED, STACK, RUN, LAUNCH)


def of_launch(*, stack: str, run: str, launch: int) -> dict[str, str]:
    """The tags of everything that one CreateFleet call makes."""
    return {MANAGED: MANAGED_TRUE, STACK: stack, RUN: run, LAUNCH: str(launch)}


def of_opt_in(*, stack: str, run: str) -> dict[str, str]:
    """The tags that a person puts on an instance of their own."""
    return {STACK: stack, RUN: run}

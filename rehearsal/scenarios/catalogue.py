"""Every scenario, in the order in which `--scenario all` plays them."""

from __future__ import annotations

from typing import Final

from rehearsal.scenarios import (
    adoption,
    agent_alone,
    burst,
    fallback,
    killed_lambda,
    many_nodes,
    rebalance_storm,
    surplus,
    table_outage,
    upgrade,
)
from rehearsal.scenarios.scenario import Scenario

ALL: Final[tuple[Scenario, ...]] = (
    burst.SCENARIO,
    many_nodes.SCENARIO,
    fallback.SCENARIO,
    killed_lambda.SCENARIO,
    agent_alone.SCENARIO,
    rebalance_storm.SCENARIO,
    surplus.SCENARIO,
    adoption.SCENARIO,
    upgrade.SCENARIO,
    table_outage.SCENARIO,
)


def find(name: str) -> Scenario:
    """The scenario of that name. Raises FileNotFoundError that lists the names."""
    found = next((known for known in ALL if known.name == name), None)
    if found is None:
        raise FileNotFoundError(f"no scenario {name!r}; there are {', '.join(known.name for known in ALL)}")
    return found

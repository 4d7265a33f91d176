"""When to ask EC2 what the run's pools cost, and how it rates them: once an hour for each set of types."""

from __future__ import annotations

from typing import Final

from lambdas.decisions.actions import Action, LookAtMarket
from lambdas.decisions.facts import Facts
from spotproof.contract.limits import MARKET_LOOK_S
from spotproof.contract.states import Market

SCORED_TYPES: Final = 3  # with fewer types EC2 answers a low score whatever the market is like (AWS_FACTS 2.6)


def due(facts: Facts) -> tuple[Action, ...]:
    """One look when no price of the run's Spot pools is fresh; () otherwise. Another run may have looked meanwhile."""
    spec = facts.spec
    if spec is None or spec.placement is None:
        return ()
    types = frozenset(spec.pools.types)
    newest = max(
        (pool.priced_at for pool in facts.pools if _is_meant(pool.market, pool.instance_type, types)), default=0
    )
    if facts.now - newest < MARKET_LOOK_S:
        return ()
    zones = sorted({entry.partition("=")[2] for entry in spec.placement.subnets})
    return (
        LookAtMarket(
            region=facts.region,
            types=tuple(sorted(types)),
            zones=tuple(zones),
            nodes=spec.slots if spec.pools.placement_scores and len(types) >= SCORED_TYPES else 0,
        ),
    )


def _is_meant(market: Market, instance_type: str, types: frozenset[str]) -> bool:
    return market is Market.SPOT and instance_type in types

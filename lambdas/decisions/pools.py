"""Which pools to ask, in which market; and what an error teaches about a pool."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from lambdas.decisions.facts import Facts, pool_name
from lambdas.decisions.verdicts import Verdict
from spotproof.contract import limits
from spotproof.contract.items import Pool
from spotproof.contract.runspec import MarketPolicy, Placement, RunSpec
from spotproof.contract.states import Market

STANDARD_FAMILIES = frozenset("acdhimrtz")
# Waiting does not help against these: with every pool of a run in one of them, a person has to change something.
HOPELESS = frozenset({Verdict.NOT_OFFERED, Verdict.DENIED, Verdict.PRICE, Verdict.QUOTA})
_FAMILY = re.compile(r"([a-z]+)(\d*)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A pool that the run may use, and the subnet by which it is asked."""

    instance_type: str
    zone: str
    subnet: str
    market: Market

    @property
    def name(self) -> str:
        """The pool's name."""
        return pool_name(self.instance_type, self.zone, self.market)


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """Ask these pools of this market now."""

    market: Market
    candidates: tuple[Candidate, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """Every pool cools down; the first is free again at `until`."""

    until: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Hopeless:
    """No pool of the run can give anything before a person changes something."""

    verdict: Verdict


Choice = Asked | Waiting | Hopeless


def choose(facts: Facts, spec: RunSpec, placement: Placement, *, lost: frozenset[str]) -> Choice:
    """The pools to ask for the open claims. Those in `lost` were just reclaimed: only if no other is free.

    Spot first where the policy says so; on-demand when `fallback_after` attempts failed or no Spot pool is left to ask.
    """
    attempts = 0 if facts.head is None else facts.head.spot_attempts
    answers: list[Choice] = []
    for market in _markets(spec, attempts):
        answer = _choose_in(facts, candidates(spec, placement, market), lost=lost)
        if isinstance(answer, Asked):
            return answer
        answers.append(answer)
    waits = [answer.until for answer in answers if isinstance(answer, Waiting)]
    return Waiting(until=min(waits)) if waits else answers[-1]


def candidates(spec: RunSpec, placement: Placement, market: Market) -> tuple[Candidate, ...]:
    """Every pool of the run in this market: its types in every zone that the stack has a subnet in."""
    subnets = [entry.partition("=")[::2] for entry in placement.subnets]
    usable = [(subnet, zone) for subnet, zone in subnets if not spec.pools.zones or zone in spec.pools.zones]
    return tuple(
        Candidate(instance_type=kind, zone=zone, subnet=subnet, market=market)
        for kind in spec.pools.types
        for subnet, zone in usable
    )


def _markets(spec: RunSpec, attempts: int) -> tuple[Market, ...]:
    match spec.pools.market:
        case MarketPolicy.SPOT:
            return (Market.SPOT,)
        case MarketPolicy.ON_DEMAND:
            return (Market.ON_DEMAND,)
        case MarketPolicy.SPOT_THEN_ON_DEMAND:
            spot_is_spent = attempts >= spec.pools.fallback_after
            return (Market.ON_DEMAND,) if spot_is_spent else (Market.SPOT, Market.ON_DEMAND)


def _choose_in(facts: Facts, pools: Sequence[Candidate], *, lost: frozenset[str]) -> Choice:
    if not pools:
        return Hopeless(verdict=Verdict.CONFIGURATION)
    cooling = {name: pool for pool in facts.pools if pool.until > facts.now for name in [_name(pool)]}
    free = tuple(candidate for candidate in pools if candidate.name not in cooling)
    if free:
        others = tuple(candidate for candidate in free if candidate.name not in lost)
        return Asked(market=free[0].market, candidates=others or free)
    held = [cooling[candidate.name] for candidate in pools]
    verdicts = {_verdict(pool) for pool in held}
    if verdicts <= HOPELESS:
        return Hopeless(verdict=Verdict.QUOTA if Verdict.QUOTA in verdicts else min(verdicts))
    return Waiting(until=min(pool.until for pool in held))


def cooled(facts: Facts, name: tuple[str, str, Market], verdict: Verdict) -> tuple[Pool | None, Pool]:
    """The pool as it was seen and as it becomes after this verdict.

    A shortage cools for 10 minutes, doubling to 2 hours while it lasts; a pool that was left alone for as long as its
    last cool-down begins anew. What is not sold or not allowed there rests for a day.
    """
    instance_type, zone, market = name
    seen = next((pool for pool in facts.pools if _name(pool) == pool_name(*name)), None)
    base = seen or Pool(region=facts.region, instance_type=instance_type, zone=zone, market=market)
    cooldown_s = _cooldown_s(base, verdict, facts.now)
    return seen, replace(base, until=facts.now + cooldown_s, cooldown_s=cooldown_s, verdict=verdict.value)


def _cooldown_s(seen: Pool, verdict: Verdict, now: int) -> int:
    if verdict in {Verdict.NOT_OFFERED, Verdict.DENIED, Verdict.PRICE}:
        return limits.POOL_NOT_OFFERED_S
    if verdict is Verdict.QUOTA:
        return limits.POOL_COOLDOWN_S
    still_short = seen.verdict in {Verdict.CAPACITY, Verdict.UNKNOWN} and now <= seen.until + seen.cooldown_s
    doubled = 2 * seen.cooldown_s if still_short else limits.POOL_COOLDOWN_S
    return min(max(doubled, limits.POOL_COOLDOWN_S), limits.POOL_COOLDOWN_MAX_S)


def quota_class(instance_type: str) -> str:
    """The group of families that shares one vCPU quota (AWS_FACTS 2.7)."""
    match = _FAMILY.match(instance_type)
    family, number = (match[1], match[2]) if match else (instance_type, "")
    if family in {"g", "gr", "vt"}:
        return "G and VT"
    if family == "p":
        return "P2, P3 and P4" if number in {"2", "3", "4"} else f"P{number}"
    return "Standard" if family[:1] in STANDARD_FAMILIES and len(family) == 1 else family


def _name(pool: Pool) -> str:
    return pool_name(pool.instance_type, pool.zone, pool.market)


def _verdict(pool: Pool) -> Verdict:
    return Verdict(pool.verdict) if pool.verdict in set(Verdict) else Verdict.UNKNOWN

"""Which pools to ask, in which market; and what an error teaches about a pool."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from lambdas.decisions.facts import Facts, pool_name
from lambdas.decisions.verdicts import Verdict
from spotproof.contract import hours, limits
from spotproof.contract.frozen import dataclass
from spotproof.contract.items import Head, Pool
from spotproof.contract.runspec import MarketPolicy, Placement, RunSpec
from spotproof.contract.states import Market
from spotproof.plan.deadline import Progress, is_late
from spotproof.plan.poolorder import Outlook, first_band

STANDARD_FAMILIES = frozenset("acdhimrtz")
# Waiting does not help against these: with every pool of a run in one of them, a person has to change something.
HOPELESS = frozenset(
    {
        Verdict.NOT_OFFERED,
        Verdict.DENIED,
        Verdict.PRICE,
        Verdict.QUOTA,
        Verdict.CONFIGURATION,
        Verdict.NO_ROLE,
    }
)
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
    """Ask these pools of this market now, in this order."""

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Need:
    """What is looked for: `lost` pools were just reclaimed and come last; `zone` '': any; `markets` in this order."""

    markets: tuple[Market, ...]
    lost: frozenset[str] = frozenset()
    zone: str = ""


def choose(facts: Facts, spec: RunSpec, placement: Placement, need: Need) -> Choice:
    """The pools to ask: those of the first market that has a free one; of these the first band (plan.poolorder)."""
    answers: list[Choice] = []
    for market in need.markets:
        answer = _choose_in(facts, _near(candidates(spec, placement, market), need.zone), need)
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


def covers(pools: Sequence[tuple[str, str]], spec: RunSpec) -> bool:
    """Whether these types and zones are all pools of the run on Spot: then nothing else is known of them."""
    known, placement = set(pools), spec.placement
    if not known or placement is None:
        return False
    return all((one.instance_type, one.zone) in known for one in candidates(spec, placement, Market.SPOT))


def markets(facts: Facts, spec: RunSpec) -> tuple[Market, ...]:
    """The markets that the run may use now, the one to ask first first.

    On-demand comes first in the run's first minutes, after `fallback_after` failed Spot attempts, and when the run
    would miss its deadline otherwise.
    """
    match spec.pools.market:
        case MarketPolicy.SPOT:
            return (Market.SPOT,)
        case MarketPolicy.ON_DEMAND:
            return (Market.ON_DEMAND,)
        case MarketPolicy.SPOT_THEN_ON_DEMAND:
            on_demand_first = facts.head is not None and (
                facts.head.spot_attempts >= spec.pools.fallback_after
                or is_beginning(facts.head, spec, at=facts.now)
                or misses_deadline(facts, spec)
            )
            return (Market.ON_DEMAND, Market.SPOT) if on_demand_first else (Market.SPOT, Market.ON_DEMAND)


def is_beginning(head: Head, spec: RunSpec, *, at: int) -> bool:
    """Whether `at` is in the first minutes of the run, which it spends on-demand if its spec says so."""
    return at < head.submitted_at + spec.pools.first_on_demand_s


def misses_deadline(facts: Facts, spec: RunSpec) -> bool:
    """Whether the run would be late at its pace; a run without a deadline never is."""
    if facts.head is None or not spec.pools.deadline_s:
        return False
    pointer = facts.pointer
    progress = Progress(
        submitted_at=facts.head.submitted_at,
        deadline_s=spec.pools.deadline_s,
        deadline_step=spec.pools.deadline_step,
        step=0 if pointer is None else pointer.step,
        committed_at=0 if pointer is None else pointer.committed_at,
    )
    return is_late(progress, now=facts.now)


def outlook(facts: Facts, candidate: Candidate, *, at: int = 0, lost: frozenset[str] = frozenset()) -> Outlook:
    """What is known of a pool, as the order of pools wants it."""
    pool = _known(facts, candidate.name)
    priced = facts.now - 2 * limits.MARKET_LOOK_S
    if pool is None:
        return Outlook(name=candidate.name, at=at, just_reclaimed=candidate.name in lost)
    return Outlook(
        name=candidate.name,
        at=at,
        just_reclaimed=candidate.name in lost,
        since_loss_s=None if pool.lost_at is None else facts.now - pool.lost_at,
        losses_this_hour=hours.losses_at(pool.hours, facts.now),
        score=pool.score if pool.scored_at > priced else None,
        price_usd=pool.price_usd if pool.priced_at > priced else None,
    )


def is_free(facts: Facts, candidate: Candidate) -> bool:
    """Whether the pool does not cool down."""
    pool = _known(facts, candidate.name)
    return pool is None or pool.until <= facts.now


def _near(pools: tuple[Candidate, ...], zone: str) -> tuple[Candidate, ...]:
    return tuple(one for one in pools if not zone or one.zone == zone)


def _choose_in(facts: Facts, pools: Sequence[Candidate], need: Need) -> Choice:
    if not pools:
        return Hopeless(verdict=Verdict.CONFIGURATION)
    free = {one.name: one for one in pools if is_free(facts, one)}
    if free:
        outlooks = [outlook(facts, one, at=at, lost=need.lost) for at, one in enumerate(free.values())]
        chosen = tuple(free[one.name] for one in first_band(outlooks))
        return Asked(market=chosen[0].market, candidates=chosen)
    held = [pool for pool in (_known(facts, one.name) for one in pools) if pool is not None]
    verdicts = {_verdict(pool) for pool in held}
    if verdicts <= HOPELESS:
        return Hopeless(verdict=Verdict.QUOTA if Verdict.QUOTA in verdicts else min(verdicts))
    return Waiting(until=min(pool.until for pool in held))


def known_pool(facts: Facts, name: tuple[str, str, Market]) -> Pool:
    """The pool's item as it was read, or a new one."""
    instance_type, zone, market = name
    found = _known(facts, pool_name(*name))
    return found or Pool(region=facts.region, instance_type=instance_type, zone=zone, market=market)


def cooled(facts: Facts, name: tuple[str, str, Market], verdict: Verdict) -> tuple[Pool | None, Pool]:
    """The pool as it was seen and as it becomes after this verdict.

    A shortage cools for 10 minutes, doubling to 2 hours while it lasts; a pool that was left alone for as long as its
    last cool-down begins anew. What is not sold or not allowed there rests for a day.
    """
    seen, base = _known(facts, pool_name(*name)), known_pool(facts, name)
    first_s = limits.POOL_COOLDOWN_S if facts.spec is None else facts.spec.pools.cooldown_s
    cooldown_s = _cooldown_s(base, verdict, now=facts.now, first_s=first_s)
    return seen, replace(base, until=facts.now + cooldown_s, cooldown_s=cooldown_s, verdict=verdict.value)


def _cooldown_s(seen: Pool, verdict: Verdict, *, now: int, first_s: int) -> int:
    if verdict in HOPELESS - {Verdict.QUOTA}:
        return limits.POOL_NOT_OFFERED_S
    if verdict is Verdict.QUOTA:
        return first_s
    still_short = seen.verdict in {Verdict.CAPACITY, Verdict.UNKNOWN} and now <= seen.until + seen.cooldown_s
    doubled = 2 * seen.cooldown_s if still_short else first_s
    return min(max(doubled, first_s), limits.POOL_COOLDOWN_MAX_S)


def quota_class(instance_type: str) -> str:
    """The group of families that shares one vCPU quota (AWS_FACTS 2.7)."""
    match = _FAMILY.match(instance_type)
    family, number = (match[1], match[2]) if match else (instance_type, "")
    if family in {"g", "gr", "vt"}:
        return "G and VT"
    if family == "p":
        return "P2, P3 and P4" if number in {"2", "3", "4"} else f"P{number}"
    return "Standard" if family[:1] in STANDARD_FAMILIES and len(family) == 1 else family


def _known(facts: Facts, name: str) -> Pool | None:
    return next((pool for pool in facts.pools if _name(pool) == name), None)


def _name(pool: Pool) -> str:
    return pool_name(pool.instance_type, pool.zone, pool.market)


def _verdict(pool: Pool) -> Verdict:
    return Verdict(pool.verdict) if pool.verdict in set(Verdict) else Verdict.UNKNOWN

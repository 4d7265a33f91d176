"""How bad it gets: everything that chance may do in one history, as numbers that follow from its seed."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, fields, replace

from spotproof.contract.runspec import MarketPolicy

LENGTHS_S = (240.0, 600.0)
CLEAN_LENGTH_S = 200.0
MASS_SLOTS = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Weather:
    """One history's weather. `clean`: only duplicates and concurrency, so that nothing may wait for the sweep.

    Rates are per operation, event or handler; counts are per history; `_s` are seconds.

    `stalls`: a stall takes up to 70 s and Lambda gives a handler 60, so at the highest rate most handlers die, and work
    goes on only by what each of them had written. Then a node can be launched and left without a place for the ten
    minutes after which a node that never beats is replaced. That is what was promised for such a node, and no handler
    lives long enough to do better: a node that waited so long counts as lost (`History.lost`), none other does.
    """

    seed: int
    slots: int
    clean: bool
    length_s: float
    market: MarketPolicy = MarketPolicy.SPOT
    # losses
    losses: int = 0
    notice_share: float = 1.0  # of the losses that come with a notice
    comebacks: float = 0.0  # share of interruptions that stop or hibernate; such a node comes back later
    bursts: int = 0  # all nodes at once, or some of them
    boot_deaths: float = 0.0  # share of new nodes that die before they run
    never_joins: float = 0.0
    wakes: bool = False  # frozen nodes wake up while the weather lasts, not only at its end
    drills: int = 0
    rebalances: int = 0
    maintenances: int = 0
    blocks: int = 0  # capacity blocks that end
    by_hand: int = 0  # instances that people tag for the run
    # events
    lost_events: float = 0.0
    # handlers
    kills: float = 0.0
    stalls: float = 0.0
    skew_s: int = 0  # of a handler's clock
    leases_out: float = 0.0  # share of launcher leases that are taken for expired
    # AWS
    throttles: int = 0
    lost_answers: float = 0.0
    refused_pools: float = 0.0
    dry_phases: int = 0  # times that pools have no capacity, or no quota, for minutes
    room: int = 0  # instances that are left in a pool in such a phase; more than none makes partial answers
    extra: float = 0.0
    invisible_s: float = 0.0
    stale_s: float = 0.0  # how long DescribeInstances may say an old state
    outage_s: float = 0.0
    beats_out_s: float = 0.0
    ssm_refuses: float = 0.0
    sqs_refuses: float = 0.0
    # people
    pauses: int = 0
    stop: bool = False
    small_budget: bool = False  # of recoveries without a commit; and nobody commits
    launch_limit: int = 0  # of the stack's launches in an hour; 0: its default
    commits: float = 0.3  # how likely a turn of a node that trains commits
    # the run's settings
    prewarm: bool = False
    gang: bool = False
    failback_s: float = 0.0
    standby: int = 0
    least: int = 0  # of an elastic run

    @staticmethod
    def of(seed: int) -> Weather:
        """The weather of this seed."""
        chance = random.Random(seed)
        weather = _clean(seed, chance) if chance.random() < 0.2 else _rough(seed, chance)
        # Of a chance of its own, so that what a seed meant before stays what it is but for the nodes that stand by.
        stands_by = weather.slots > 1 and not weather.beats_out_s and random.Random(f"standby {seed}").random() < 0.3
        has_block = not (weather.clean or weather.beats_out_s) and random.Random(f"block {seed}").random() < 0.2
        varies = random.Random(f"elastic {seed}").random() < 0.25 and weather.slots > 1
        varies = varies and not (weather.clean or weather.gang or weather.beats_out_s)
        return replace(weather, standby=int(stands_by), blocks=int(has_block), least=int(varies))


def _clean(seed: int, chance: random.Random) -> Weather:
    return Weather(
        seed=seed,
        slots=chance.choice([2, 3, 6]),
        clean=True,
        length_s=CLEAN_LENGTH_S,
        stalls=chance.choice([0.05, 0.2]),
        invisible_s=chance.choice([0.0, 3.0, 30.0]),
        bursts=4,
        leases_out=chance.choice([0.0, 0.0, 1.0]),
        stop=chance.random() < 0.1,
    )


def _rough(seed: int, chance: random.Random) -> Weather:
    weather = Weather(
        seed=seed,
        slots=chance.choice([1, 1, 2, 3, 6]),
        clean=False,
        length_s=chance.choice(LENGTHS_S),
        market=chance.choice([MarketPolicy.SPOT, MarketPolicy.SPOT, MarketPolicy.SPOT_THEN_ON_DEMAND]),
        losses=chance.randint(1, 5),
        notice_share=chance.choice([1.0, 0.7, 0.0]),
        comebacks=chance.choice([0.0, 0.0, 0.5]),
        bursts=chance.choice([0, 0, 1, 2]),
        boot_deaths=chance.choice([0.0, 0.0, 0.3]),
        never_joins=chance.choice([0.0, 0.0, 0.3]),
        wakes=chance.random() < 0.5,
        drills=chance.choice([0, 0, 0, 2]),
        rebalances=chance.choice([0, 0, 3]),
        maintenances=chance.choice([0, 0, 0, 2]),
        by_hand=chance.choice([0, 0, 1, 2]),
        lost_events=chance.choice([0.0, 0.2, 1.0]),
        kills=chance.choice([0.0, 0.2, 0.5]),
        stalls=chance.choice([0.0, 0.02, 0.2]),
        skew_s=chance.choice([0, 0, 3]),
        leases_out=chance.choice([0.0, 0.0, 1.0]),
        throttles=chance.choice([0, 0, 2, 5]),
        lost_answers=chance.choice([0.0, 0.0, 0.02, 0.1]),
        refused_pools=chance.choice([0.0, 0.0, 0.4, 0.9]),
        dry_phases=chance.choice([0, 0, 1, 3]),
        room=chance.choice([0, 1, 2]),
        extra=chance.choice([0.0, 0.0, 0.5]),
        invisible_s=chance.choice([0.0, 3.0, 30.0, 55.0]),
        stale_s=chance.choice([0.0, 0.0, 10.0]),
        outage_s=chance.choice([0.0, 0.0, 130.0]),
        beats_out_s=chance.choice([0.0, 0.0, 150.0]),
        ssm_refuses=chance.choice([0.0, 0.0, 0.5]),
        sqs_refuses=chance.choice([0.0, 0.0, 0.3]),
        pauses=chance.choice([0, 0, 0, 1]),
        stop=chance.random() < 0.1,
        small_budget=chance.random() < 0.1,
        launch_limit=chance.choice([0] * 9 + [4]),
        commits=chance.choice([0.3, 0.3, 0.05]),
        prewarm=chance.random() < 0.3,
        gang=chance.random() < 0.2,
        failback_s=chance.choice([0.0, 120.0]),
    )
    # With other losses beside it fewer than five slots may be silent, and then they are replaced, as promised.
    mass = weather.beats_out_s > 0 and weather.slots >= MASS_SLOTS
    return _only_mass_silence(weather) if mass else replace(weather, beats_out_s=0.0)


def _only_mass_silence(weather: Weather) -> Weather:
    quiet = replace(weather, losses=0, bursts=0, drills=0, pauses=0)
    return replace(
        quiet, boot_deaths=0.0, never_joins=0.0, small_budget=False, launch_limit=0, maintenances=0, by_hand=0
    )


_SHAPE = frozenset({"seed", "slots", "clean", "length_s", "losses", "bursts", "notice_share", "market", "commits"})


def calmer(weather: Weather) -> Iterator[Weather]:
    """The same weather with one fault less."""
    for one in fields(weather):
        value = getattr(weather, one.name)
        if one.name not in _SHAPE and value:
            yield replace(weather, **{one.name: type(value)()})
    for name in ("losses", "bursts"):
        if getattr(weather, name) > 0:
            yield replace(weather, **{name: getattr(weather, name) - 1})
    if weather.slots > (2 if weather.standby or weather.least else 1):
        yield replace(weather, slots=weather.slots - 1)
    if weather.length_s > LENGTHS_S[0]:
        yield replace(weather, length_s=LENGTHS_S[0])

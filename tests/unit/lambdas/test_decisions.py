"""Decision tables: values in, values out, no doubles."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest

from lambdas.decisions import losses, pools, silence
from lambdas.decisions.actions import Claim, Guarded, OrderFlush, Promote, SendFlush
from lambdas.decisions.facts import Facts, Loss, Silence, parse_pool, pool_name
from lambdas.decisions.pools import Asked, Candidate, Hopeless, Waiting
from lambdas.decisions.request import fleet_request, tags_of, token_of
from lambdas.decisions.verdicts import ADVICE, CAUSES, VERDICTS, Verdict, cause_of, verdict_of
from spotproof.contract import limits
from spotproof.contract.items import NO_INSTANCE, Generation, Head, PointerItem, Pool, Slot
from spotproof.contract.orders import bitmap_of
from spotproof.contract.runspec import MarketPolicy, Placement, Pools, RunSpec
from spotproof.contract.states import Cause, Market, NoticeKind, RunStatus

NOW = 1_777_888_800
PLACEMENT = Placement(template="lt-1", template_version="3", subnets=("subnet-a=us-east-1a", "subnet-b=us-east-1b"))
HELD = Slot(run="mini", slot=0, incarnation=4, holder_instance="i-a", holder_incarnation=4)
OPEN = replace(HELD, incarnation=5, successor_instance=NO_INSTANCE, successor_incarnation=5, cause=Cause.INTERRUPTION)
BOUND = replace(OPEN, successor_instance="i-b")
SILENT = replace(OPEN, cause=Cause.SILENCE)


def facts(*slots: Slot, **fields: Any) -> Facts:
    head = fields.pop("head", Head(run="mini", status=RunStatus.ACTIVE, slots=len(slots)))
    return Facts(run="mini", stack="prod", region="us-east-1", now=NOW, slots=slots, head=head, **fields)


def loss(instance: str = "i-a", slot: int = 0, **fields: Any) -> Loss:
    given = {"cause": Cause.INTERRUPTION, "at": NOW, "deadline_at": NOW + 120, **fields}
    return Loss(instance=instance, slot=slot, **given)


def claims(actions: Any) -> list[Claim]:
    guarded = [action.first for action in actions if isinstance(action, Guarded)]
    return [first for first in guarded if isinstance(first, Claim)]


def orders(actions: Any) -> list[OrderFlush]:
    return [action for action in actions if isinstance(action, OrderFlush)]


@pytest.mark.parametrize(
    ("slot", "instance", "flushes", "claimed"),
    [
        pytest.param(HELD, "i-a", True, True, id="holder"),
        pytest.param(OPEN, "i-a", False, False, id="holder, claimed already"),
        pytest.param(SILENT, "i-a", True, False, id="holder, claimed for silence: its notice may still save"),
        pytest.param(BOUND, "i-b", False, True, id="successor: it holds nothing yet"),
        pytest.param(BOUND, "i-a", False, False, id="holder whose successor boots"),
        pytest.param(HELD, "i-z", False, False, id="replaced long ago"),
    ],
)
def test_a_notice_by_place(slot: Slot, instance: str, flushes: bool, claimed: bool) -> None:
    actions = losses.decide(facts(slot), [loss(instance)])
    assert (bool(orders(actions)), bool(claims(actions))) == (flushes, claimed)


def test_the_flush_order_comes_before_the_claim() -> None:
    actions = losses.decide(facts(HELD), [loss()])
    kinds = [type(action.first if isinstance(action, Guarded) else action) for action in actions]
    assert kinds.index(OrderFlush) < kinds.index(Claim)
    assert type(orders(actions)[0].then[0]) is SendFlush


def test_losses_of_a_batch_are_one_order_with_all_leavers_and_the_earliest_deadline() -> None:
    slots = [replace(HELD, slot=number, holder_instance=f"i-{number}") for number in range(3)]
    noticed = [loss(f"i-{number}", number, deadline_at=NOW + 60 + number) for number in range(3)]
    [order] = orders(losses.decide(facts(*slots), noticed))
    assert (order.order.leavers, order.order.deadline_at) == (frozenset({0, 1, 2}), NOW + 60)


def test_leavers_of_a_standing_order_stay_and_those_of_an_old_one_do_not() -> None:
    head = Head(
        run="mini",
        status=RunStatus.ACTIVE,
        order="o",
        order_kind=NoticeKind.INTERRUPTION,
        order_deadline_at=NOW + 30,
        order_leavers=bitmap_of(frozenset({7})),
    )
    [standing] = orders(losses.decide(facts(HELD, head=head), [loss()]))
    assert standing.order.leavers == frozenset({0, 7})
    assert standing.order.deadline_at == NOW + 120, "the new leaver keeps all of its seconds"
    [fresh] = orders(losses.decide(facts(HELD, head=replace(head, order_deadline_at=NOW)), [loss()]))
    assert fresh.order.leavers == frozenset({0})


def test_a_repetition_gives_the_same_order() -> None:
    [first] = orders(losses.decide(facts(HELD), [loss()]))
    told = first.order
    head = Head(
        run="mini",
        status=RunStatus.ACTIVE,
        order=told.order,
        order_kind=told.kind,
        order_deadline_at=told.deadline_at,
        order_leavers=bitmap_of(told.leavers),
    )
    [again] = orders(losses.decide(facts(HELD, head=head), [loss()]))
    assert again.order == told


def test_a_sealed_successor_is_promoted_first_and_its_loss_is_a_holders() -> None:
    sealed = Generation(run="mini", generation=9, members=("0:5:i-b",), sealed_at=NOW)
    actions = losses.decide(facts(BOUND, sealed=sealed), [loss("i-b")])
    promotes = [one.first for one in actions if isinstance(one, Guarded) and isinstance(one.first, Promote)]
    [claim] = claims(actions)
    assert [one.slot for one in promotes] == [BOUND]
    assert (claim.seen.holder_instance, claim.seen.successor_instance) == ("i-b", None)
    assert orders(actions)


@pytest.mark.parametrize("status", [status for status in RunStatus if not status.wants_nodes])
def test_a_run_that_wants_no_nodes_flushes_and_claims_nothing(status: RunStatus) -> None:
    actions = losses.decide(facts(HELD, head=Head(run="mini", status=status)), [loss()])
    assert (bool(orders(actions)), claims(actions)) == (True, [])


# ------------------------------------------------------------------------------------------------------------- pools
def spec(**fields: Any) -> RunSpec:
    given = {"types": ("g5.xlarge", "p4d.24xlarge"), **fields}
    return RunSpec(run="mini", image="i", command=("c",), pools=Pools(**given), placement=PLACEMENT)


def pool(kind: str, zone: str, verdict: Verdict, *, until: int = NOW + 100, market: Market = Market.SPOT) -> Pool:
    return Pool(region="us-east-1", instance_type=kind, zone=zone, market=market, until=until, verdict=verdict.value)


SPOT = pools.Need(markets=(Market.SPOT,))


def all_pools(verdict: Verdict, *, market: Market = Market.SPOT) -> tuple[Pool, ...]:
    return tuple(
        pool(kind, zone, verdict, market=market)
        for kind in ("g5.xlarge", "p4d.24xlarge")
        for zone in ("us-east-1a", "us-east-1b")
    )


def test_every_type_in_every_zone_is_asked() -> None:
    choice = pools.choose(facts(), spec(), PLACEMENT, SPOT)
    assert isinstance(choice, Asked)
    assert {candidate.name for candidate in choice.candidates} == {
        "g5.xlarge#us-east-1a#spot",
        "g5.xlarge#us-east-1b#spot",
        "p4d.24xlarge#us-east-1a#spot",
        "p4d.24xlarge#us-east-1b#spot",
    }


def test_the_pool_just_lost_is_asked_only_when_no_other_is_free() -> None:
    lost = frozenset({"g5.xlarge#us-east-1a#spot"})
    choice = pools.choose(facts(), spec(zones=("us-east-1a",)), PLACEMENT, replace(SPOT, lost=lost))
    assert isinstance(choice, Asked)
    assert [candidate.name for candidate in choice.candidates] == ["p4d.24xlarge#us-east-1a#spot"]
    cooling = facts(pools=(pool("p4d.24xlarge", "us-east-1a", Verdict.CAPACITY),))
    choice = pools.choose(cooling, spec(zones=("us-east-1a",)), PLACEMENT, replace(SPOT, lost=lost))
    assert isinstance(choice, Asked)
    assert [candidate.name for candidate in choice.candidates] == ["g5.xlarge#us-east-1a#spot"]


@pytest.mark.parametrize(
    ("verdict", "expected"),
    [
        (Verdict.CAPACITY, Waiting(until=NOW + 100)),
        (Verdict.NOT_OFFERED, Hopeless(verdict=Verdict.NOT_OFFERED)),
        (Verdict.DENIED, Hopeless(verdict=Verdict.DENIED)),
        (Verdict.QUOTA, Hopeless(verdict=Verdict.QUOTA)),
    ],
)
def test_when_every_pool_rests_the_reason_decides(verdict: Verdict, expected: Any) -> None:
    assert pools.choose(facts(pools=all_pools(verdict)), spec(), PLACEMENT, SPOT) == expected


def test_one_short_pool_among_unsold_ones_is_waited_for() -> None:
    known = (*all_pools(Verdict.NOT_OFFERED)[1:], pool("g5.xlarge", "us-east-1a", Verdict.CAPACITY, until=NOW + 5))
    assert pools.choose(facts(pools=known), spec(), PLACEMENT, SPOT) == Waiting(until=NOW + 5)


def test_no_subnet_in_the_runs_zones_is_hopeless() -> None:
    choice = pools.choose(facts(), spec(zones=("us-east-1f",)), PLACEMENT, SPOT)
    assert choice == Hopeless(verdict=Verdict.CONFIGURATION)


@pytest.mark.parametrize(
    ("policy", "attempts", "known", "market"),
    [
        (MarketPolicy.SPOT_THEN_ON_DEMAND, 0, (), Market.SPOT),
        (MarketPolicy.SPOT_THEN_ON_DEMAND, 3, (), Market.ON_DEMAND),
        (MarketPolicy.SPOT_THEN_ON_DEMAND, 0, all_pools(Verdict.CAPACITY), Market.ON_DEMAND),
        (MarketPolicy.SPOT_THEN_ON_DEMAND, 0, all_pools(Verdict.QUOTA), Market.ON_DEMAND),
        (MarketPolicy.ON_DEMAND, 0, (), Market.ON_DEMAND),
        (MarketPolicy.SPOT, 99, (), Market.SPOT),
    ],
)
def test_the_market(policy: MarketPolicy, attempts: int, known: tuple[Pool, ...], market: Market) -> None:
    head = Head(run="mini", status=RunStatus.ACTIVE, spot_attempts=attempts)
    given, asked = facts(head=head, pools=known), spec(market=policy)
    choice = pools.choose(given, asked, PLACEMENT, pools.Need(markets=pools.markets(given, asked)))
    assert isinstance(choice, Asked)
    assert choice.market is market


@pytest.mark.parametrize(
    ("pools_of", "age_s", "committed", "first"),
    [
        ({"first_on_demand_s": 600}, 599, None, Market.ON_DEMAND),
        ({"first_on_demand_s": 600}, 600, None, Market.SPOT),
        ({"deadline_s": 10_000, "deadline_step": 100}, 5_000, None, Market.SPOT),
        ({"deadline_s": 10_000, "deadline_step": 100}, 5_001, None, Market.ON_DEMAND),
        ({"deadline_s": 10_000, "deadline_step": 100}, 5_001, (60, 5_000), Market.SPOT),
        ({"deadline_s": 10_000, "deadline_step": 100}, 7_000, (60, 5_000), Market.ON_DEMAND),
    ],
)
def test_on_demand_comes_first_at_the_beginning_and_when_the_run_would_be_late(
    pools_of: dict[str, Any], age_s: int, committed: tuple[int, int] | None, first: Market
) -> None:
    submitted_at = NOW - age_s
    pointer = committed and PointerItem(
        run="mini",
        generation=1,
        step=committed[0],
        rank=1,
        manifest_key="m",
        manifest_digest="0",
        committed_at=submitted_at + committed[1],
    )
    given = facts(head=Head(run="mini", status=RunStatus.ACTIVE, submitted_at=submitted_at), pointer=pointer)
    asked = pools.markets(given, spec(market=MarketPolicy.SPOT_THEN_ON_DEMAND, **pools_of))
    assert asked[0] is first
    assert set(asked) == {Market.SPOT, Market.ON_DEMAND}, "the other one is better than none"


def test_a_shortage_cools_ten_minutes_doubling_to_two_hours_and_begins_anew_after_rest() -> None:
    name, waits, known, now = ("g5.xlarge", "us-east-1a", Market.SPOT), [], None, NOW
    for _ in range(6):
        before = replace(facts(pools=() if known is None else (known,)), now=now)
        _, known = pools.cooled(before, name, Verdict.CAPACITY)
        waits.append(known.cooldown_s)
        now = known.until + 1
    assert waits == [600, 1200, 2400, 4800, 7200, 7200]
    assert known is not None
    rested = replace(facts(pools=(known,)), now=known.until + known.cooldown_s + 1)
    assert pools.cooled(rested, name, Verdict.CAPACITY)[1].cooldown_s == 600


def test_a_run_may_say_how_long_a_shortage_cools_at_first() -> None:
    given = facts(spec=spec(cooldown_s=30))
    assert pools.cooled(given, ("g5.xlarge", "us-east-1a", Market.SPOT), Verdict.CAPACITY)[1].until == NOW + 30


@pytest.mark.parametrize(
    ("instance_type", "group"),
    [
        ("g5.xlarge", "G and VT"),
        ("g6e.12xlarge", "G and VT"),
        ("p4d.24xlarge", "P2, P3 and P4"),
        ("p5.48xlarge", "P5"),
        ("trn1.32xlarge", "trn"),
        ("m7i.large", "Standard"),
    ],
)
def test_families_share_quotas(instance_type: str, group: str) -> None:
    assert pools.quota_class(instance_type) == group


def test_pool_names_read_back() -> None:
    assert parse_pool(pool_name("g5.xlarge", "us-east-1a", Market.SPOT)) == ("g5.xlarge", "us-east-1a", Market.SPOT)
    assert parse_pool("*") is None
    assert parse_pool("##spot") is None


# ---------------------------------------------------------------------------------------------------------- verdicts
def test_every_verdict_has_a_cause_and_what_blocks_has_advice() -> None:
    assert set(CAUSES) == set(Verdict)
    assert set(ADVICE) >= pools.HOPELESS | {Verdict.CONFIGURATION, Verdict.NO_ROLE}
    assert {verdict_of(code) for code in VERDICTS} | {Verdict.UNKNOWN, Verdict.REFUSED} == set(Verdict)


def test_an_unknown_code_lets_the_other_pools_be_tried() -> None:
    assert (verdict_of("SomethingNew"), cause_of(verdict_of("SomethingNew"))) == (Verdict.UNKNOWN, Cause.CAPACITY)


def test_the_token_changes_with_every_parameter_and_with_nothing_else() -> None:
    chance = random.Random(4)
    seen: dict[tuple[Any, ...], str] = {}
    for _ in range(300):
        market = chance.choice([Market.SPOT, Market.ON_DEMAND])
        kinds = tuple(sorted(chance.sample(["g5.xlarge", "g6.xlarge", "p5.48xlarge"], chance.randint(1, 3))))
        wants, launch = chance.randint(1, 3), chance.randint(1, 5)
        asked = Asked(
            market=market,
            candidates=tuple(Candidate(instance_type=k, zone="z", subnet="subnet-a", market=market) for k in kinds),
        )
        text = fleet_request(asked, PLACEMENT, wants=wants, launch_tags=tags_of(stack="s", run="r", launch=launch))
        key = (market, kinds, wants, launch)
        assert seen.setdefault(key, token_of(text)) == token_of(text)
        assert len(token_of(text)) == 64
    assert len(set(seen.values())) == len(seen)


# ----------------------------------------------------------------------------------------------------------- silence
@pytest.mark.parametrize(
    ("silent", "slots", "mass"),
    [(4, 4, False), (5, 5, True), (5, 25, False), (6, 25, True), (0, 0, False), (200, 1000, False), (201, 1000, True)],
)
def test_mass_silence_is_five_slots_and_over_a_fifth(silent: int, slots: int, mass: bool) -> None:
    assert silence.is_mass(Silence(silent=silent, slots=slots)) is mass
    assert limits.MASS_SILENCE_MIN_SLOTS == 5

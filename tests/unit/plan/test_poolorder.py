"""The order of pools, as a table: what is known of two pools, and which comes first."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from spotproof.plan.poolorder import Band, Outlook, band_of, first_band, in_order, risk

HOUR = 3600.0


def pool(name: str = "x", **known: Any) -> Outlook:
    return Outlook(name=name, **{"at": 0, **known})


@pytest.mark.parametrize(
    ("known", "band"),
    [
        pytest.param({}, Band.CALM, id="nothing is known"),
        pytest.param({"score": 10}, Band.CALM, id="EC2 likes it"),
        pytest.param({"score": 5}, Band.CALM, id="a fair score alone says little"),
        pytest.param({"score": 1}, Band.TENSE, id="a poor score is a hint"),
        pytest.param({"since_loss_s": 60.0}, Band.STORMY, id="took one of us a minute ago"),
        pytest.param({"since_loss_s": 1.0 * HOUR}, Band.TENSE, id="an hour ago"),
        pytest.param({"since_loss_s": 3.0 * HOUR}, Band.CALM, id="three hours ago"),
        pytest.param({"losses_this_hour": 9}, Band.STORMY, id="the worst hour of its week"),
        pytest.param({"losses_this_hour": 3}, Band.TENSE, id="an hour that took some before"),
        pytest.param({"losses_this_hour": 1}, Band.CALM, id="once is no pattern"),
        pytest.param({"since_loss_s": 1.0 * HOUR, "losses_this_hour": 3}, Band.STORMY, id="both"),
        pytest.param({"just_reclaimed": True, "score": 10}, Band.JUST_RECLAIMED, id="the one that is being replaced"),
        pytest.param({"price_usd": 0.01}, Band.CALM, id="a price says nothing of calm"),
    ],
)
def test_the_band_of_a_pool(known: dict[str, Any], band: Band) -> None:
    assert band_of(pool(**known)) is band


@pytest.mark.parametrize(
    ("first", "second"),
    [
        pytest.param({"price_usd": 3.0}, {"price_usd": 1.0, "since_loss_s": 60.0}, id="calm before cheap"),
        pytest.param({"price_usd": 1.0}, {"price_usd": 2.0}, id="cheap before dear"),
        pytest.param({"price_usd": 9.0}, {}, id="a known price before an unknown one"),
        pytest.param({"score": 9}, {"score": 4}, id="at the same price the better score"),
        pytest.param({"price_usd": 1.0, "score": 4}, {"price_usd": 2.0, "score": 9}, id="price before score in a band"),
        pytest.param({"since_loss_s": 10.0}, {"just_reclaimed": True}, id="the pool just reclaimed is last"),
        pytest.param({"since_loss_s": 9 * HOUR}, {"since_loss_s": 6 * HOUR}, id="old losses fade"),
        pytest.param({"at": 0}, {"at": 1}, id="the run's own order where nothing speaks against it"),
    ],
)
def test_which_of_two_pools_comes_first(first: dict[str, Any], second: dict[str, Any]) -> None:
    one, other = pool("one", **{"at": 5, **first}), pool("other", **{"at": 5, **second})
    assert [each.name for each in in_order([other, one])] == ["one", "other"]


def test_only_the_first_band_is_asked_now() -> None:
    pools = [pool("shaky", since_loss_s=60.0), pool("a", price_usd=2.0), pool("b", price_usd=1.0)]
    assert [one.name for one in first_band(pools)] == ["b", "a"]
    assert [one.name for one in first_band(pools[:1])] == ["shaky"]
    assert first_band([]) == ()


def test_the_order_does_not_depend_on_how_the_pools_are_listed() -> None:
    pools = [
        pool("a", at=0, price_usd=1.0),
        pool("b", at=1, since_loss_s=600.0),
        pool("c", at=2, losses_this_hour=5),
        pool("d", at=3, just_reclaimed=True),
        pool("e", at=4),
    ]
    orders = {tuple(one.name for one in in_order(listed)) for listed in itertools.permutations(pools)}
    assert orders == {("a", "e", "c", "b", "d")}


def test_a_loss_is_forgotten_by_and_by() -> None:
    risks = [risk(pool(since_loss_s=hours * HOUR)) for hours in range(12)]
    assert risks == sorted(risks, reverse=True)
    assert (risks[0], round(risks[1], 3), risks[-1] < 0.001) == (1.0, 0.5, True)

"""Notices from several sources, merged."""

from __future__ import annotations

import dataclasses

import pytest

from spotproof.agent.notices import Heard, Notices, Source, of_order
from spotproof.contract.orders import FlushOrder
from spotproof.contract.states import NoticeKind

NOW = 1000.0
METADATA = Heard(
    key="interruption-x", source=Source.METADATA, kind=NoticeKind.INTERRUPTION, deadline_at=NOW + 120, leave=True
)
HEAD = of_order(
    FlushOrder(order="o-1", kind=NoticeKind.INTERRUPTION, deadline_at=int(NOW + 100), leavers=frozenset({2})),
    source=Source.HEAD,
    slot=2,
)
EXTRA = Heard(key="r-1", source=Source.HEAD, kind=NoticeKind.REBALANCE, deadline_at=NOW + 120, leave=False)


def test_an_order_names_this_slot_or_only_wants_a_checkpoint() -> None:
    order = FlushOrder(order="o", kind=NoticeKind.INTERRUPTION, deadline_at=5, leavers=frozenset({0, 3}))
    assert of_order(order, source=Source.HEAD, slot=3).leave
    assert not of_order(order, source=Source.HEAD, slot=1).leave


def test_an_order_that_comes_late_does_not_mean_who_joined_after_its_leavers_were_named() -> None:
    order = FlushOrder(order="o", kind=NoticeKind.INTERRUPTION, deadline_at=5, leavers=frozenset({3}), generation=4)
    assert not of_order(order, source=Source.HEAD, slot=3, joined_in=5).leave
    assert of_order(order, source=Source.HEAD, slot=3, joined_in=4).leave
    assert of_order(order, source=Source.HEAD, slot=3).leave, "when it joined is not known"
    unknown = dataclasses.replace(order, generation=0)
    assert of_order(unknown, source=Source.HEAD, slot=3, joined_in=5).leave


def test_one_interruption_in_three_ways_is_one_and_the_earliest_deadline_wins() -> None:
    notices = Notices()
    first = notices.hear(METADATA, now=NOW)
    assert first is not None
    assert first.is_new_leaving
    second = notices.hear(HEAD, now=NOW)
    assert second is not None
    assert (second.is_new_leaving, second.is_earlier, second.deadline_at) == (False, True, NOW + 100)
    request = dataclasses.replace(HEAD, source=Source.REQUEST, deadline_at=NOW + 110)
    assert notices.hear(request, now=NOW) is None
    assert notices.hear(METADATA, now=NOW) is None
    assert notices.deadline_at == NOW + 100


def test_an_extra_checkpoint_is_taken_once_and_not_by_one_who_leaves() -> None:
    notices = Notices()
    news = notices.hear(EXTRA, now=NOW)
    assert news is not None
    assert news.is_extra
    assert notices.hear(EXTRA, now=NOW) is None
    notices.hear(METADATA, now=NOW)
    assert notices.hear(dataclasses.replace(EXTRA, key="r-2"), now=NOW) is None


@pytest.mark.parametrize("leave", [True, False])
def test_an_order_whose_deadline_has_passed_is_nobodys_any_more(leave: bool) -> None:
    old = dataclasses.replace(HEAD, leave=leave, deadline_at=NOW - 1)
    assert Notices().hear(old, now=NOW) is None


def test_the_instances_own_notice_counts_even_past_its_time() -> None:
    late = dataclasses.replace(METADATA, deadline_at=NOW - 1)
    news = Notices().hear(late, now=NOW)
    assert news is not None
    assert news.is_new_leaving


def test_an_order_from_before_joining_never_counts() -> None:
    notices = Notices()
    notices.forget_before_joining(HEAD.key)
    assert notices.hear(HEAD, now=NOW) is None
    assert notices.leaving is None

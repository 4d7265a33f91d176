"""A run of many nodes loses one without a word: its membership is marked, once there is no time left to flush."""

from __future__ import annotations

from lambdas.decisions.actions import MarkBad
from lambdas.decisions.broken import mark_of
from lambdas.decisions.facts import Facts
from spotproof.contract.items import Generation, Head, Slot
from spotproof.contract.states import RunStatus
from spotproof.store.head import Heads
from spotproof.store.local import IN_MEMORY, LocalTable

SLOT = Slot(run="r", slot=1, incarnation=2, holder_instance="i-b", holder_incarnation=2)


def facts(*members: str) -> Facts:
    sealed = Generation(run="r", generation=4, members=members, sealed_at=0)
    return Facts(run="r", stack="s", region="x", now=0, sealed=sealed)


def test_the_membership_that_names_the_lost_holder_is_marked() -> None:
    known = facts("0:1:i-a", "1:2:i-b", "2:1:i-c")
    assert mark_of(known, SLOT, "i-b") == (MarkBad(run="r", generation=4),)
    assert mark_of(known, SLOT, None) == ()


def test_a_membership_that_goes_on_without_it_is_left_alone() -> None:
    assert mark_of(facts("0:1:i-a", "1:3:i-d"), SLOT, "i-b") == ()
    assert mark_of(facts("1:2:i-b"), SLOT, "i-b") == ()  # alone: nobody waits for anybody
    assert mark_of(Facts(run="r", stack="s", region="x", now=0), SLOT, "i-b") == ()


def test_the_mark_only_rises() -> None:
    with LocalTable(IN_MEMORY) as table:
        heads = Heads(table)
        heads.create(Head(run="r", status=RunStatus.ACTIVE, slots=3))
        for generation in (2, 5, 3, 5):
            heads.mark_bad("r", generation)
        found = heads.read("r")
        assert found is not None
        assert found.bad == 5
        heads.mark_bad("unknown", 1)
        assert heads.read("unknown") is None

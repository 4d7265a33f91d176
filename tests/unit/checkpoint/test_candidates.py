from __future__ import annotations

from collections.abc import Set as AbstractSet

from spotproof.plan.candidates import Candidate, Facts, Order, Source, rank


def facts(
    *,
    manifests: AbstractSet[Order] = frozenset(),
    parts: AbstractSet[Order] = frozenset(),
    staged: AbstractSet[Order] = frozenset(),
    pointer: Order | None = None,
    quarantined: AbstractSet[Order] = frozenset(),
    starts: dict[int, Order | None] | None = None,
) -> Facts:
    return Facts(
        manifests=manifests,
        parts=parts,
        staged=staged,
        pointer=pointer,
        quarantined=quarantined,
        starts=starts or {1: None},
    )


def orders(given: Facts) -> list[Order]:
    return [candidate.order for candidate in rank(given).candidates]


def test_generation_comes_before_step() -> None:
    given = facts(manifests={(1, 900), (2, 800), (2, 850)}, starts={1: None, 2: (1, 900)})
    assert orders(given) == [(2, 850), (2, 800), (1, 900)]


def test_what_a_woken_node_wrote_after_the_seal_is_not_the_runs() -> None:
    given = facts(manifests={(1, 100), (1, 130)}, pointer=(1, 100), starts={1: None, 2: (1, 100)})
    ranked = rank(given)
    assert [candidate.order for candidate in ranked.candidates] == [(1, 100)]
    assert ranked.passed_over == ("generation 1 step 130: written after generation 2 had been sealed",)


def test_a_checkpoint_before_the_next_generations_start_stays_for_walking_back() -> None:
    given = facts(manifests={(1, 100), (1, 90), (2, 110)}, starts={1: None, 2: (1, 100)})
    assert orders(given) == [(2, 110), (1, 100), (1, 90)]


def test_a_generation_that_began_from_zero_disowns_what_an_older_one_wrote_late() -> None:
    ranked = rank(facts(manifests={(1, 10)}, starts={1: None, 2: None}))
    assert ranked.candidates == ()
    assert not ranked.had_checkpoint


def test_the_quarantined_are_passed_over_with_their_reason() -> None:
    ranked = rank(facts(manifests={(1, 10), (1, 20)}, pointer=(1, 20), quarantined={(1, 20)}))
    assert [candidate.order for candidate in ranked.candidates] == [(1, 10)]
    assert ranked.passed_over == ("generation 1 step 20: quarantined as damaged",)
    assert ranked.had_checkpoint


def test_sources_in_order_of_trust() -> None:
    given = facts(manifests={(1, 10)}, parts={(1, 20)}, staged={(1, 10), (1, 20), (1, 30)}, pointer=(1, 5))
    assert rank(given).candidates == (
        Candidate(order=(1, 30), source=Source.STAGED),
        Candidate(order=(1, 20), source=Source.PARTS),
        Candidate(order=(1, 10), source=Source.MANIFEST),
        Candidate(order=(1, 5), source=Source.MANIFEST),
    )


def test_an_empty_run_never_had_a_checkpoint_but_a_pointer_proves_one() -> None:
    assert not rank(facts()).had_checkpoint
    assert not rank(facts(parts={(1, 5)})).had_checkpoint
    assert rank(facts(pointer=(1, 5))).had_checkpoint

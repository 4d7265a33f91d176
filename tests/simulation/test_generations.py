"""Generations in seeded weather; and that faults in the protocol are caught by it."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from spotproof.contract.items import Join, PointerItem
from spotproof.rendezvous import decide, joining
from spotproof.rendezvous.decide import Action, MarkBad, Member, Stand
from spotproof.store.members import Memberships
from spotproof.store.pointer import Pointers
from spotproof.store.table import Absent, AnyOf, Exists
from tests.simulation.generations import Broken, Life, history


@pytest.mark.parametrize("seed", range(6))
def test_two_live_generations_never_both_commit_and_the_barrier_holds(seed: int) -> None:
    log = history(seed).log
    assert [one for one in log if one[0] == "seal"]
    assert [one for one in log if one[0] == "commit"]


def caught(seeds: int = 25) -> str:
    for seed in range(seeds):
        try:
            history(seed)
        except Broken as broken:
            return str(broken)
    return "nothing"


def test_a_commit_that_looks_at_no_generation_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    right = Pointers.rise

    def careless(self: Pointers, pointer: PointerItem, *, own_generation: int) -> PointerItem:
        newest = Memberships(self._table).newest(pointer.run)
        return right(self, pointer, own_generation=own_generation if newest is None else newest.generation)

    monkeypatch.setattr(Pointers, "rise", careless)
    assert "fence" in caught()


def test_a_seal_that_does_not_look_at_the_pointer_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("spotproof.store.members._unchanged", lambda _: AnyOf(Absent("pk"), Exists("pk")))
    assert "fence" in caught()


def test_training_before_all_are_here_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Life, "_are_here", lambda *_: True)
    assert "barrier" in caught()


def test_ranks_by_name_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def by_name(here: Sequence[Join], _: Sequence[Member], number: int, *, largest: int) -> tuple[Member, ...]:
        chosen = sorted(here, key=lambda join: join.node)[:largest]
        return tuple(Member(slot=rank, incarnation=number, node=one.node) for rank, one in enumerate(chosen))

    monkeypatch.setattr(joining, "seating", by_name)
    assert "ranks" in caught()


def test_nobody_who_says_that_a_generation_is_broken_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    right = decide.next_action

    def silent(*words: object, **more: object) -> Action:
        action = right(*words, **more)  # type: ignore[arg-type]
        return Stand(generation=action.generation) if isinstance(action, MarkBad) else action

    monkeypatch.setattr(joining, "next_action", silent)
    monkeypatch.setattr(joining, "gone", lambda *_, **__: False)
    assert "recovery" in caught()

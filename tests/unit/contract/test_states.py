"""States and moves: every state has its row, no row leads to a state that is none, ends are ends."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any

import pytest

from spotproof.contract import history, states
from spotproof.contract.states import (
    ARENA_MOVES,
    LAUNCH_MOVES,
    RUN_MOVES,
    ArenaState,
    Cause,
    FlushOutcome,
    LaunchState,
    NodePhase,
    NoticeKind,
    RunStatus,
    may_move,
)

TABLES: list[tuple[type[StrEnum], Mapping[Any, frozenset[Any]], StrEnum]] = [
    (RunStatus, RUN_MOVES, RunStatus.ACTIVE),
    (LaunchState, LAUNCH_MOVES, LaunchState.INTENDED),
    (ArenaState, ARENA_MOVES, ArenaState.FREE),
]


@pytest.mark.parametrize(("kind", "moves", "first"), TABLES)
def test_every_state_has_a_row_and_leads_to_states(
    kind: type[StrEnum], moves: Mapping[Any, frozenset[Any]], first: StrEnum
) -> None:
    assert set(moves) == set(kind)
    assert set().union(*moves.values()) <= set(kind)
    assert not [state for state, targets in moves.items() if state in targets], "a move changes something"


@pytest.mark.parametrize(("kind", "moves", "first"), TABLES)
def test_every_state_can_be_reached(kind: type[StrEnum], moves: Mapping[Any, frozenset[Any]], first: StrEnum) -> None:
    reached, ahead = {first}, [first]
    while ahead:
        new = moves[ahead.pop()] - reached
        reached |= new
        ahead += new
    assert reached == set(kind)


def test_a_run_that_is_done_stays_done() -> None:
    assert not RUN_MOVES[RunStatus.DONE]
    assert not any(may_move(RunStatus.DONE, to) for to in RunStatus)


def test_a_run_that_has_ended_is_not_looked_at_and_gets_no_nodes() -> None:
    ended = {RunStatus.DONE, RunStatus.FAILED, RunStatus.STOPPED}
    assert {status for status in RunStatus if not status.is_live} == ended
    assert [status for status in RunStatus if status.wants_nodes] == [RunStatus.ACTIVE]


def test_a_paused_run_is_not_stopped_by_the_sweep_alone() -> None:
    assert may_move(RunStatus.PAUSED, RunStatus.ACTIVE)
    assert may_move(RunStatus.BLOCKED, RunStatus.ACTIVE)
    assert not may_move(RunStatus.STOPPING, RunStatus.ACTIVE)


def test_a_successor_joins_only_after_a_final_outcome() -> None:
    assert [outcome for outcome in FlushOutcome if not outcome.is_final] == [FlushOutcome.PENDING]


def test_a_disappearance_is_no_loss_after_these_phases_only() -> None:
    assert [phase for phase in NodePhase if phase.is_final] == [NodePhase.DONE, NodePhase.FAILED]


def test_a_notice_has_a_cause_of_the_same_name() -> None:
    assert {kind.value for kind in NoticeKind} <= {cause.value for cause in Cause}


def test_words_of_the_contract_are_lower_case_with_hyphens() -> None:
    kinds: list[type[StrEnum]] = [
        kind for kind in vars(states).values() if isinstance(kind, type) and issubclass(kind, StrEnum)
    ]
    kinds.append(history.HistoryKind)
    words = [member.value for kind in kinds for member in kind]
    assert len(kinds) > 8
    assert not [word for word in words if not all(part.isalpha() and part.islower() for part in word.split("-"))]

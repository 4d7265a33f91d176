"""What the training loop's side does when the agent goes and comes back."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import cast

import pytest
import torch

from spotproof.checkpoint.saver import Receipt, Saver
from spotproof.checkpoint.session import Ranks, Session
from spotproof.contract.layout import Layout
from spotproof.contract.protocol import Frame, Notice, Saved, SaveFailed, Welcome
from spotproof.contract.states import SaveKind, WhenBusy
from spotproof.errors import CheckpointError
from tests.fakes.training import Box, Memory

pytestmark = pytest.mark.torch

WELCOME = Welcome(run="r", slot=0, incarnation=1, generation=3, every_steps=1)


@dataclass
class Agent:
    """Stands for `Session`: commits what it is handed at the next look, while it is there."""

    committed: tuple[int, int] = (-1, -1)
    is_lost: bool = False
    comes_back: bool = False
    refuses: bool = False
    failed: list[SaveFailed] = field(default_factory=list)
    told: list[Frame] = field(default_factory=list)
    memory: Memory = field(default_factory=lambda: Memory(count=2))
    welcome: Welcome = WELCOME
    notice: Notice | None = None
    extra: Notice | None = None
    flush: None = None
    ranks: Ranks = field(default_factory=Ranks)

    def arenas(self, described: Layout, metadata: bytes) -> list[int]:
        from spotproof.checkpoint.dcp import ImagePlan

        return self.memory.provide(ImagePlan(layout=described, frames=(), metadata=metadata))

    def tell(self, frame: Frame) -> None:
        if not self.is_lost:
            self.told.append(frame)

    def hand_over(self, frame: Frame) -> bool:
        self.tell(frame)
        return not self.is_lost

    def listen(self, *, timeout_s: float = 0.0) -> None:
        if self.is_lost:
            return
        for frame in self.told:
            if isinstance(frame, Saved) and frame.arena >= 0:
                if self.refuses:
                    self.failed.append(SaveFailed(step=frame.step, reason="told to refuse"))
                else:
                    self.committed = max(self.committed, (3, frame.step))

    def reconnect(self) -> bool:
        self.is_lost = not self.comes_back
        return self.comes_back


@pytest.fixture
def agent() -> Iterator[Agent]:
    made = Agent()
    yield made
    made.memory.close()


@pytest.fixture
def saver(agent: Agent) -> Iterator[Saver]:
    made = Saver(cast("Session", agent), {"box": Box({"w": torch.ones(3)})})
    yield made
    made.close()


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("spotproof.checkpoint.saver.AGENT_BACK_S", 0.3)
    monkeypatch.setattr("spotproof.checkpoint.saver.LISTEN_S", 0.01)


def save(saver: Saver, step: int, kind: SaveKind = SaveKind.PERIODIC) -> None:
    saver.save(kind, step=step, counters={}, receipt=Receipt())


def handed_over(agent: Agent) -> list[tuple[int, int]]:
    return [(frame.step, frame.arena) for frame in agent.told if isinstance(frame, Saved)]


def test_the_end_waits_until_the_last_step_is_durable(agent: Agent, saver: Saver) -> None:
    save(saver, 5, SaveKind.FINAL)
    saver.finish(5, lambda: None)
    assert agent.committed == (3, 5)


def test_a_run_whose_agent_died_before_the_last_save_does_not_look_done(agent: Agent, saver: Saver) -> None:
    """The step that was handed over is durable, the one that was not is lost: the end must say so."""
    save(saver, 1)
    saver.listen()
    agent.is_lost = True
    save(saver, 5, SaveKind.FINAL)
    with pytest.raises(CheckpointError, match="its step 5 is not durable: the agent has ended"):
        saver.finish(5, lambda: save(saver, 5, SaveKind.FINAL))


def test_an_agent_that_comes_back_gets_the_last_step_again(agent: Agent, saver: Saver) -> None:
    save(saver, 5, SaveKind.FINAL)
    agent.is_lost, agent.comes_back = True, True
    saver.finish(5, lambda: save(saver, 5, SaveKind.FINAL))
    assert handed_over(agent) == [(5, 0), (5, 0)], "with its memory, both times"
    assert agent.committed == (3, 5)


def test_an_earlier_save_that_fails_while_the_end_is_waited_for_is_not_the_ends(agent: Agent, saver: Saver) -> None:
    agent.failed.append(SaveFailed(step=4, reason="the bucket was silent"))
    save(saver, 5, SaveKind.FINAL)
    saver.finish(5, lambda: None)
    assert agent.committed == (3, 5)


def test_a_save_that_is_given_up_at_the_end_is_an_error(agent: Agent, saver: Saver) -> None:
    agent.refuses = True
    save(saver, 5, SaveKind.FINAL)
    with pytest.raises(CheckpointError, match="told to refuse"):
        saver.finish(5, lambda: None)


def test_what_was_restored_from_a_copy_that_is_not_durable_is_saved_again(agent: Agent, saver: Saver) -> None:
    saver.restored(5)
    save(saver, 5, SaveKind.FINAL)
    saver.finish(5, lambda: None)
    assert handed_over(agent) == [(5, 0)]


def test_what_was_restored_from_a_commit_needs_no_save(agent: Agent, saver: Saver) -> None:
    agent.committed = (2, 5)
    saver.restored(5)
    assert saver.due(5) is None
    save(saver, 5, SaveKind.FINAL)
    saver.finish(5, lambda: None)
    assert handed_over(agent) == [(5, -1)], "told, without memory"


@pytest.mark.parametrize(("when_busy", "due_next"), [(WhenBusy.WAIT, SaveKind.PERIODIC), (WhenBusy.SKIP, None)])
def test_a_save_that_finds_no_arena_waits_or_is_skipped_as_the_run_wants_and_says_so(
    agent: Agent,
    saver: Saver,
    when_busy: WhenBusy,
    due_next: SaveKind | None,
    caplog: pytest.LogCaptureFixture,
) -> None:
    agent.welcome = replace(WELCOME, every_steps=10, when_busy=when_busy)
    caplog.set_level("INFO", logger="spotproof")
    for step in (10, 20):  # as many as there are arenas; nothing is uploaded
        save(saver, step)
        saver.settle()
    save(saver, 30)
    saver.settle()
    assert [step for step, _ in handed_over(agent)] == [10, 20]
    words = {WhenBusy.WAIT: "the save waits for one", WhenBusy.SKIP: "the save is skipped"}
    assert words[when_busy] in caplog.text
    assert saver.due(31) is due_next
    assert saver.due(40) is SaveKind.PERIODIC
    agent.memory.free(0)
    save(saver, 40)
    saver.settle()
    assert [step for step, _ in handed_over(agent)] == [10, 20, 40]


def test_what_somebody_asked_for_is_not_skipped(agent: Agent, saver: Saver) -> None:
    agent.welcome = replace(WELCOME, every_steps=10, when_busy=WhenBusy.SKIP)
    for step in (10, 20):
        save(saver, step)
        saver.settle()
    saver.is_manual_due = True
    save(saver, 23, SaveKind.MANUAL)
    assert saver.due(24) is SaveKind.MANUAL

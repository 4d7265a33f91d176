"""`Run` in this process, with a local agent: loops of every form, and what is refused with which words."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from spotproof import Run
from spotproof.checkpoint import saver
from spotproof.checkpoint.arena import MemoryLimit
from spotproof.errors import BadSettings, CheckpointError
from spotproof.run import Preempted

pytestmark = pytest.mark.torch


class Loop:
    """A model that learns one number, with its schedule stepped once per epoch."""

    def __init__(self) -> None:
        torch.manual_seed(2)
        torch.set_num_threads(1)
        self.model = nn.Linear(1, 1)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1, momentum=0.9)
        self.scheduler = torch.optim.lr_scheduler.StepLR(self.optimizer, step_size=1, gamma=0.5)
        data = TensorDataset(torch.arange(6.0).unsqueeze(1))
        self.loader = DataLoader(data, batch_size=2, shuffle=True)
        self.seen: list[list[float]] = []

    def track(self, run: Run) -> None:
        run.track(model=self.model, optimizer=self.optimizer, scheduler=self.scheduler, loader=self.loader)

    def learn(self, batch: Any) -> None:
        [x] = batch
        self.seen.append(x.flatten().tolist())
        self.optimizer.zero_grad()
        (self.model(x) - 2 * x).pow(2).mean().backward()
        self.optimizer.step()

    def state(self) -> tuple[list[float], float, int]:
        weights = [one.item() for one in self.model.parameters()]
        return weights, self.optimizer.param_groups[0]["lr"], self.scheduler.last_epoch


class Told(Exception):
    """The node dies here."""


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    return {**os.environ, "SPOTPROOF_LOCAL_DIR": str(tmp_path / "run"), "SPOTPROOF_CHECKPOINT_EVERY_STEPS": "1"}


def by_epochs(environ: dict[str, str], *, epochs: int, die_at: int = 0) -> Loop:
    """The loop that people write: epochs outside, the schedule after each of them."""
    loop = Loop()
    with Run.from_env(environ) as run:
        loop.track(run)
        for _ in range(epochs):
            for batch in run.batches(loop.loader):
                loop.learn(batch)
                wait_for_commit(run, run.step if die_at else 0)  # or the next save would find no free arena
                if run.step + 1 == die_at:
                    raise Told
            loop.scheduler.step()
    return loop


def wait_for_commit(run: Run, step: int) -> None:
    for _ in range(2000):
        run.poll()
        if (run.latest or 0) >= step:
            return
        time.sleep(0.01)
    raise TimeoutError(f"step {step} is not committed")


def plain(epochs: int) -> Loop:
    loop = Loop()
    for _ in range(epochs):
        for batch in loop.loader:
            loop.learn(batch)
        loop.scheduler.step()
    return loop


@pytest.mark.parametrize("die_at", [2, 3, 4, 5, 8])
def test_what_a_script_does_after_each_epoch_is_done_once(environ: dict[str, str], die_at: int) -> None:
    # Three steps per epoch: 4 dies behind the end of an epoch, with its schedule stepped and not yet saved.
    with pytest.raises(Told):
        by_epochs(environ, epochs=3, die_at=die_at)
    again = by_epochs(environ, epochs=3)
    expected = plain(3)
    assert again.state() == expected.state()
    assert again.seen == expected.seen[die_at - 1 :]


def test_a_run_that_is_over_does_nothing_and_keeps_its_end(environ: dict[str, str]) -> None:
    first = by_epochs(environ, epochs=2)
    again = by_epochs(environ, epochs=2)
    assert again.seen == []
    assert again.state()[0] == first.state()[0]


def test_a_loop_of_ones_own_restores_and_counts(environ: dict[str, str]) -> None:
    for first, last in ((0, 3), (3, 5)):
        loop = Loop()
        with Run.from_env(environ) as run:
            run.track(model=loop.model, optimizer=loop.optimizer)
            assert run.restore() == first
            while run.step < last:
                loop.learn([torch.ones(2, 1)])
                run.report(loss=0.5)
                run.boundary()
            assert run.notice is None
        assert run.latest == last


def test_training_without_restoring_first_is_refused(environ: dict[str, str]) -> None:
    by_epochs(environ, epochs=1)
    loop = Loop()
    with Run.from_env(environ) as run:
        loop.track(run)
        loop.learn([torch.ones(2, 1)])
        with pytest.raises(CheckpointError, match=r"run\.restore\(\) before the first step"):
            run.boundary()


def test_a_loop_that_is_left_behind_a_step_saves_that_step(environ: dict[str, str]) -> None:
    loop = Loop()
    with Run.from_env(environ) as run:
        loop.track(run)
        for batch in run.batches(loop.loader):
            loop.learn(batch)
            if run.step == 1:
                break
    assert (run.step, run.latest) == (2, 2)
    with Run.from_env(environ) as run:
        loop.track(run)
        assert run.restore() == 2


def test_a_loop_that_is_left_inside_a_step_keeps_the_step_before(
    environ: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    loop = Loop()
    with Run.from_env(environ) as run:
        loop.track(run)
        for batch in run.batches(loop.loader):
            if run.step == 1:
                break
            loop.learn(batch)
    assert (run.step, run.latest) == (1, 1)
    assert "ended inside step 2" in caplog.text


def rarely(environ: dict[str, str]) -> dict[str, str]:
    """No save but the last one."""
    return {**environ, "SPOTPROOF_CHECKPOINT_EVERY_STEPS": "0"}


def test_a_loop_that_is_left_before_a_step_saves_the_steps_that_were_done(environ: dict[str, str]) -> None:
    loop = Loop()
    with Run.from_env(rarely(environ)) as run:
        loop.track(run)
        for batch in run.batches(loop.loader):
            if run.step == 2:
                break
            loop.learn(batch)
    assert (run.step, run.latest) == (2, 2)


def test_an_iterator_that_somebody_still_holds_does_not_tear_the_last_step(environ: dict[str, str]) -> None:
    loop = Loop()
    with Run.from_env(rarely(environ)) as run:
        loop.track(run)
        held = run.batches(loop.loader)  # as a progress bar holds it
        for batch in held:
            loop.learn(batch)
            if run.step == 1:
                break
    del held
    assert (run.step, run.latest) == (2, 2)
    again = Loop()
    with Run.from_env(environ) as run:
        again.track(run)
        assert run.restore() == 2
        assert again.state() == loop.state()


def test_a_loop_that_goes_on_after_it_was_left_inside_a_step_saves_its_end(environ: dict[str, str]) -> None:
    loop = Loop()
    with Run.from_env(rarely(environ)) as run:
        run.track(model=loop.model, loader=loop.loader)  # nobody tells when the optimizer steps
        for _ in run.batches(loop.loader):
            break
        for batch in run.batches(loop.loader):
            loop.learn(batch)
    assert (run.step, run.latest) == (3, 3)


def test_a_loop_of_ones_own_that_ends_before_its_boundary_does_not_tear_the_last_step(environ: dict[str, str]) -> None:
    loop = Loop()
    with Run.from_env(rarely(environ)) as run:
        loop.track(run)
        run.restore()
        for batch in loop.loader:
            loop.learn(batch)
            if run.step == 1:
                break
            run.boundary()
    assert (run.step, run.latest) == (2, 2)


@pytest.mark.parametrize("code", [0, None])
def test_a_script_that_exits_well_inside_the_run_has_its_last_step_saved(
    environ: dict[str, str], code: int | None
) -> None:
    loop, run = Loop(), Run.from_env(rarely(environ))

    def script() -> None:
        with run:
            loop.track(run)
            for batch in run.batches(loop.loader):
                loop.learn(batch)
                if run.step == 1:
                    raise SystemExit(code)

    with pytest.raises(SystemExit) as exit_:
        script()
    assert exit_.value.code == code
    assert (run.step, run.latest) == (2, 2)


def test_a_save_that_is_asked_for_comes_at_the_next_boundary(environ: dict[str, str]) -> None:
    environ = {**environ, "SPOTPROOF_CHECKPOINT_EVERY_STEPS": "0"}
    loop = Loop()
    with Run.from_env(environ) as run:
        loop.track(run)
        for batch in run.batches(loop.loader):
            loop.learn(batch)
            if run.step == 0:
                run.save()
            if run.step == 1:
                wait_for_commit(run, 1)
    assert run.latest == 3


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ("a lambda", "extra.rule"),
        ("another model", "model.weight"),
    ],
)
def test_state_that_cannot_be_stored_or_does_not_fit_ends_with_78(
    environ: dict[str, str], caplog: pytest.LogCaptureFixture, change: str, says: str
) -> None:
    by_epochs(environ, epochs=1)
    loop = Loop()

    class Extra:
        def state_dict(self) -> dict[str, object]:
            return {"rule": lambda: None}

        def load_state_dict(self, state: object) -> None: ...

    if change == "another model":
        loop.model = nn.Linear(3, 1)
        loop.optimizer = torch.optim.SGD(loop.model.parameters(), lr=0.1, momentum=0.9)
        loop.scheduler = torch.optim.lr_scheduler.StepLR(loop.optimizer, step_size=1, gamma=0.5)

    def train() -> None:
        with Run.from_env(environ) as run:
            loop.track(run)
            if change == "a lambda":
                run.track(extra=Extra())
            for _ in run.batches(loop.loader, epochs=2):
                pytest.fail("not one step may be made")

    with pytest.raises(SystemExit) as end:
        train()
    assert end.value.code == 78
    assert not isinstance(end.value, Preempted)
    assert says in caplog.text


def test_arenas_that_will_not_fit_are_refused_before_the_first_step(
    environ: dict[str, str], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    tight = [MemoryLimit(name="/sys/fs/cgroup/memory.max", limit_bytes=10_000, free_bytes=5_000)]
    monkeypatch.setattr(saver, "memory_limits", lambda: tight)
    loop = Loop()

    def train() -> None:
        with Run.from_env(environ) as run:
            loop.track(run)
            for _ in run.batches(loop.loader):
                pytest.fail("not one step may be made")

    with pytest.raises(SystemExit) as end:
        train()
    assert end.value.code == 78
    assert "/sys/fs/cgroup/memory.max" in caplog.text


def test_several_ranks_without_a_process_group_are_refused(
    environ: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    loop = Loop()

    def train() -> None:
        with Run.from_env({**environ, "WORLD_SIZE": "2", "RANK": "1"}) as run:
            loop.track(run)
            for _ in run.batches(loop.loader):
                pytest.fail("not one step may be made")

    with pytest.raises(SystemExit) as end:
        train()
    assert end.value.code == 78
    assert "init_process_group()" in caplog.text


def test_a_second_loader_is_refused(environ: dict[str, str]) -> None:
    loop = Loop()
    with Run.from_env(environ) as run:
        loop.track(run)
        for batch in run.batches(loop.loader):
            loop.learn(batch)
        with pytest.raises(BadSettings, match="second loader"):
            next(run.batches([1, 2]))


def trained(path: Path) -> Path:
    loop = Loop()
    loop.learn([torch.ones(2, 1)])
    torch.save({"model": loop.model.state_dict(), "optimizer": loop.optimizer.state_dict()}, path)
    return path


def test_others_state_is_where_a_run_begins_and_its_own_where_it_goes_on(
    environ: dict[str, str], tmp_path: Path
) -> None:
    path = trained(tmp_path / "others.pt")
    expected = torch.load(path, weights_only=True)["model"]["weight"].item()
    for begun_with in (path, "no longer there"):
        loop = Loop()
        with Run.from_env(environ, start_from=begun_with) as run:
            loop.track(run)
            step = run.restore()
            if begun_with is path:
                assert (step, loop.model.weight.item()) == (0, expected)
                for batch in run.batches(loop.loader):
                    loop.learn(batch)
                after = loop.model.weight.item()
    assert (step, loop.model.weight.item()) == (3, after)


def test_the_run_spec_can_say_where_a_run_begins(environ: dict[str, str], tmp_path: Path) -> None:
    path, loop = trained(tmp_path / "others.pt"), Loop()
    with Run.from_env({**environ, "SPOTPROOF_START_FROM": str(path)}) as run:
        loop.track(run)
        run.restore()
    assert loop.model.weight.item() == torch.load(path, weights_only=True)["model"]["weight"].item()


def begin(environ: dict[str, str], path: Path, *, restores: bool) -> None:
    loop = Loop()
    with Run.from_env(environ, start_from=path) as run:
        loop.track(run)
        if restores:
            run.restore()
        loop.learn([torch.ones(2, 1)])
        run.boundary()


def test_others_state_that_does_not_fit_ends_the_run_before_its_first_step(
    environ: dict[str, str], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    torch.save({"weight": torch.ones(1, 1)}, tmp_path / "w.pt")
    with pytest.raises(SystemExit) as ended:
        begin(environ, tmp_path / "w.pt", restores=True)
    assert ended.value.code == 78
    assert "not in the checkpoint [bias]" in caplog.text


def test_others_state_is_not_put_over_a_step_that_has_been_made(environ: dict[str, str], tmp_path: Path) -> None:
    path = trained(tmp_path / "others.pt")
    with pytest.raises(CheckpointError, match="training has begun without"):
        begin(environ, path, restores=False)

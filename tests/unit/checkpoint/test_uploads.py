"""The agent's handle and the real uploader process, on a folder."""

from __future__ import annotations

import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, cast

import pytest

from spotproof.checkpoint.arena import Arena
from spotproof.checkpoint.jobs import Begin, Done, GivenUp, Report, Staged, Upload
from spotproof.checkpoint.localcopy import LocalCopies
from spotproof.checkpoint.uploader import Uploader
from spotproof.checkpoint.uploads import Process, Uploads
from spotproof.contract.states import ArenaState, SaveKind
from spotproof.errors import CheckpointError
from tests.fakes.checkpoints import RUN, Rig, bytes_of, image_of, layout_of

PATIENCE_S = 30.0


def begin_of(rig: Rig) -> Begin:
    return Begin(
        run=RUN,
        scratch_dir=str(rig.folder / "scratch"),
        objects_dir=str(rig.folder / "bucket"),
        table_file=str(rig.folder / "table.sqlite"),
        chunk_bytes=1000,
    )


@pytest.fixture
def uploads(rig: Rig) -> Iterator[Uploads]:
    with Uploads(begin_of(rig)) as made:
        yield made


def make_arena(uploads: Uploads, image: bytes) -> Arena:
    [fd] = uploads.make_arenas(count=1, image_bytes=len(image), layout=layout_of(image), metadata=b"m")
    return Arena(fd)


def fill(arena: Arena, image: bytes, *, step: int, generation: int = 1) -> None:
    arena.move(ArenaState.FILLING, generation=generation, step=step)
    with arena.image() as view:
        view[:] = image
    arena.move(ArenaState.COMPLETE)


def job(step: int, *, generation: int = 1, arena: int = 0, until_at: float = 0.0) -> Upload:
    return Upload(
        rank=0, arena=arena, generation=generation, step=step, kind=SaveKind.PERIODIC, samples=step, until_at=until_at
    )


def wait_for(uploads: Uploads, is_it: Callable[[Report], bool]) -> list[Report]:
    seen: list[Report] = []
    while not any(is_it(report) for report in seen):
        ready, _, _ = select.select([uploads], [], [], PATIENCE_S)
        assert ready, f"no report within {PATIENCE_S} s, so far {seen}"
        seen += uploads.reports()
    return seen


def is_final(report: Report) -> bool:
    return isinstance(report, Done | GivenUp)


def final(uploads: Uploads) -> Report:
    return next(report for report in wait_for(uploads, is_final) if is_final(report))


def state_of(arena: Arena) -> ArenaState:
    return arena.header.state


def test_a_complete_arena_is_staged_and_committed_and_free_again(rig: Rig, uploads: Uploads) -> None:
    with make_arena(uploads, image_of(5)) as arena:
        fill(arena, image_of(5), step=5)
        uploads.submit(job(5))
        done, staged = wait_for(uploads, lambda report: isinstance(report, Staged))
        uploads.close()
        assert arena.header.state is ArenaState.FREE
    assert isinstance(staged, Staged)
    assert staged.problem == ""
    assert isinstance(done, Done)
    assert done.is_committed
    assert done.is_pointed
    fetched = rig.fetcher().newest()
    assert fetched is not None
    assert fetched.part.receipt.samples == 5
    assert bytes_of(fetched) == image_of(5)
    assert [copy.step for copy in rig.local.find()] == [5]


def test_a_job_that_does_not_fit_its_arena_is_given_up_and_the_next_one_is_done(rig: Rig, uploads: Uploads) -> None:
    with make_arena(uploads, image_of(5)) as arena:
        fill(arena, image_of(5), step=5)
        uploads.submit(job(4))
        uploads.submit(job(6, arena=3))
        uploads.submit(job(5))
        wrong_step, no_arena, done = wait_for(uploads, lambda report: isinstance(report, Done))[:3]
        assert isinstance(wrong_step, GivenUp)
        assert "complete with generation 1 step 5, asked for was generation 1 step 4" in wrong_step.reason
        assert isinstance(no_arena, GivenUp)
        assert "no arena 3" in no_arena.reason
        assert isinstance(done, Done)


def test_a_superseded_node_is_told_to_stop(rig: Rig, uploads: Uploads) -> None:
    rig.seal(2, start=None)
    with make_arena(uploads, image_of(5)) as arena:
        fill(arena, image_of(5), step=5)
        uploads.submit(job(5))
        last = final(uploads)
        assert isinstance(last, GivenUp)
        assert last.is_superseded


def test_a_full_disk_does_not_stop_the_commit(rig: Rig, uploads: Uploads) -> None:
    (rig.folder / "scratch").write_text("a file is in the way")
    with make_arena(uploads, image_of(5)) as arena:
        fill(arena, image_of(5), step=5)
        uploads.submit(job(5))
        done, staged = wait_for(uploads, lambda report: isinstance(report, Staged))
    assert isinstance(staged, Staged)
    assert "check the scratch folder" in staged.problem
    assert isinstance(done, Done)


def test_a_slow_disk_does_not_hold_up_the_commit(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    is_written = threading.Event()
    stage = LocalCopies.stage

    def slow(*arguments: Any) -> object:
        assert is_written.wait(PATIENCE_S)
        return stage(*arguments)

    monkeypatch.setattr(LocalCopies, "stage", slow)

    def in_a_thread(sock: socket.socket) -> Process:
        ours = sock.dup()
        thread = threading.Thread(target=upload, args=(ours,))
        thread.start()
        return cast("Process", Thread(thread))

    def upload(sock: socket.socket) -> None:
        with sock, Uploader(sock, open_stores=lambda _: (rig.objects, rig.table)) as uploader:
            uploader.run()

    with Uploads(begin_of(rig), spawn=in_a_thread) as uploads, make_arena(uploads, image_of(5)) as arena:
        fill(arena, image_of(5), step=5)
        uploads.submit(job(5))
        [done] = wait_for(uploads, is_final)
        assert isinstance(done, Done)
        assert state_of(arena) is ArenaState.UPLOADING  # the local copy reads it still
        is_written.set()
        [staged] = wait_for(uploads, lambda report: isinstance(report, Staged))
        assert isinstance(staged, Staged)
        uploads.close()
        assert state_of(arena) is ArenaState.FREE


@dataclass
class Thread:
    """An uploader in this process, in the form of a process."""

    thread: threading.Thread
    pid: int = 0
    returncode: int = 0

    def wait(self, timeout: float | None = None) -> int:
        self.thread.join(timeout)
        return 0

    def kill(self) -> None:
        """It ends with its socket."""


def test_a_killed_uploader_is_started_again_and_finishes_what_was_asked(rig: Rig, uploads: Uploads) -> None:
    with make_arena(uploads, image_of(5)) as arena:
        fill(arena, image_of(5), step=5)
        os.kill(uploads.pid, signal.SIGSTOP)  # it cannot have begun when it dies
        dead = uploads.pid
        uploads.submit(job(5))
        os.kill(uploads.pid, signal.SIGKILL)
        done = final(uploads)
        assert isinstance(done, Done)
        assert uploads.pid != dead
        uploads.close()
        assert arena.header.state is ArenaState.FREE
    rig.assert_pointer_names_whole_data()


def test_an_uploader_that_cannot_live_is_reported_and_not_started_for_ever(rig: Rig) -> None:
    def spawn(sock: socket.socket) -> Process:
        return subprocess.Popen([sys.executable, "-c", "raise SystemExit(3)"])

    with Uploads(begin_of(rig), spawn=spawn) as uploads, pytest.raises(CheckpointError, match="last with 3"):
        wait_for(uploads, is_final)


def test_what_was_asked_is_finished_when_the_agent_ends(rig: Rig, uploads: Uploads) -> None:
    with make_arena(uploads, image_of(5)) as arena:
        fill(arena, image_of(5), step=5)
        uploads.submit(job(5))
        uploads.close()
    rig.assert_pointer_names_whole_data()
    assert rig.stores.pointers.read(RUN) is not None


def test_a_signal_to_everybody_does_not_end_an_upload(rig: Rig, uploads: Uploads) -> None:
    with make_arena(uploads, image_of(5)) as arena:
        fill(arena, image_of(5), step=5)
        uploads.submit(job(5))
        wait_for(uploads, is_final)  # it runs, so that it has set its signals
        pid = uploads.pid
        os.kill(pid, signal.SIGTERM)
        os.kill(pid, signal.SIGINT)
        fill(arena_when_free(arena), image_of(6), step=6)
        uploads.submit(job(6))
        assert isinstance(final(uploads), Done)
        assert uploads.pid == pid


def arena_when_free(arena: Arena) -> Arena:
    until = time.monotonic() + PATIENCE_S
    while arena.header.state is not ArenaState.FREE:
        assert time.monotonic() < until
        time.sleep(0.001)
    return arena


def test_one_step_asked_twice_is_one_job(rig: Rig, uploads: Uploads) -> None:
    with make_arena(uploads, image_of(5)) as arena:
        fill(arena, image_of(5), step=5)
        uploads.submit(job(5))
        uploads.submit(job(5))
        assert len(uploads.pending) == 1
        wait_for(uploads, is_final)
        assert not uploads.pending


def test_a_dead_trainers_arenas_are_given_back(rig: Rig, uploads: Uploads) -> None:
    fds = uploads.make_arenas(count=2, image_bytes=3500, layout=layout_of(image_of(5)), metadata=b"m")
    with Arena(fds[0]) as filling, Arena(fds[1]) as untold:
        filling.move(ArenaState.FILLING, generation=1, step=6)
        fill(untold, image_of(5), step=5)
        uploads.reclaim(0)
        assert [filling.header.state, untold.header.state] == [ArenaState.FREE, ArenaState.FREE]


def test_a_deadline_that_has_passed_ends_the_trying(rig: Rig, uploads: Uploads) -> None:
    runs = rig.folder / "bucket" / "runs"
    runs.write_text("a file is in the way: the bucket does not answer")
    with make_arena(uploads, image_of(5)) as arena:
        fill(arena, image_of(5), step=5)
        uploads.submit(job(5, until_at=1.0))
        assert isinstance(final(uploads), GivenUp)


def test_new_arenas_take_the_place_of_the_old_ones(rig: Rig, uploads: Uploads) -> None:
    make_arena(uploads, image_of(5)).close()
    larger = image_of(6, size=5000)
    with make_arena(uploads, larger) as arena:
        fill(arena, larger, step=6)
        uploads.submit(job(6))
        wait_for(uploads, is_final)
    fetched = rig.fetcher().newest()
    assert fetched is not None
    assert bytes_of(fetched) == larger

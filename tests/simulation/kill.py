"""kill -9 of trainer, agent and uploader at every write boundary of the data path; then damage of every kind.

    python -m tests.simulation.kill --count 300 --seed 1

One trial is one tiny training with the real agent, the real `Run` and the real uploader on a folder. One of the three
is killed at one boundary: before or after a write, fsync, rename, link or mkdir, in the middle of a file or of a copy
into the arena, before or after each object put, table write, arena move and message. What died is started again, as a
node's service manager does, until the training is through. Checked: every restore is bit-equal to the uninterrupted
training at that step, no restore is older than the pointer was, and the end is the end of the uninterrupted training.

Boundaries are wrapped from outside, in the process that is to die; the product knows nothing of this. Every process is
forked from one warm parent without threads, because importing torch costs more than a trial.

For each four kills one corruption follows, see tests/simulation/corruptions.py.
"""

from __future__ import annotations

import argparse
import hashlib
import itertools
import json
import mmap
import os
import random
import select
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from spotproof.agent.main import run_agent
from spotproof.checkpoint import commit as committing
from spotproof.checkpoint import jobs, uploads
from spotproof.checkpoint import restore as restoring
from spotproof.checkpoint.arena import Arena
from spotproof.checkpoint.channel import Channel
from spotproof.checkpoint.fetch import Fetcher
from spotproof.checkpoint.memcopy import Mover
from spotproof.checkpoint.state import capture
from spotproof.checkpoint.uploader import Uploader, open_stores
from spotproof.contract import layout, names
from spotproof.run import Run
from spotproof.store import folder as foldering
from spotproof.store.checkpoints import Checkpoints
from spotproof.store.folder import FolderObjects
from spotproof.store.local import LocalTable
from spotproof.store.members import Memberships
from spotproof.store.pointer import Pointers
from spotproof.store.starts import Stores
from tests.fakes.training import Training

RUN = "kill"
STEPS = 5
STEP_S = 0.01
TRIAL_S = 30.0
HOME_S = 1.0
STARTS_MAX = 25  # one kill needs a handful
_LOOK_S = 0.004
_COUNT = struct.Struct("<Q")
_LABEL_AT, _LABEL_BYTES = 64, 200

FILE_CALLS = ("fsync", "rename", "replace", "link", "mkdir", "unlink", "rmdir", "pwrite", "ftruncate")


class Role(StrEnum):
    """Who is killed."""

    TRAINER = "trainer"
    AGENT = "agent"
    UPLOADER = "uploader"


class Fuse:
    """Counts the boundaries that a process passes, in memory that its death does not take away, and may end it."""

    def __init__(self, at: int = 0) -> None:
        self._at = at  # 0: only count
        self._shared = mmap.mmap(-1, 4096)

    @property
    def count(self) -> int:
        """Boundaries passed so far."""
        return int(_COUNT.unpack_from(self._shared, 0)[0])

    @property
    def label(self) -> str:
        """The newest boundary."""
        return self._shared[_LABEL_AT : _LABEL_AT + _LABEL_BYTES].rstrip(b"\0").decode()

    def pass_by(self, label: str) -> bool:
        """Count; True if this is the boundary to die at."""
        count = self.count + 1
        _COUNT.pack_into(self._shared, 0, count)
        if self._at and count <= self._at:
            self._shared[_LABEL_AT : _LABEL_AT + _LABEL_BYTES] = label.encode()[:_LABEL_BYTES].ljust(
                _LABEL_BYTES, b"\0"
            )
        return count == self._at

    def burn(self, label: str) -> None:
        """Count, and die here if it is time."""
        if self.pass_by(label):
            os.kill(os.getpid(), signal.SIGKILL)


def arm(fuse: Fuse) -> None:
    """Put boundaries around everything that leaves this process. For a process that ends soon: nothing is undone."""
    for name in FILE_CALLS:
        setattr(os, name, _around(fuse, f"os.{name}", getattr(os, name)))
    os.write = _torn(fuse, os.write)
    for owner, calls in (
        (LocalTable, ("write", "transact")),
        (FolderObjects, ("put", "put_if_absent")),
        (Arena, ("move",)),
        (Channel, ("send",)),
        (Tensor, ("copy_",)),
        (Mover, ("move",)),
        (jobs, ("send",)),
    ):
        for name in calls:
            label = f"{getattr(owner, '__name__', owner)}.{name}"
            setattr(owner, name, _around(fuse, label, getattr(owner, name)))


def _around(fuse: Fuse, label: str, call: Callable[..., Any]) -> Callable[..., Any]:
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        fuse.burn(f"before {label}")
        answer = call(*args, **kwargs)
        fuse.burn(f"after {label}")
        return answer

    return wrapped


def _torn(fuse: Fuse, write: Callable[[int, Any], int]) -> Callable[[int, Any], int]:
    """Dies with half of the bytes written."""

    def wrapped(handle: int, data: Any) -> int:
        if fuse.pass_by("inside os.write"):
            write(handle, memoryview(data)[: len(data) // 2])
            os.kill(os.getpid(), signal.SIGKILL)
        return write(handle, data)

    return wrapped


def fingerprint(training: Training) -> str:
    """Digest of the whole state: tensors, schedule, generators."""
    captured = capture(training.objects, counters={})
    seen = hashlib.sha256(captured.document)
    for key, tensor in captured.tensors.items():
        seen.update(key.encode())
        seen.update(tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return seen.hexdigest()


def uninterrupted() -> list[str]:
    """Fingerprints after 0, 1, ... STEPS steps."""
    training = Training()
    prints = [fingerprint(training)]
    for _ in range(STEPS):
        training.step()
        prints.append(fingerprint(training))
    return prints


@dataclass
class Site:
    """One trial's folder and what the trainers told."""

    folder: Path
    expected: list[str]

    @property
    def environ(self) -> dict[str, str]:
        return {
            "SPOTPROOF_LOCAL_DIR": str(self.folder),
            "SPOTPROOF_RUN": RUN,
            "SPOTPROOF_RUNTIME_DIR": str(self.folder / "run"),
            "SPOTPROOF_CHECKPOINT_EVERY_STEPS": "1",
        }

    def fetcher(self, table: LocalTable) -> Fetcher:
        stores = Stores(
            objects=FolderObjects(self.folder / names.LOCAL_OBJECTS),
            checkpoints=Checkpoints(table),
            pointers=Pointers(table),
            memberships=Memberships(table),
        )
        return Fetcher(stores=stores, run=RUN, clock=time.time)

    def pointed(self) -> int:
        """The step that the pointer names now, 0 for none."""
        if not (self.folder / names.LOCAL_TABLE).exists():
            return 0
        with LocalTable(self.folder / names.LOCAL_TABLE) as table:
            pointer = Pointers(table).read(RUN)
        return 0 if pointer is None else pointer.step

    def say(self, line: str) -> None:
        with (self.folder / "said").open("a") as file:
            file.write(line + "\n")

    def said(self) -> list[str]:
        path = self.folder / "said"
        return path.read_text().splitlines() if path.exists() else []

    def log(self) -> str:
        path = self.folder / "log"
        return path.read_text()[-3000:] if path.exists() else ""


def train(site: Site, floor: int) -> int:
    """The trainer: goes on from what is restored, which is checked here, to the last step."""
    training = Training()
    with Run.from_env({"SPOTPROOF_RUNTIME_DIR": site.environ["SPOTPROOF_RUNTIME_DIR"]}) as run:
        run.track(**training.objects)
        step = run.restore()
        if fingerprint(training) != site.expected[step]:
            site.say(f"WRONG restore of step {step}")
        if step < floor:
            site.say(f"LOST: restored step {step}, the pointer had named {floor}")
        site.say(f"restored {step}")
        while run.step < STEPS:
            training.step()
            time.sleep(STEP_S)
            run.boundary()
    return 0


def check_end(site: Site) -> int:
    """In a process of its own: the newest checkpoint is the end of the uninterrupted training."""
    with LocalTable(site.folder / names.LOCAL_TABLE) as table:
        fetched = site.fetcher(table).newest()
    if fetched is None or fetched.order[1] != STEPS:
        site.say(f"LOST: the end is {None if fetched is None else fetched.order}, not step {STEPS}")
        return 1
    training = Training(seed=0)
    with mmap.mmap(fetched.image_fd, fetched.part.image.bytes, access=mmap.ACCESS_COPY) as image:
        restoring.restore(training.objects, image, layout.decode(fetched.layout), step=STEPS)
    if fingerprint(training) != site.expected[STEPS]:
        site.say("WRONG end")
    return 0


class Elsewhere:
    """A process that the parent has forked for somebody else; it looks like a subprocess.Popen."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._handle = os.pidfd_open(pid)

    def wait(self, timeout: float | None = None) -> int:
        if not select.select([self._handle], [], [], timeout)[0]:
            raise subprocess.TimeoutExpired("uploader", timeout or 0)
        self.returncode = 0
        return 0

    def kill(self) -> None:
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._handle, signal.SIGKILL)


@dataclass
class Trial:
    """The parent's side of one trial: starts processes, starts again what died, ends everything."""

    site: Site
    role: Role
    fuse: Fuse
    control: socket.socket | None = None
    alive: dict[int, Role] = field(default_factory=dict)
    armed: set[Role] = field(default_factory=set)
    is_trained: bool = False
    trained_at: float = 0.0
    starts: int = 0
    is_over: bool = False

    def run(self) -> str:
        """'' if all was well, else what was not."""
        problem = self.play()
        if problem:
            return problem
        if self._wait_for(self._fork(lambda: check_end(self.site))) != 0:
            self.site.say(f"LOST: the end cannot be loaded\n{self.site.log()}")
        return "\n".join(line for line in self.site.said() if not line.startswith("restored"))

    def play(self) -> str:
        """Until everybody has ended; '' or that it did not come to that."""
        until = time.monotonic() + TRIAL_S
        try:
            self._start_agent()
            self._start_trainer()
            while not self.is_over and time.monotonic() < until and self.starts < STARTS_MAX:
                self._serve()
                self._reap()
                self._send_home()
        finally:
            self._end()
        if not self.is_over:
            return f"stuck after {self.starts} starts within {TRIAL_S} s\n{self.site.log()}"
        return ""

    def _start_agent(self) -> None:
        if self.control is not None:
            self.control.close()
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)

        def spawn(sock: socket.socket) -> uploads.Process:
            socket.send_fds(theirs, [b"uploader"], [sock.fileno()])
            return Elsewhere(int(theirs.recv(32)))

        def body() -> int:
            ours.close()
            uploads.spawn_uploader = spawn
            return run_agent(self.site.environ)

        self._start(Role.AGENT, body)
        theirs.close()
        self.control = ours

    def _start_trainer(self) -> None:
        floor = self.site.pointed()
        self._start(Role.TRAINER, lambda: train(self.site, floor))

    def _start_uploader(self, sock: socket.socket) -> int:
        def body() -> int:
            with Uploader(sock, open_stores=open_stores) as uploader:
                uploader.run()
            return 0

        return self._start(Role.UPLOADER, body)

    def _start(self, role: Role, body: Callable[[], int]) -> int:
        """Fork; the first process of the role that is to die carries the fuse."""
        is_armed = role is self.role and role not in self.armed
        self.armed.add(role)

        def armed() -> int:
            arm(self.fuse)
            return body()

        self.starts += 1
        pid = self._fork(armed if is_armed else body)
        self.alive[pid] = role
        return pid

    def _fork(self, body: Callable[[], int]) -> int:
        sys.stdout.flush()
        pid = os.fork()
        if pid:
            return pid
        code = 1
        try:
            log = os.open(self.site.folder / "log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            os.dup2(log, 1)
            os.dup2(log, 2)
            code = body()
        except BaseException:  # noqa: BLE001 -- the boundary of a process: its end says it all
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(code)

    def _serve(self) -> None:
        if self.control is None or not select.select([self.control], [], [], _LOOK_S)[0]:
            return
        try:
            data, fds, _, _ = socket.recv_fds(self.control, 32, 1)
        except ConnectionResetError:
            data, fds = b"", []
        if not data:
            self.control.close()
            self.control = None
            return
        with socket.socket(fileno=fds[0]) as sock:
            pid = self._start_uploader(sock)
        with suppress(BrokenPipeError):
            self.control.send(str(pid).encode())

    def _reap(self) -> None:
        while self.alive:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                return
            role = self.alive.pop(pid, None)
            code = os.waitstatus_to_exitcode(status)
            if role is Role.TRAINER:
                self._trainer_ended(code)
            elif role is Role.AGENT:
                self._agent_ended()

    def _trainer_ended(self, code: int) -> None:
        self.is_trained, self.trained_at = code == 0, time.monotonic()
        if not self.is_trained:
            self._start_trainer()
        elif Role.AGENT not in self.alive.values():
            self.is_over = True

    def _send_home(self) -> None:
        """An agent that was started when its trainer had just finished would wait a minute for another one."""
        if self.is_trained and time.monotonic() > self.trained_at + HOME_S:
            for pid in [pid for pid, role in self.alive.items() if role is Role.AGENT]:
                os.kill(pid, signal.SIGTERM)

    def _agent_ended(self) -> None:
        if self.is_trained:
            self.is_over = True
        else:
            self._start_agent()

    def _end(self) -> None:
        if self.control is not None:
            self.control.close()
        for pid in self.alive:
            if not self.is_over:
                os.kill(pid, signal.SIGKILL)
            self._wait_for(pid)
        self.alive.clear()

    def _wait_for(self, pid: int) -> int:
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


@contextmanager
def folder() -> Iterator[Path]:
    """A folder in memory where there is one: the boundaries count, not the disk."""
    base = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    made = Path(tempfile.mkdtemp(prefix="spotproof-kill-", dir=base))
    try:
        yield made
    finally:
        shutil.rmtree(made, ignore_errors=True)


@dataclass(frozen=True)
class Outcome:
    """One trial."""

    role: Role
    at: int
    died_at: str
    problem: str
    seconds: float


def sabotage_generators() -> None:
    """The generators are not restored."""
    restoring._restore_rng = lambda body: None


def sabotage_chunks() -> None:
    """No chunk is ever sent; part, manifest and pointer are."""
    committing.Committer._send = lambda self, source, listed, until: None  # type: ignore[method-assign]


def sabotage_digests() -> None:
    """What is read is believed."""
    foldering.checked = lambda key, data, *, digest: data  # type: ignore[attr-defined]


SABOTAGES: dict[str, Callable[[], None]] = {
    "generators": sabotage_generators,
    "chunks": sabotage_chunks,
    "digests": sabotage_digests,
}


def play(role: Role, at: int, expected: list[str]) -> tuple[Outcome, Fuse]:
    """One trial that kills `role` at boundary `at` (0: nobody, only count)."""
    began = time.monotonic()
    fuse = Fuse(at)
    with folder() as where:
        problem = Trial(site=Site(where, expected), role=role, fuse=fuse).run()
    died_at = fuse.label if fuse.count >= at else "(never reached)"
    return Outcome(role=role, at=at, died_at=died_at, problem=problem, seconds=time.monotonic() - began), fuse


def boundaries(expected: list[str]) -> dict[Role, int]:
    """How many boundaries each role passes in a training without a kill."""
    found = {}
    for role in Role:
        outcome, fuse = play(role, 0, expected)
        if outcome.problem:
            raise AssertionError(f"without any kill: {outcome.problem}")
        found[role] = fuse.count
    return found


def chosen(counts: dict[Role, int], count: int, seed: int) -> list[tuple[Role, int]]:
    """`count` places to kill at, seeded: every one of them once before any is taken twice, roles in turn."""
    chance = random.Random(seed)
    decks = {role: chance.sample(range(1, total + 1), total) for role, total in counts.items()}
    endless = {role: itertools.cycle(deck) for role, deck in decks.items()}
    # The uploader has most of the boundaries and gets half of the trials.
    turns = itertools.cycle((Role.UPLOADER, Role.TRAINER, Role.UPLOADER, Role.AGENT))
    return [(role, next(endless[role])) for role, _ in zip(turns, range(count), strict=False)]


def main(arguments: list[str] | None = None) -> int:
    """Play and print; 0 if nothing was lost or wrong."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--count", type=int, default=30)
    parser.add_argument("--corruptions", type=int, help="default: a quarter of the kills")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", help="ROLE:BOUNDARY of one trial to play again")
    parser.add_argument("--sabotage", choices=sorted(SABOTAGES), help="break the product on purpose: this must fail")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    expected = uninterrupted()
    if options.sabotage:
        SABOTAGES[options.sabotage]()
    if options.only:
        role, _, at = options.only.partition(":")
        outcome, _ = play(Role(role), int(at), expected)
        print(json.dumps(outcome.__dict__, indent=1))
        return 1 if outcome.problem else 0
    bad = kill(options.count, options.seed, expected) if options.count else 0
    damages = options.count // 4 if options.corruptions is None else options.corruptions
    return 1 if bad + corrupt(damages, options.seed) else 0


def kill(count: int, seed: int, expected: list[str]) -> int:
    """Play `count` kills; how many ended wrongly."""
    counts = boundaries(expected)
    print("boundaries: " + ", ".join(f"{role} {total}" for role, total in counts.items()), flush=True)
    bad, reached = 0, 0
    for role, at in chosen(counts, count, seed):
        outcome, _ = play(role, at, expected)
        reached += outcome.died_at != "(never reached)"
        if outcome.problem:
            bad += 1
            print(f"{role} killed at {at} ({outcome.died_at}), {outcome.seconds:.1f} s: {outcome.problem}", flush=True)
    print(f"{count} trials, {reached} kills: {bad} with a wrong restore or a lost commit", flush=True)
    return bad


def corrupt(count: int, seed: int) -> int:
    """Play `count` corruptions; how many ended wrongly."""
    from tests.simulation import corruptions  # it is made of this module

    with folder() as where:
        bad = corruptions.play(count, seed, where, print)
    print(corruptions.summary(bad, count))
    return sum(bad.values())


if __name__ == "__main__":
    raise SystemExit(main())

"""A long training that saves every 2 s while things go wrong: nothing grows, nothing is left behind.

    python -m tests.simulation.soak --seconds 1800

One training with the real agent, `Run` and uploader on real files. The bucket refuses, is slow, and stores without
saying so; the uploader is killed again and again, the agent now and then, and what died is started again. 24 times
each process is looked at: resident memory, threads, open files, memfds, and the folder for files that no save owns.
Checked: of each role the levels of the last third are those of the first one after the warm-up; the
checkpoint that the end leaves is whole and holds the last step; no process and no unfinished file is left. Unfinished
multipart uploads cannot be: each chunk is one PUT (docs/decisions/uploads-from-memory.md), and the folder's twin of
them, files aside, is counted.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import torch

from spotproof.checkpoint.jobs import Begin
from spotproof.checkpoint.uploader import Uploader
from spotproof.contract import names
from spotproof.errors import Unavailable
from spotproof.run import Run
from spotproof.store.folder import FolderObjects
from spotproof.store.local import LocalTable
from spotproof.store.objects import NO_DEADLINE, Buffer, Objects
from spotproof.store.table import Table
from tests.fakes.training import Training
from tests.simulation.kill import RUN, Fuse, Role, Site, Trial, folder

SAVE_EVERY_S = 2
STEP_S = 0.02
LOOKS = 24  # of each process, over the whole time
WARM_UP = 4  # of the looks: everybody is there, and nobody is killed yet
UPLOADER_DIES, AGENT_DIES = 8, 2  # times
REFUSED, LOST_ANSWER, SLOW = 0.02, 0.01, 0.02  # shares of the puts
GROWTH_SHARE, GROWTH_KB = 0.03, 6_000  # of resident memory: allocators breathe
SPARE = 2  # files and threads that come and go with a request
END_WITHIN_S = 60.0
ASIDE_AT_ONCE = 40  # of uploaders that were killed in the middle of their puts; they go after an hour


class Flaky(FolderObjects):
    """A bucket on a bad day."""

    def __init__(self, root: Path, chance: random.Random, *, leaks: bool = False) -> None:
        super().__init__(root)
        self._chance, self._leaks = chance, leaks

    def put(self, key: str, data: Buffer, *, digest: str, until: float = NO_DEADLINE) -> None:
        """See `Objects`."""
        if self._leaks:
            os.memfd_create("forgotten")
        roll = self._chance.random()
        if roll < REFUSED:
            raise Unavailable(f"{key}: 503 Slow Down, for a minute")
        if roll < REFUSED + SLOW:
            time.sleep(0.2)
        super().put(key, data, digest=digest, until=until)
        if roll > 1 - LOST_ANSWER:
            raise Unavailable(f"{key}: the answer was lost")


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """One process at one moment."""

    rss_kb: int
    threads: int
    files: int
    memfds: int


def look_at(pid: int) -> Look | None:
    """None if it has just ended."""
    base = Path("/proc") / str(pid)
    try:
        status = dict(line.split(":\t", 1) for line in (base / "status").read_text().splitlines() if ":\t" in line)
        targets = []
        for entry in (base / "fd").iterdir():
            try:
                targets.append(os.readlink(entry))
            except FileNotFoundError:  # closed meanwhile
                continue
        rss_kb = int(status["VmRSS"].split()[0])
    except (FileNotFoundError, ProcessLookupError, KeyError):
        return None
    memfds = sum("memfd:" in target for target in targets)
    return Look(rss_kb=rss_kb, threads=int(status["Threads"]), files=len(targets), memfds=memfds)


@dataclass
class Looked(Site):
    """The folder of the training; it saves by time."""

    seconds: float = 20
    leaks: str = ""  # the role that forgets memory, on purpose

    @property
    def is_over_at(self) -> Path:
        return self.folder / "over"

    def commits(self) -> int:
        checkpoints = self.folder / names.LOCAL_OBJECTS / "runs" / RUN / "checkpoints"
        return sum(1 for _ in checkpoints.glob("*/manifest.json"))

    @property
    def environ(self) -> dict[str, str]:
        often = max(1, round(min(SAVE_EVERY_S, self.seconds / 40) / STEP_S))
        by_time = {"SPOTPROOF_CHECKPOINT_EVERY_S": str(SAVE_EVERY_S), "SPOTPROOF_CHECKPOINT_EVERY_STEPS": "0"}
        by_step = {"SPOTPROOF_CHECKPOINT_EVERY_STEPS": str(often)}
        return super().environ | (by_time if self.seconds >= 40 * SAVE_EVERY_S else by_step)


def train(site: Looked) -> int:
    """The trainer: until it is told that the time is over; then it says its last step."""
    training = Training(total_steps=10_000_000)
    with Run.from_env({"SPOTPROOF_RUNTIME_DIR": site.environ["SPOTPROOF_RUNTIME_DIR"]}) as run:
        run.track(**training.objects)
        run.restore()
        while not site.is_over_at.exists():
            training.step()
            del training.losses[:-1]
            time.sleep(STEP_S)
            run.boundary()
            if site.leaks == Role.TRAINER:
                os.memfd_create("forgotten")
        site.say(f"trained {run.step}")
    return 0


@dataclass
class Soak(Trial):
    """Starts, kills, looks, judges."""

    seconds: float = 20
    chance: random.Random = field(default_factory=random.Random)
    looks: dict[Role, list[tuple[float, Look]]] = field(default_factory=lambda: {role: [] for role in Role})
    aside: list[int] = field(default_factory=list)
    kills: dict[Role, int] = field(default_factory=lambda: dict.fromkeys(Role, 0))
    code: int | None = None

    def go(self) -> str:
        """'' if nothing grew and nothing was left, else what."""
        self.armed = set(Role)  # nobody carries a fuse
        site, until = self.site, time.monotonic() + END_WITHIN_S
        assert isinstance(site, Looked)
        due: list[tuple[float, Callable[[], None]]] = []
        has_begun = False
        try:
            self._start_agent()
            self._start_trainer()
            while not self.is_over and time.monotonic() < until:
                self._serve()
                self._reap()
                self._send_home()
                if not has_begun and site.commits():
                    has_begun, due = True, self._plan(time.monotonic())
                    until += self.seconds
                while due and time.monotonic() >= due[0][0]:
                    due.pop(0)[1]()
                if has_begun and not due:
                    site.is_over_at.touch()
        finally:
            self._end()
        if not self.is_over or self.code != 0:
            return f"it did not end well: {self.code}\n{self.site.log()}"
        return "; ".join([*self._growth(), *self._left()])

    def _plan(self, began: float) -> list[tuple[float, Callable[[], None]]]:
        """Looks in between the kills, so that a process has had time to come to rest."""
        step = self.seconds / LOOKS
        events: list[tuple[float, Callable[[], None]]] = []
        events += [(began + step * number, self._look) for number in range(1, LOOKS)]
        for role, times in ((Role.UPLOADER, UPLOADER_DIES), (Role.AGENT, AGENT_DIES)):
            every = (LOOKS - WARM_UP) // times
            for number in range(times):
                at = began + step * (WARM_UP + every * number + every / 2 + 0.1)
                events.append((at, lambda role=role: self._kill(role)))  # type: ignore[misc]
        return sorted(events, key=lambda event: event[0])

    def _look(self) -> None:
        for pid, role in self.alive.items():
            found = look_at(pid)
            if found is not None:
                self.looks[role].append((time.monotonic(), found))
        aside = self.site.folder / names.LOCAL_OBJECTS
        self.aside.append(sum(1 for path in aside.rglob(".*/*") if path.is_file()))

    def _kill(self, role: Role) -> None:
        for pid in [pid for pid, who in self.alive.items() if who is role]:
            os.kill(pid, signal.SIGKILL)
            self.kills[role] += 1

    def _start_trainer(self) -> None:
        site = self.site
        assert isinstance(site, Looked)
        self._start(Role.TRAINER, lambda: train(site))

    def _trainer_ended(self, code: int) -> None:
        self.code, self.is_trained, self.trained_at = code, True, time.monotonic()
        if Role.AGENT not in self.alive.values():
            self.is_over = True

    def _start_uploader(self, sock: object) -> int:
        site, seed = self.site, self.chance.random()
        assert isinstance(site, Looked)

        def stores(_: Begin) -> tuple[Objects, Table]:
            chance = random.Random(seed)
            objects = Flaky(site.folder / names.LOCAL_OBJECTS, chance, leaks=site.leaks == Role.UPLOADER)
            return objects, LocalTable(site.folder / names.LOCAL_TABLE)

        def body() -> int:
            with Uploader(sock, open_stores=stores) as uploader:  # type: ignore[arg-type]
                uploader.run()
            return 0

        return self._start(Role.UPLOADER, body)

    # ---------------------------------------------------------------------------------------------- judging
    def _growth(self) -> list[str]:
        """What is higher in the last third than in the first one after the warm-up."""
        found = []
        for role, looks in self.looks.items():
            early, late = thirds([look for _, look in looks])
            if not early or not late:
                found.append(f"{role}: too few looks ({len(looks)})")
                continue
            rss = [statistics.median(look.rss_kb for look in third) for third in (early, late)]
            if rss[1] > rss[0] * (1 + GROWTH_SHARE) + GROWTH_KB:
                found.append(f"{role}: resident memory grew from {rss[0]:.0f} to {rss[1]:.0f} kB")
            for name in ("threads", "files", "memfds"):
                levels = [statistics.median(getattr(look, name) for look in third) for third in (early, late)]
                spare = 0 if name == "memfds" else SPARE
                if levels[1] > levels[0] + spare:
                    found.append(f"{role}: {name} grew from {levels[0]:.0f} to {levels[1]:.0f}")
        return found

    def _left(self) -> list[str]:
        """What the end leaves, and that it is the end."""
        found = []
        if any(count > ASIDE_AT_ONCE for count in self.aside):
            found.append(f"files aside in the bucket: {self.aside}")
        (trained,) = [int(line.split()[1]) for line in self.site.said() if line.startswith("trained")]
        with LocalTable(self.site.folder / names.LOCAL_TABLE) as table:
            fetched = self.site.fetcher(table).newest()
        if fetched is None or fetched.order[1] != trained:
            found.append(f"the last checkpoint is {None if fetched is None else fetched.order}, trained to {trained}")
        if fetched is not None:
            os.close(fetched.image_fd)
        return found


def thirds(looks: list[Look]) -> tuple[list[Look], list[Look]]:
    """The first third after the warm-up, and the last one."""
    rest = looks[WARM_UP:]
    size = len(rest) // 3
    return rest[:size], rest[len(rest) - size :]


def levels_of(looks: Mapping[Role, list[tuple[float, Look]]]) -> str:
    """Where each role ended, for people."""
    said = []
    for role, found in looks.items():
        if found:
            last = found[-1][1]
            said.append(
                f"{role} {last.rss_kb // 1024} MiB, {last.threads} threads, {last.files} files, {last.memfds} memfds"
            )
    return "; ".join(said)


def main(arguments: list[str] | None = None) -> int:
    """Play and print; 0 if nothing grew and nothing was left."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--seconds", type=float, default=1800)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--leak", choices=["trainer", "uploader"], default="", help="on purpose: it must be noticed")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    with folder() as where:
        site = Looked(where, [], seconds=options.seconds, leaks=options.leak)
        chance = random.Random(options.seed)
        soak = Soak(site=site, role=Role.UPLOADER, fuse=Fuse(), seconds=options.seconds, chance=chance)
        problem = soak.go()
        commits = site.commits()
    print(levels_of(soak.looks))
    killed = ", ".join(f"{role} {count}" for role, count in soak.kills.items() if count)
    print(
        f"{options.seconds:.0f} s, {commits} commits, killed: {killed}: {problem or 'nothing grew, nothing was left'}"
    )
    return 1 if problem else 0


if __name__ == "__main__":
    raise SystemExit(main())

"""Every process of a rehearsal, owned: what is started here ends with its owner, on exit, on Ctrl-C and on SIGTERM."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import Self

from rehearsal.warden import descendants, signal_all

WARDEN = Path(__file__).with_name("warden.py")


class Child:
    """One command and everything below it, however deep or detached. Made by `Processes.start`."""

    def __init__(self, warden: subprocess.Popen[bytes], lifeline: int) -> None:
        self.warden = warden
        self._lifeline = lifeline

    def pids(self) -> list[int]:
        """The command's processes that are alive now; the warden is not one of them."""
        return descendants(self.warden.pid)

    def poll(self) -> int | None:
        """Exit status of the command, None while it or an orphan of it lives."""
        return self.warden.poll()

    def wait(self, timeout_s: float) -> int:
        """Exit status of the command. Raises subprocess.TimeoutExpired; the command goes on then."""
        return self.warden.wait(timeout_s)

    def stop(self) -> None:
        """Freezes all of them (SIGSTOP), as a hung host does. Their sockets stay open."""
        # A second look: what was forked between the listing and the signal.
        for _ in range(2):
            signal_all(self.pids(), signal.SIGSTOP)

    def go_on(self) -> None:
        """Wakes what `stop` froze."""
        signal_all(self.pids(), signal.SIGCONT)

    def kill(self) -> None:
        """SIGKILL to every process of the command. Returns when all are gone; runs any number of times."""
        signal_all(self.pids(), signal.SIGKILL)
        with contextlib.suppress(ProcessLookupError):
            self.warden.terminate()
        try:
            self.warden.wait(10)
        except subprocess.TimeoutExpired:
            signal_all(self.pids(), signal.SIGKILL)
            self.warden.kill()
            self.warden.wait(5)
        if self._lifeline >= 0:
            os.close(self._lifeline)
            self._lifeline = -1


class Processes:
    """Starts commands and ends them all on exit. Safe from several threads."""

    def __init__(self) -> None:
        self._children: list[Child] = []
        self._lock = threading.Lock()
        self._closed = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def start(
        self,
        command: Sequence[str],
        *,
        env: Mapping[str, str],
        cwd: Path,
        log: Path,
        stdin: int | None = None,
        pass_fds: Sequence[int] = (),
    ) -> Child:
        """Starts `command` with exactly `env`, its output appended to `log`.

        The first end of a pipe stays here; when this process dies, by whatever, the other end closes and the warden
        kills the command's whole tree.
        """
        theirs, ours = os.pipe()
        try:
            with self._lock, log.open("ab") as output:
                if self._closed:
                    raise RuntimeError(f"cannot start {command[0]}: the rehearsal is ending")
                descriptors = ",".join(str(fd) for fd in (theirs, *pass_fds))
                warden = subprocess.Popen(
                    [sys.executable, "-I", "-S", str(WARDEN), descriptors, "--", *command],
                    env=dict(env),
                    cwd=cwd,
                    stdin=subprocess.DEVNULL if stdin is None else stdin,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    pass_fds=(theirs, *pass_fds),
                    start_new_session=True,
                )
                child = Child(warden, ours)
                self._children.append(child)
                return child
        finally:
            os.close(theirs)

    def forget_ended(self) -> None:
        """Lets go of children that have ended, so that a long rehearsal does not collect them."""
        with self._lock:
            self._children = [child for child in self._children if child.poll() is None]

    def close(self) -> None:
        """Kills all that is left. Nothing can be started afterwards."""
        with self._lock:
            self._closed = True
            children, self._children = self._children, []
        for child in children:
            child.kill()


@contextlib.contextmanager
def terminated_like_ctrl_c() -> Iterator[None]:
    """SIGTERM raises SystemExit in the main thread, so that every context manager ends what it owns.

    Outside the main thread (a test runner's worker) it changes nothing: the wardens' lifelines still hold.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def leave(number: int, _frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    before = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def poll_until(ready: Callable[[], object], *, what: str, timeout_s: float = 30.0, every_s: float = 0.05) -> None:
    """Calls `ready()` until it is true. Raises TimeoutError that names `what`."""
    end = time.monotonic() + timeout_s
    while not ready():
        if time.monotonic() > end:
            raise TimeoutError(f"{what}: not so after {timeout_s:.0f} s")
        time.sleep(every_s)

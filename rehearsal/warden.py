"""The process that owns everything a child of the rehearsal starts: run as a script, standard library only.

    python -I -S warden.py LIFELINE_FD[,FD...] -- ARGV...

It runs ARGV with the further FDs open, adopts every orphan below itself (PR_SET_CHILD_SUBREAPER: neither `setsid` nor
a double fork escapes) and ends them all with SIGKILL when it gets SIGTERM or when the lifeline pipe closes, which is
what happens when the rehearsal itself dies, however it dies. It outlives ARGV as long as orphans live, as a machine
outlives its boot script.
Exit status: that of ARGV (128 + n for signal n).
"""

from __future__ import annotations

import ctypes
import os
import select
import signal
import subprocess
import sys
import time

PR_SET_CHILD_SUBREAPER = 36


def parents() -> dict[int, int]:
    """pid -> parent pid of every process that can be seen now."""
    found: dict[int, int] = {}
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            with open(f"/proc/{name}/stat", "rb") as stat:
                # The command, in parentheses, may hold anything: fields are counted from the last one.
                found[int(name)] = int(stat.read().rsplit(b")", 1)[1].split()[1])
        except (OSError, IndexError):
            continue  # it ended while we looked
    return found


def descendants(root: int) -> list[int]:
    """Every live descendant of `root`, parents before children; `root` itself is not among them."""
    children: dict[int, list[int]] = {}
    for pid, parent in parents().items():
        children.setdefault(parent, []).append(pid)
    found: list[int] = []
    queue = [root]
    while queue:
        below = children.get(queue.pop(), [])
        found.extend(below)
        queue.extend(below)
    return found


def signal_all(pids: list[int], number: int) -> None:
    for pid in pids:
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            continue


def kill_descendants(root: int, *, patience_s: float = 5.0) -> None:
    """SIGKILL below `root` until nobody is left: what is forked meanwhile is met in the next round."""
    end = time.monotonic() + patience_s
    while time.monotonic() < end:
        alive = descendants(root)
        signal_all(alive, signal.SIGKILL)
        if root == os.getpid():
            reap()
        if not alive:
            return
        time.sleep(0.005)


def reap() -> dict[int, int]:
    """Statuses of children that have ended; empty when none has."""
    ended: dict[int, int] = {}
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return ended
        if pid == 0:
            return ended
        ended[pid] = os.waitstatus_to_exitcode(status)


def watch(first: int, lifeline: int, wakeup: int) -> int:
    """Serves until the first child and all orphans are gone, or until told to stop; returns the first child's code."""
    code: int | None = None
    while True:
        ready, _, _ = select.select([lifeline, wakeup], [], [], 1.0)
        if lifeline in ready or (wakeup in ready and signal.SIGTERM in os.read(wakeup, 64)):
            kill_descendants(os.getpid())
            return code if code is not None else 128 + signal.SIGKILL
        ended = reap()
        if first in ended:
            code = ended[first] if ended[first] >= 0 else 128 - ended[first]
        if code is not None and not descendants(os.getpid()):
            return code


def main(argv: list[str]) -> int:
    (lifeline, *passed), command = [int(fd) for fd in argv[1].split(",")], argv[3:]
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a Ctrl-C is the rehearsal's to answer: it ends us in order
    wakeup, poked = os.pipe()
    os.set_blocking(poked, False)
    signal.set_wakeup_fd(poked, warn_on_full_buffer=False)
    for number in (signal.SIGTERM, signal.SIGCHLD):
        signal.signal(number, lambda *_: None)
    # This process has one thread, so what preexec_fn is warned of cannot happen.
    child = subprocess.Popen(command, pass_fds=passed, preexec_fn=_default_signals)  # noqa: PLW1509
    return watch(child.pid, lifeline, wakeup)


def _default_signals() -> None:
    signal.signal(signal.SIGINT, signal.SIG_DFL)


if __name__ == "__main__":
    sys.exit(main(sys.argv))

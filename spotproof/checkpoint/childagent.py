"""An agent for a process that has none: found, or started as a child that outlives its parent if it has to.

The trainer and `spotproof run` use this; the agent itself is `spotproof agent`, whoever starts it.
"""

from __future__ import annotations

import fcntl
import os
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from spotproof.checkpoint.channel import Channel, connect
from spotproof.contract import orders
from spotproof.contract.exits import ExitCode
from spotproof.contract.settings import LocalSettings, TrainerSettings, variable
from spotproof.errors import BadSettings, NoAgent

LOCK: Final = "agent.lock"  # whoever holds it is the folder's one agent
DEFAULT_LOCAL_DIR: Final = ".spotproof"
HOST_AGENT_WITHIN_S: Final = 60.0  # user data starts agent and trainer one after the other
START_WITHIN_S: Final = 60.0
_LOOK_S: Final = 0.05
_COMMAND: Final = (sys.executable, "-m", "spotproof.cli.main", "agent")


class Child:
    """A process that we have started and need not outlive: it ends by itself when its work is done."""

    def __init__(self, command: Sequence[str], environ: Mapping[str, str]) -> None:
        # Not a Popen: that one insists on being waited for. A session of its own: a Ctrl-C is for the training.
        self.pid = os.posix_spawn(command[0], tuple(command), environ, setsid=True, setsigdef=[signal.SIGPIPE])
        self._code: int | None = None

    def poll(self) -> int | None:
        """Its exit code (negative: by that signal), None while it runs."""
        if self._code is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            self._code = os.waitstatus_to_exitcode(status) if pid else None
        return self._code

    def wait(self, *, within_s: float) -> bool:
        """Whether it has ended within that time."""
        until = time.monotonic() + within_s
        while self.poll() is None and time.monotonic() < until:
            time.sleep(_LOOK_S)
        return self.poll() is not None

    def kill(self) -> None:
        """SIGKILL, and wait."""
        if self.poll() is None:
            os.kill(self.pid, signal.SIGKILL)
            self.wait(within_s=START_WITHIN_S)


@dataclass(slots=True, kw_only=True)
class Found:
    """A connection to an agent; `process` is the child where we have started it."""

    channel: Channel
    runtime_dir: Path
    process: Child | None = None


def find_agent(environ: Mapping[str, str]) -> Found:
    """Connect to the agent that the environment names, else start one.

    Where only a runtime folder is named, the agent is the host's and is waited for. Where a stack is named
    (SPOTPROOF_TABLE ...), or a local folder, or nothing, one is started here unless it is there already.

    Raises:
        NoAgent: none answers in time, or the one that was started ended at once.
        BadSettings: the environment contradicts itself, or the agent refused it (its message is on stderr).
    """
    settings = TrainerSettings.from_env(environ)
    is_node = bool(environ.get(variable("table")))
    if is_node and settings.local_dir and not settings.hosted:
        raise BadSettings(
            f"{variable('local_dir')} and {variable('table')} are both set", next_step="unset one: a folder or a stack"
        )
    if settings.runtime_dir and (settings.hosted or not (is_node or settings.local_dir)):
        runtime_dir = Path(settings.runtime_dir)
        return Found(channel=_wait(runtime_dir), runtime_dir=runtime_dir)
    if is_node:
        runtime_dir = Path(settings.runtime_dir or orders.RUNTIME_DIR)  # the agent names what else is missing
        return _found_or_started(runtime_dir, dict(environ))
    local = _local(settings, environ)
    return _found_or_started(Path(local.runtime_dir), {**environ, **local.to_env()})


def _local(settings: TrainerSettings, environ: Mapping[str, str]) -> LocalSettings:
    root = Path(settings.local_dir or DEFAULT_LOCAL_DIR).absolute()
    local = LocalSettings.from_env({**environ, variable("local_dir"): str(root)})
    runtime = Path(local.runtime_dir) if local.runtime_dir else root / "run"
    known = {name: getattr(local, name) for name in ("run", "checkpoint_every_s", "checkpoint_every_steps")}
    return LocalSettings(
        local_dir=str(root), runtime_dir=str(runtime.absolute()), scratch_dir=local.scratch_dir, **known
    )


def _wait(runtime_dir: Path) -> Channel:
    """The host's agent: its folder may appear later too."""
    until = time.monotonic() + HOST_AGENT_WITHIN_S
    while not runtime_dir.is_dir() and time.monotonic() < until:
        time.sleep(_LOOK_S)
    return _connect(runtime_dir, patience_s=max(0.0, until - time.monotonic()))


def _connect(runtime_dir: Path, *, patience_s: float = 0.0) -> Channel:
    if not runtime_dir.is_dir():
        raise NoAgent(f"{runtime_dir} does not exist, so no agent is there", next_step="start `spotproof agent` first")
    return connect(runtime_dir, patience_s=patience_s)


def _found_or_started(runtime_dir: Path, environ: Mapping[str, str]) -> Found:
    until = time.monotonic() + START_WITHIN_S
    while True:
        try:
            return Found(channel=_connect(runtime_dir), runtime_dir=runtime_dir)
        except NoAgent:
            if not _is_locked(runtime_dir):
                break
            if time.monotonic() >= until:
                raise
        time.sleep(_LOOK_S)  # the folder's last agent is still finishing an upload: it lets go of its lock soon
    process = Child(_COMMAND, environ)
    return Found(channel=_of_child(process, runtime_dir, until), runtime_dir=runtime_dir, process=process)


def _is_locked(runtime_dir: Path) -> bool:
    try:
        fd = os.open(runtime_dir / LOCK, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(fd)
    return False


def _of_child(process: Child, runtime_dir: Path, until: float) -> Channel:
    while True:
        try:
            return _connect(runtime_dir)
        except NoAgent:
            code = process.poll()
            if code == ExitCode.BAD_CONFIGURATION:
                raise BadSettings("the agent refused its settings; its message is above") from None
            if code is not None:
                raise NoAgent(
                    f"the agent ended with {code} before it answered", next_step="read its message above"
                ) from None
            if time.monotonic() >= until:
                process.kill()
                raise
        time.sleep(_LOOK_S)

"""Between the agent and the training command: starts it, passes signals on, reports its end, exits as told.

    Hello -> (Go -> start the command -> Exited) again and again -> Verdict

A SIGTERM or Ctrl-C becomes a notice for the agent, so that the last step is saved first; a second one goes to the
command. The command has a session of its own: what a terminal or a container runtime sends to a whole group does not
reach its data workers before the save (CW-12).
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final

import click

from spotproof.agent.decide import shell_code
from spotproof.agent.leaving import NOTICE_FILE
from spotproof.checkpoint.channel import Ended
from spotproof.checkpoint.childagent import Found, find_agent
from spotproof.contract.protocol import Exited, FlushDone, Go, Hello, Notice, Role, Verdict
from spotproof.contract.settings import NOTICE_FILE_VARIABLE, variable
from spotproof.contract.states import NoticeKind
from spotproof.errors import BadSettings, NoAgent

POLL_S: Final = 0.1
GRACE_S: Final = 25.0  # a container runtime kills 30 s after its SIGTERM, where it is told to wait that long
AGENT_ENDS_S: Final = 30.0  # our own agent ends once nobody is connected; it is not killed while it uploads
AFTER_FLUSH_S: Final = 10.0  # for a trainer to end by itself once its flush is done
_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)
_NO_COMMAND: Final = "there is no command"


@dataclass(slots=True)
class Launcher:
    """One `spotproof run`."""

    words: tuple[str, ...]
    environ: Mapping[str, str]
    _found: Found | None = None
    _process: subprocess.Popen[bytes] | None = None
    _signals: list[int] = field(default_factory=list)
    _handled: int = 0
    _end_at: float | None = None  # when a command that does not end by itself is signalled
    _end_after_s: float = AFTER_FLUSH_S  # a command whose workers park after their flush is stopped at once
    _end_with: signal.Signals = signal.SIGTERM
    _code: int | None = None

    def run(self) -> int:
        """Run until the verdict; returns the exit code. Raises BadSettings or NoAgent before the command has begun."""
        with self._hearing_signals():
            self._connect()
            try:
                return self._turn()
            finally:
                self._close()

    def _turn(self) -> int:
        while True:
            code = self._hear()
            if code is not None:
                return code
            self._pass_signals_on()
            self._end_what_stays()
            self._look_at_command()

    def _hear(self) -> int | None:
        """Take in one frame, if there is one; the exit code once it is known."""
        if self._found is None:
            return self._without_agent()
        try:
            received = self._found.channel.receive(timeout_s=POLL_S)
        except Ended:
            self._found.channel.close()
            self._found = None
            return None
        if received is None:
            return None
        received.close()
        match received.frame:
            case Go(command=command, environment=environment, waits_to_be_stopped=waits):
                self._end_after_s = 0.0 if waits else AFTER_FLUSH_S
                self._start(self.words or command, environment)
            case Verdict(code=code, says=says):
                if says and code != 0:
                    click.echo(f"spotproof: {says}", err=True)
                return code
            case Notice():
                self._signal(signal.SIGTERM)  # nobody in there holds a Run: the command gets the plain signal
            case FlushDone():
                self._end_at = time.monotonic() + self._end_after_s
            case _:
                pass  # Welcome: for trainers
        return None

    def _without_agent(self) -> int | None:
        """The agent has died. It comes back (ours is started again), or the command's own code is all there is."""
        if self._process is None and self._code is not None:
            return shell_code(self._code)
        try:
            self._connect()
        except NoAgent:
            if self._process is None:
                raise
            time.sleep(POLL_S)
        return None

    def _connect(self) -> None:
        self._found = find_agent(self.environ)
        self._found.channel.send(Hello(role=Role.LAUNCHER, pid=os.getpid()))

    def _start(self, command: tuple[str, ...], environment: tuple[str, ...]) -> None:
        if self._process is not None or self._found is None:
            return  # an agent that was started again says Go again
        if not command:
            raise BadSettings(_NO_COMMAND, next_step="write it behind --, as in: spotproof run -- python train.py")
        added = dict(entry.split("=", 1) for entry in environment)
        names = ("local_dir", "table", "bucket", "instance", "scratch_dir")
        kept = {name: value for name, value in self.environ.items() if name not in {variable(one) for one in names}}
        runtime = str(self._found.runtime_dir)
        ours = {
            variable("runtime_dir"): runtime,
            variable("hosted"): "true",  # so that what a rendezvous needs beside it starts no other agent
            NOTICE_FILE_VARIABLE: f"{runtime}/{NOTICE_FILE}",
        }
        try:
            self._process = subprocess.Popen(command, env={**kept, **added, **ours}, start_new_session=True)
        except OSError as error:
            raise BadSettings(f"{command[0]!r} cannot be started: {error.strerror}") from error

    def _look_at_command(self) -> None:
        """Report the command's end."""
        if self._process is None:
            return
        code = self._process.poll()
        if code is None:
            return
        self._process, self._code, self._end_at = None, code, None
        if self._found is not None:
            try:
                self._found.channel.send(Exited(code=code))
            except Ended:
                self._found.channel.close()
                self._found = None

    def _pass_signals_on(self) -> None:
        """The first signal asks the agent for a last save; the next ones go to the command."""
        while self._handled < len(self._signals):
            number = self._signals[self._handled]
            self._handled += 1
            if self._handled == 1 and self._found is not None:
                deadline_at = time.time() + GRACE_S
                order = f"signal-{number}-{os.getpid()}"
                notice = Notice(order=order, kind=NoticeKind.MAINTENANCE, deadline_at=deadline_at, leave=True)
                self._found.channel.send(notice)
            else:
                self._signal(signal.SIGKILL if self._handled > 2 else signal.SIGTERM)

    def _end_what_stays(self) -> None:
        """After the flush a command that does not end by itself gets SIGTERM, and SIGKILL when that is not enough."""
        if self._end_at is None or time.monotonic() < self._end_at:
            return
        self._signal(self._end_with)
        self._end_at, self._end_with = time.monotonic() + AFTER_FLUSH_S, signal.SIGKILL

    def _signal(self, number: signal.Signals) -> None:
        if self._process is not None and self._process.poll() is None:
            os.killpg(self._process.pid, number)

    @contextmanager
    def _hearing_signals(self) -> Iterator[None]:
        before = {one: signal.signal(one, lambda number, _: self._signals.append(number)) for one in _SIGNALS}
        try:
            yield
        finally:
            for one, handler in before.items():
                signal.signal(one, handler)

    def _close(self) -> None:
        """Nothing of ours stays behind: the command is ended if an error of ours ends us."""
        if self._process is not None:
            self._signal(signal.SIGKILL)
            self._process.wait()
        if self._found is not None:
            self._found.channel.close()
            agent = self._found.process
            if agent is not None and not agent.wait(within_s=AGENT_ENDS_S):
                click.echo("spotproof: the agent is still busy and ends by itself", err=True)

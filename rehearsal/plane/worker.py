"""The harness's end of one Lambda execution environment."""

from __future__ import annotations

import json
import os
import select
import signal
import sys
import time
from pathlib import Path
from typing import Any

from rehearsal.processes import Child, Processes
from rehearsal.warden import signal_all

SCRIPT = Path(__file__).with_name("lambda_worker.py")


class Worker:
    """One process that answers one invocation after another."""

    def __init__(self, child: Child, requests: int, answers: int) -> None:
        self._child = child
        self._requests = requests
        self._answers = answers
        self._buffer = b""

    @classmethod
    def start(cls, processes: Processes, *, env: dict[str, str], cwd: Path, log: Path, runtime_site: Path) -> Worker:
        request_end, requests = os.pipe()
        answers, answer_end = os.pipe()
        command = [sys.executable, "-I", "-S", "-u", str(SCRIPT), str(request_end), str(answer_end), str(runtime_site)]
        try:
            child = processes.start(command, env=env, cwd=cwd, log=log, pass_fds=(request_end, answer_end))
        finally:
            os.close(request_end)
            os.close(answer_end)
        return cls(child, requests, answers)

    def alive(self) -> bool:
        return self._child.poll() is None

    def ask(self, request: str, timeout_s: float) -> dict[str, Any] | None:
        """The answer, None when the process ended or the time was over first. Ask one thing at a time."""
        try:
            self._write(request)
        except BrokenPipeError:
            return None
        end = time.monotonic() + timeout_s
        while b"\n" not in self._buffer:
            left = end - time.monotonic()
            if left <= 0 or not select.select([self._answers], [], [], left)[0]:
                return None
            data = os.read(self._answers, 1 << 16)
            if not data:
                self._child.wait(5)
                return None
            self._buffer += data
        line, _, self._buffer = self._buffer.partition(b"\n")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _write(self, request: str) -> None:
        data = memoryview(request.encode() + b"\n")
        while data:
            data = data[os.write(self._requests, data) :]

    def crash(self) -> None:
        """SIGKILL in the middle of its work. Whoever asked finds out; `end` is still his to call."""
        signal_all(self._child.pids(), signal.SIGKILL)

    def end(self) -> None:
        self._child.kill()
        for descriptor in (self._requests, self._answers):
            os.close(descriptor)

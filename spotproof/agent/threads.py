"""Threads that the agent owns: a mailbox into its loop, and work that repeats until it is told to end."""

from __future__ import annotations

import contextlib
import os
import queue
import threading
import time
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Final, Self

END_WITHIN_S: Final = 10.0  # a thread may be inside a request; its own time-outs are shorter


class Mailbox:
    """Events from threads to the loop. `fileno` is readable while there is mail."""

    def __init__(self) -> None:
        self._mail: queue.SimpleQueue[object] = queue.SimpleQueue()
        self._bell = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)

    def fileno(self) -> int:
        """For selectors."""
        return self._bell

    def post(self, event: object) -> None:
        """Leave an event; any thread may."""
        self._mail.put(event)
        with contextlib.suppress(OSError):  # closed: the loop has ended, nobody reads this any more
            os.eventfd_write(self._bell, 1)

    def collect(self) -> Iterator[object]:
        """Everything that is there now, in order."""
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self._bell)
        while True:
            try:
                yield self._mail.get_nowait()
            except queue.Empty:
                return

    def close(self) -> None:
        """Take no more mail."""
        os.close(self._bell)


class Repeating:
    """Calls `work` every `period_s` on a thread of its own, at once after `nudge`, until the context ends.

    The period is from begin to begin: where a service is out and a call takes long, the next one is not late for it. A
    third of the period is left between two calls in any case.

    `work` handles its own failures; one that it does not expect is posted to the loop, which ends the agent with it.
    """

    def __init__(self, name: str, work: Callable[[], None], *, period_s: float, mailbox: Mailbox) -> None:
        self._work = work
        self._period_s = period_s
        self._mailbox = mailbox
        self._wake = threading.Event()
        self._is_ending = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def nudge(self) -> None:
        """Do the work now instead of at the end of the period."""
        self._wake.set()

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._is_ending = True
        self._wake.set()
        self._thread.join(END_WITHIN_S)

    def _run(self) -> None:
        while not self._is_ending:
            self._wake.clear()
            began_at = time.monotonic()
            try:
                self._work()
            except Exception as error:  # noqa: BLE001 -- the boundary of a thread: the loop decides
                self._mailbox.post(error)
                return
            left_s = began_at + self._period_s - time.monotonic()
            self._wake.wait(max(left_s, self._period_s / 3))

"""What happens later: one thread that calls functions at their time, in order of time."""

from __future__ import annotations

import heapq
import itertools
import threading
import time
import traceback
from collections.abc import Callable


class Timeline:
    """Runs short functions after a delay. Long work belongs into a thread that the function starts.

    A function that raises is written to `problems`; the rehearsal fails with them at its end.
    """

    def __init__(self) -> None:
        self.problems: list[str] = []
        self._heap: list[tuple[float, int, Callable[[], object]]] = []
        self._order = itertools.count()
        self._changed = threading.Condition()
        self._ending = False
        self._thread = threading.Thread(target=self._run, name="timeline", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Forgets what has not happened yet and waits for what is happening now."""
        with self._changed:
            self._ending = True
            self._heap.clear()
            self._changed.notify_all()
        if self._thread.is_alive():
            self._thread.join(10)

    def after(self, delay_s: float, action: Callable[[], object]) -> None:
        """Calls `action` in `delay_s` seconds; actions of equal time run in the order they were given."""
        with self._changed:
            if self._ending:
                return
            heapq.heappush(self._heap, (time.monotonic() + delay_s, next(self._order), action))
            self._changed.notify_all()

    def _next(self) -> Callable[[], object] | None:
        with self._changed:
            while not self._ending:
                if not self._heap:
                    self._changed.wait()
                    continue
                wait_s = self._heap[0][0] - time.monotonic()
                if wait_s <= 0:
                    return heapq.heappop(self._heap)[2]
                self._changed.wait(wait_s)
            return None

    def _run(self) -> None:
        while (action := self._next()) is not None:
            try:
                action()
            except Exception:  # noqa: BLE001  the edge of the thread: kept for the report, the next action still runs
                self.problems.append(traceback.format_exc())

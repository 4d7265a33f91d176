"""What is done beside the work, because nothing that follows depends on it: the flush order by Run Command.

The order stands in HEAD before an errand begins. SSM may take seconds, or never answer; claims and launches do not wait
for it, and the handler ends when its errands are done or their own time-outs have passed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    from concurrent.futures import Future, ThreadPoolExecutor

THREADS: Final = 10  # a batch has ten messages: ten runs at most


class Errands(Protocol):
    """Whoever starts one says what becomes of its answer; `finish` is called once all other work is done."""

    def start(self, errand: Callable[[], str], then: Callable[[str], None]) -> None:
        """Run `errand`, now or beside the caller."""

    def finish(self) -> None:
        """Wait for every errand and hand its answer to its `then`, in the caller's thread."""


class AtOnce:
    """Errands that are run where they are started: for tests, whose order of events must not depend on threads."""

    def start(self, errand: Callable[[], str], then: Callable[[str], None]) -> None:
        """See `Errands`."""
        then(errand())

    def finish(self) -> None:
        """See `Errands`."""


class Beside:
    """Errands in threads that live as long as the process; each bounds itself by its time-outs."""

    def __init__(self) -> None:
        self._threads: ThreadPoolExecutor | None = None
        self._begun: list[tuple[Future[str], Callable[[str], None]]] = []

    def start(self, errand: Callable[[], str], then: Callable[[str], None]) -> None:
        """See `Errands`."""
        if self._threads is None:
            from concurrent.futures import ThreadPoolExecutor  # most cold starts order no flush

            self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="errand")
        self._begun.append((self._threads.submit(errand), then))

    def finish(self) -> None:
        """See `Errands`."""
        begun, self._begun = self._begun, []
        for future, then in begun:
            then(future.result())

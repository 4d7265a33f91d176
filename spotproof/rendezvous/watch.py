"""While a generation trains: is it over, is my neighbour alive, and am I seen. One thread for each launcher.

The members watch each other in a ring, so no node is special: rank r looks at rank r+1's beats and holds a link to its
launcher. Whoever hears nothing for a minute, or loses the link, marks the generation bad. A table that does not answer
changes nothing: training goes on, and silence is counted only while this launcher's own beats arrive.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

from spotproof.contract.items import Join
from spotproof.contract.limits import MEMBER_BEAT_S, MEMBER_SILENCE_S
from spotproof.errors import StoreError
from spotproof.rendezvous.decide import Member, is_over, members_of, neighbour
from spotproof.rendezvous.joining import Entered, poll_s
from spotproof.rendezvous.link import Link
from spotproof.rendezvous.silence import Silence
from spotproof.store.joins import Joins
from spotproof.store.members import Memberships
from spotproof.store.table import Table

END_WITHIN_S = 1.0


@dataclass(slots=True, kw_only=True)
class Watch:
    """The watch over one generation; a context manager that owns its thread.

    A call of the table that is under way when the watch ends is not waited for: it is a daemon's, and harmless.
    """

    table: Table
    entered: Entered
    node: str
    clock: Callable[[], float] = time.monotonic
    silence_s: float = MEMBER_SILENCE_S
    on_over: Callable[[], None] | None = None  # called once, from a thread of the watch
    missed: int = 0  # looks that the table did not answer, in a row
    is_over: bool = False
    _silence: Silence = field(default_factory=Silence)
    _ended: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None
    _beat_at: float = 0.0
    _link: Link | None = None

    def __enter__(self) -> Self:
        self._beat_at = self.clock()
        self._thread = threading.Thread(target=self._run, name="spotproof-watch", daemon=True)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end()

    def end(self) -> None:
        """Stop looking."""
        self._ended.set()
        if self._link is not None:
            self._link.end()
        if self._thread is not None:
            self._thread.join(END_WITHIN_S)

    def look(self) -> None:
        """One look, and a beat where one is due; never raises for a table that fails."""
        try:
            self._look()
            self.missed = 0
        except StoreError:
            self.missed += 1
            self._silence.forget()

    def _run(self) -> None:
        wait_s = poll_s(self.entered.world)
        self._hold_link()
        while not self.is_over and not self._ended.wait(wait_s):
            self.look()

    def _hold_link(self) -> None:
        watched = self._watched()
        if watched is None:
            return
        try:
            join = Joins(self.table).read(self.entered.sealed.run, watched.node)
        except StoreError:
            return  # without a link the beats tell, later
        if join is not None and join.endpoint and not self._ended.is_set():
            self._link = Link(join.endpoint, lambda: self._lost(join))

    def _lost(self, was: Join) -> None:
        """The neighbour's process is gone: unless it said good-bye, or is parked again already, that ends it all."""
        sealed = self.entered.sealed
        with suppress(StoreError):  # the beats tell, later
            join = Joins(self.table).read(sealed.run, was.node)
            if join is not None and not join.left and join.endpoint == was.endpoint:
                Memberships(self.table).mark_bad(sealed.run, sealed.generation)
                self._end_generation()

    def _end_generation(self) -> None:
        if not self.is_over:
            self.is_over = True
            if self.on_over is not None and not self._ended.is_set():
                self.on_over()

    def _watched(self) -> Member | None:
        return neighbour(members_of(self.entered.sealed), self.entered.rank)

    def _look(self) -> None:
        sealed = self.entered.sealed
        memberships = Memberships(self.table)
        if is_over(memberships.newest(sealed.run), sealed.generation):
            self._end_generation()
            return
        if self.clock() < self._beat_at + MEMBER_BEAT_S:
            return
        Joins(self.table).beat(sealed.run, self.node)
        self._beat_at = self.clock()
        if self._is_neighbour_silent():
            memberships.mark_bad(sealed.run, sealed.generation)
            self._end_generation()

    def _is_neighbour_silent(self) -> bool:
        watched = self._watched()
        if watched is None:
            return False
        join = Joins(self.table).read(self.entered.sealed.run, watched.node)
        beats = None if join is None else join.beats
        return self._silence.see(watched.node, beats, self.clock()) >= self.silence_s

"""All members of a sealed generation meet at the store that its rank 0 has opened. Part, and meet again in the next.

`meet` returns only when every member is here: that is the join barrier. A member that has died since the seal is not
waited for longer than its silence; the others come out, which marks the generation bad, and the next one is gathered.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from torch.distributed import DistError, TCPStore  # type: ignore[attr-defined]  # exported at run time

from spotproof.contract.items import to_item
from spotproof.contract.limits import JOINING_SILENCE_S
from spotproof.rendezvous.joining import Entered, Joining, poll_s, spread_s
from spotproof.rendezvous.watch import Watch

__all__ = ["GENERATION_KEY", "Meeting", "Met"]

GENERATION_KEY: Final = "spotproof/generation"  # in the generation's store: the sealed membership, as JSON
_HERE_KEY: Final = "spotproof/here"
_ALL_HERE_KEY: Final = "spotproof/all-here"
_BARRIER_LOOK_S: Final = 0.05
_STORE_S: Final = 60.0


class _Dead(Exception):
    """The generation is over before all of its members were here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Met:
    """A generation whose members are all here, and the store at which they met."""

    entered: Entered
    store: TCPStore
    host: str
    port: int


class Meeting:
    """One launcher's meetings, one after another. `address` is where the others reach this node; `on_over` is called
    from another thread when the generation that was met is over."""

    def __init__(self, joining: Joining, *, address: str, on_over: Callable[[], None] | None = None) -> None:
        self._joining = joining
        self._address = address
        self._on_over = on_over
        self._watch: Watch | None = None
        self._stores: list[TCPStore] = []

    @property
    def is_over(self) -> bool:
        """Whether this generation is over; answered from memory, so that a slow table holds up nobody."""
        return self._watch is not None and self._watch.is_over

    def meet(self) -> Met:
        """Come out of what was met before, and block until the members of the next generation are here.

        Raises Superseded if this node's place has been given away; what `pause` of the joining raises passes.
        """
        while True:
            self.part()
            own = TCPStore("0.0.0.0", 0, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=_STORE_S))  # noqa: S104 - peers connect from their own hosts
            joining = self._joining
            entered = joining.enter(f"{self._address}:{own.port}")
            watch = Watch(table=joining.table, entered=entered, node=joining.seat.node, on_over=self._on_over)
            self._watch = watch.__enter__()
            try:
                return self._met(entered, own)
            except (_Dead, DistError):
                continue  # a member died since the seal

    def part(self) -> None:
        """Stop watching and give the stores up."""
        if self._watch is not None:
            self._watch.end()
        self._watch = None
        self._stores.clear()

    def _met(self, entered: Entered, own: TCPStore) -> Met:
        host, _, port = entered.sealed.endpoint.rpartition(":")
        wait_s = JOINING_SILENCE_S + poll_s(entered.world) + spread_s(entered.world)
        if entered.rank == 0:
            store = own
            store.set(GENERATION_KEY, json.dumps(to_item(entered.sealed)))
        else:
            store = self._reached(host, int(port), wait_s)
        self._stores += [own, store]  # own lives as long as the generation: the neighbour's link ends at it
        self._wait_for_all(store, entered, until=time.monotonic() + wait_s)
        store.set_timeout(timedelta(seconds=_STORE_S))
        return Met(entered=entered, store=store, host=host, port=int(port))

    def _reached(self, host: str, port: int, wait_s: float) -> TCPStore:
        """In a thread of its own: torch tries a host that is gone again and again, and cannot be told."""
        found: list[TCPStore] = []
        has_ended = threading.Event()

        def reach() -> None:
            try:
                found.append(TCPStore(host, port, is_master=False, timeout=timedelta(seconds=wait_s)))
            except DistError:
                pass  # said below
            finally:
                has_ended.set()

        threading.Thread(target=reach, name="spotproof-reach", daemon=True).start()
        while not has_ended.wait(_BARRIER_LOOK_S):
            if self.is_over:
                raise _Dead
        if not found:
            raise _Dead
        return found[0]

    def _wait_for_all(self, store: TCPStore, entered: Entered, *, until: float) -> None:
        if store.add(_HERE_KEY, 1) >= entered.world:
            store.set(_ALL_HERE_KEY, "1")
        look_s = max(_BARRIER_LOOK_S, entered.world / 2000)
        while not store.check([_ALL_HERE_KEY]):
            if self.is_over or time.monotonic() >= until:
                raise _Dead
            time.sleep(look_s)

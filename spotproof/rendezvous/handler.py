"""torchrun's RendezvousHandler over the table: no node hosts anything that outlives its generation.

Calls in order, by each node's torchrun: `next_rendezvous` (blocks until the node has a place), then
`num_nodes_waiting` ten times a second while the workers run; when that says 1, or a worker has failed, torchrun stops
the workers and calls `next_rendezvous` again; `shutdown` at the end, but not after a signal.
"""

from __future__ import annotations

import json
import os
import secrets
import socket
import time
from datetime import timedelta
from pathlib import Path
from typing import Final

from torch.distributed import DistError, TCPStore  # type: ignore[attr-defined]  # exported at run time
from torch.distributed.elastic.rendezvous import (
    RendezvousClosedError,
    RendezvousHandler,
    RendezvousInfo,
    RendezvousParameters,
    RendezvousStoreInfo,
    RendezvousTimeoutError,
)

from spotproof.contract.items import to_item
from spotproof.contract.limits import JOINING_SILENCE_S
from spotproof.contract.settings import RendezvousSettings
from spotproof.errors import BadSettings, StoreError, Superseded
from spotproof.rendezvous.decide import Seat, Size
from spotproof.rendezvous.joining import Entered, Joining, poll_s, spread_s
from spotproof.rendezvous.watch import Watch
from spotproof.store.clients import Clients
from spotproof.store.dynamo import DynamoTable
from spotproof.store.joins import Joins
from spotproof.store.local import LocalTable
from spotproof.store.table import Table

__all__ = ["GENERATION_KEY", "Handler", "create"]

BACKEND: Final = "spotproof"
TABLE_FILE: Final = "table.sqlite"
GENERATION_KEY: Final = "spotproof/generation"  # in the generation's store: the sealed membership, as JSON
_HERE_KEY: Final = "spotproof/here"
_ALL_HERE_KEY: Final = "spotproof/all-here"
_BARRIER_LOOK_S: Final = 0.05
_STORE_S: Final = 60.0


class _Dead(Exception):
    """The generation is over before all of its members were here."""


class Handler(RendezvousHandler):
    """See the module. `address` is where the others reach this node; `timeout_s` 0: wait for ever."""

    def __init__(self, *, table: Table, run: str, seat: Seat, size: Size, address: str, timeout_s: float = 0.0) -> None:
        self._table = table
        self._run = run
        self._seat = seat
        self._address = address
        self._timeout_s = timeout_s
        self._give_up_at = 0.0
        self._watch: Watch | None = None
        self._stores: list[TCPStore] = []
        self._joining = Joining(table=table, run=run, seat=seat, size=size, pause=self._pause)

    def get_backend(self) -> str:
        """The name under which torchrun knows this handler."""
        return BACKEND

    @property
    def use_agent_store(self) -> bool:
        """The workers meet at the store that rank 0's launcher opened for this generation."""
        return True

    def next_rendezvous(self) -> RendezvousInfo:
        """Block until this node has entered a generation all of whose members are here.

        Raises RendezvousClosedError if the node's place has been given away, RendezvousTimeoutError after
        `timeout_s`. A table that is silent is neither.
        """
        self._come_out()
        self._give_up_at = time.monotonic() + self._timeout_s if self._timeout_s else float("inf")
        while True:
            own = TCPStore("0.0.0.0", 0, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=_STORE_S))  # noqa: S104 - peers connect from their own hosts
            try:
                entered = self._joining.enter(f"{self._address}:{own.port}")
            except Superseded as error:
                raise RendezvousClosedError(str(error)) from error
            self._watch = Watch(table=self._table, entered=entered, node=self._seat.node).__enter__()
            try:
                return self._met(entered, own)
            except (_Dead, DistError):
                self._come_out()

    def is_closed(self) -> bool:
        """Never: a run ends when its nodes leave, and may be launched again under its name."""
        return False

    def set_closed(self) -> None:
        """Nothing: one node does not close the run for the others."""

    def num_nodes_waiting(self) -> int:
        """1 when this generation is over; answered from memory, so that a slow table never holds up torchrun."""
        return int(self._watch is not None and self._watch.is_over)

    def get_run_id(self) -> str:
        """The run's id."""
        return self._run

    def shutdown(self) -> bool:
        """Mark this node, and only this node, as left. False if the table did not take it."""
        try:
            Joins(self._table).leave(self._run, self._seat.node)
        except StoreError:
            return False
        finally:
            self._come_out()  # after the word: the neighbour sees the link end
        return True

    def _pause(self, seconds: float) -> None:
        if time.monotonic() >= self._give_up_at:
            raise RendezvousTimeoutError(f"run {self._run}: no place after {self._timeout_s:.0f} s")
        time.sleep(seconds)

    def _come_out(self) -> None:
        if self._watch is not None:
            self._watch.end()
        self._watch = None
        self._stores.clear()

    def _met(self, entered: Entered, own: TCPStore) -> RendezvousInfo:
        """Meet all members at rank 0's store. Raises _Dead or DistError if one of them does not come in time."""
        host, _, port = entered.sealed.endpoint.rpartition(":")
        wait_s = JOINING_SILENCE_S + poll_s(entered.world) + spread_s(entered.world)
        if entered.rank == 0:
            store = own
            store.set(GENERATION_KEY, json.dumps(to_item(entered.sealed)))
        else:
            store = TCPStore(host, int(port), is_master=False, timeout=timedelta(seconds=wait_s))
        self._stores += [own, store]  # own lives as long as the generation: the neighbour's link ends at it
        self._wait_for_all(store, entered, until=time.monotonic() + wait_s)
        store.set_timeout(timedelta(seconds=_STORE_S))
        return RendezvousInfo(store, entered.rank, entered.world, RendezvousStoreInfo(host, int(port)))

    def _wait_for_all(self, store: TCPStore, entered: Entered, *, until: float) -> None:
        if store.add(_HERE_KEY, 1) >= entered.world:
            store.set(_ALL_HERE_KEY, "1")
        look_s = max(_BARRIER_LOOK_S, entered.world / 2000)
        while not store.check([_ALL_HERE_KEY]):
            if self.num_nodes_waiting():
                raise _Dead("marked bad")
            if time.monotonic() >= until:
                raise _Dead("a member did not come")
            time.sleep(look_s)


def create(parameters: RendezvousParameters) -> Handler:
    """The handler of this process. Raises BadSettings if the environment names neither a table nor a folder."""
    settings = RendezvousSettings.from_env(os.environ)
    # Every node runs equally many workers, so ranks need no exchange: in it torch waits 60 s for a node that has died
    # since the members met, and then ends the survivors.
    os.environ.setdefault("TORCH_ELASTIC_WORKER_IDENTICAL", "1")
    node = settings.instance or f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}"
    last_call_s = float(parameters.get("last_call", Size(smallest=1, largest=1).last_call_s))
    return Handler(
        table=_table(settings),
        run=parameters.run_id,
        seat=Seat(node=node, slot=settings.slot, incarnation=settings.incarnation),
        size=Size(smallest=parameters.min_nodes, largest=parameters.max_nodes, last_call_s=last_call_s),
        address=settings.address or parameters.local_addr or _own_address(),
        timeout_s=float(parameters.get("join_timeout", 0)),
    )


def _table(settings: RendezvousSettings) -> Table:
    if settings.table:
        return DynamoTable(Clients(region=settings.region).dynamodb, settings.table)
    if settings.local_dir:
        folder = Path(settings.local_dir)
        folder.mkdir(parents=True, exist_ok=True)
        return LocalTable(folder / TABLE_FILE)
    raise BadSettings(
        "--rdzv-backend spotproof finds neither SPOTPROOF_TABLE nor SPOTPROOF_LOCAL_DIR",
        next_step="start torchrun with `spotproof run`, or set one of them",
    )


def _own_address() -> str:
    """The address of the default route; nothing is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # TEST-NET-1: never answers, is only routed
        except OSError:
            return socket.gethostbyname(socket.gethostname())
        found: str = probe.getsockname()[0]
        return found

"""torchrun's RendezvousHandler over the table: no node hosts anything that outlives its generation.

Calls in order, by each node's torchrun: `next_rendezvous` (blocks until the node has a place), then
`num_nodes_waiting` ten times a second while the workers run; when that says 1, or a worker has failed, torchrun stops
the workers and calls `next_rendezvous` again; `shutdown` at the end, but not after a signal.
"""

from __future__ import annotations

import os
import secrets
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from torch.distributed.elastic.rendezvous import (
    RendezvousClosedError,
    RendezvousHandler,
    RendezvousInfo,
    RendezvousParameters,
    RendezvousStoreInfo,
    RendezvousTimeoutError,
)

from spotproof.contract import names
from spotproof.contract.limits import REGROW_AFTER_S
from spotproof.contract.settings import RendezvousSettings
from spotproof.errors import BadSettings, StoreError, Superseded
from spotproof.rendezvous.decide import Seat, Size
from spotproof.rendezvous.joining import Joining
from spotproof.rendezvous.meeting import Meeting
from spotproof.rendezvous.staged import staged_in
from spotproof.store.clients import Clients
from spotproof.store.dynamo import DynamoTable
from spotproof.store.folder import FolderObjects
from spotproof.store.joins import Joins
from spotproof.store.local import LocalTable
from spotproof.store.objects import Objects
from spotproof.store.s3 import S3Objects
from spotproof.store.table import Table

__all__ = ["Handler", "create"]

BACKEND: Final = "spotproof"


class Handler(RendezvousHandler):
    """See the module. `address` is where the others reach this node; `timeout_s` 0: wait for ever."""

    def __init__(
        self,
        *,
        table: Table,
        run: str,
        seat: Seat,
        size: Size,
        address: str,
        timeout_s: float = 0.0,
        objects: Objects | None = None,
        staged: Callable[[], tuple[str, ...]] = tuple,
    ) -> None:
        self._table = table
        self._run = run
        self._seat = seat
        self._timeout_s = timeout_s
        self._give_up_at = float("inf")
        joining = Joining(table=table, run=run, seat=seat, size=size, pause=self._pause, objects=objects, staged=staged)
        self._meeting = Meeting(joining, address=address)

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
        if self._timeout_s:
            self._give_up_at = time.monotonic() + self._timeout_s
        try:
            met = self._meeting.meet()
        except Superseded as error:
            raise RendezvousClosedError(str(error)) from error
        where = RendezvousStoreInfo(met.host, met.port)
        return RendezvousInfo(met.store, met.entered.rank, met.entered.world, where)

    def is_closed(self) -> bool:
        """Never: a run ends when its nodes leave, and may be launched again under its name."""
        return False

    def set_closed(self) -> None:
        """Nothing: one node does not close the run for the others."""

    def num_nodes_waiting(self) -> int:
        """1 when this generation is over; torchrun then stops the workers and comes back, no restart counted."""
        return int(self._meeting.is_over)

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
            self._meeting.part()  # after the word: the neighbour sees the link end
        return True

    def _pause(self, seconds: float) -> None:
        if time.monotonic() >= self._give_up_at:
            raise RendezvousTimeoutError(f"run {self._run}: no place after {self._timeout_s:.0f} s")
        time.sleep(seconds)


def create(parameters: RendezvousParameters) -> Handler:
    """The handler of this process. Raises BadSettings if the environment names neither a table nor a folder."""
    settings = RendezvousSettings.from_env(os.environ)
    # Every node runs equally many workers, so ranks need no exchange: in it torch waits 60 s for a node that has died
    # since the members met, and then ends the survivors.
    os.environ.setdefault("TORCH_ELASTIC_WORKER_IDENTICAL", "1")
    node = settings.instance or f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}"
    last_call_s = float(parameters.get("last_call", Size(smallest=1, largest=1).last_call_s))
    regrow_s = float(parameters.get("regrow", REGROW_AFTER_S))
    return Handler(
        table=_table(settings),
        run=parameters.run_id,
        seat=Seat(node=node, slot=settings.slot, incarnation=settings.incarnation),
        size=Size(
            smallest=parameters.min_nodes, largest=parameters.max_nodes, last_call_s=last_call_s, regrow_s=regrow_s
        ),
        address=settings.address or parameters.local_addr or _own_address(),
        timeout_s=float(parameters.get("join_timeout", 0)),
        objects=_objects(settings),
        staged=lambda: staged_in(Path(settings.runtime_dir)) if settings.runtime_dir else (),
    )


def _table(settings: RendezvousSettings) -> Table:
    if settings.table:
        return DynamoTable(Clients(region=settings.region).dynamodb, settings.table)
    if settings.local_dir:
        folder = Path(settings.local_dir)
        folder.mkdir(parents=True, exist_ok=True)
        return LocalTable(folder / names.LOCAL_TABLE)
    raise BadSettings(
        "--rdzv-backend spotproof finds neither SPOTPROOF_TABLE nor SPOTPROOF_LOCAL_DIR",
        next_step="start torchrun with `spotproof run`, or set one of them",
    )


def _objects(settings: RendezvousSettings) -> Objects | None:
    """The bucket, where the settings name it; without it the seal begins with what the pointer names."""
    if settings.table and settings.bucket:
        return S3Objects(Clients(region=settings.region).s3, settings.bucket)
    if settings.local_dir and not settings.table:
        return FolderObjects(Path(settings.local_dir) / names.LOCAL_OBJECTS)
    return None


def _own_address() -> str:
    """The address of the default route; nothing is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # TEST-NET-1: never answers, is only routed
        except OSError:
            return socket.gethostbyname(socket.gethostname())
        found: str = probe.getsockname()[0]
        return found

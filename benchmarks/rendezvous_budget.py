"""What a rendezvous asks of DynamoDB: requests and units for each generation, and the steady rate, by number of nodes.

    python benchmarks/rendezvous_budget.py --nodes 4 64 512 1000

Nodes are threads over one table in memory that takes as long as DynamoDB does (8 ms). The peer beside us is torch's own
DynamicRendezvousHandler with its state in one item of the same table, where it can still be run. A partition of
DynamoDB takes 1,000 write units and 3,000 read units a second; `busiest` is the most that one had in any second.
The interpreter's lock stretches a thousand threads over more seconds than a thousand machines would take; that the
spread of looks keeps the limits by itself is tested beside (tests/unit/rendezvous/test_budget.py).
"""

from __future__ import annotations

import argparse
import os
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from spotproof.contract.keys import Key
from spotproof.rendezvous.decide import Seat, Size
from spotproof.rendezvous.joining import Entered, Joining, poll_s
from spotproof.rendezvous.watch import Watch
from spotproof.store.local import IN_MEMORY, LocalTable
from spotproof.store.members import Memberships
from tests.fakes.metered_table import Meter, MeteredTable

LATENCY_S = 0.008
WRITES_LIMIT, READS_LIMIT = 1000, 3000
WRITES_PER_NODE = 4
PEER_UP_TO = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One measured generation. `steady` is (reads, writes) per second of all nodes while they train."""

    who: str
    nodes: int
    phase: str
    meter: Meter
    seconds: float

    def text(self) -> str:
        meter = self.meter
        return (
            f"{self.who:10} {self.nodes:5} {self.phase:8} reads {meter.reads:7} ({meter.read_units:7} units)  "
            f"writes {meter.writes:6} ({meter.write_units:6} units, {meter.lost} lost)  "
            f"writes/node {meter.writes / self.nodes:6.2f}  busiest r/s {meter.busiest_reads:5} "
            f"w/s {meter.busiest_writes:5}  {self.seconds:5.1f} s"
        )


def measured(who: str, nodes: int, phase: str, table: MeteredTable, work: Callable[[], object]) -> Row:
    """Do `work` and say what it asked for."""
    table.meter = Meter()
    began = time.monotonic()
    work()
    return Row(who=who, nodes=nodes, phase=phase, meter=table.meter, seconds=time.monotonic() - began)


def ours(nodes: int) -> list[Row]:
    """The first generation, one after the loss of rank 0's node, and a minute of training."""
    with LocalTable(IN_MEMORY) as memory, ThreadPoolExecutor(nodes + 1) as pool:
        table = MeteredTable(memory, latency_s=LATENCY_S)
        size = Size(smallest=nodes, largest=nodes)
        launchers = {
            f"i-{n:017x}": Joining(table=table, run="r", seat=Seat(node=f"i-{n:017x}"), size=size) for n in range(nodes)
        }
        entered: dict[str, Entered] = {}

        def enter() -> None:
            futures = {node: pool.submit(one.enter, "10.0.0.1:29500") for node, one in launchers.items()}
            entered.update({node: future.result() for node, future in futures.items()})

        rows = [measured("spotproof", nodes, "join", table, enter)]
        lost = next(node for node, one in entered.items() if one.rank == 0)
        del launchers[lost], entered[lost]
        new = f"i-{nodes:017x}"
        launchers[new] = Joining(table=table, run="r", seat=Seat(node=new), size=size)
        Memberships(memory).mark_bad("r", 1)
        rows.append(measured("spotproof", nodes, "replace", table, enter))
        assert {one.sealed.generation for one in entered.values()} == {2}
        rows.append(steady(memory, entered))
    return rows


def steady(memory: LocalTable, entered: dict[str, Entered]) -> Row:
    """A minute of training, by a clock that is moved: what each second's looks and beats ask for."""
    now = 0.0
    table = MeteredTable(memory, latency_s=0.0, clock=lambda: now)
    watches = [Watch(table=table, entered=one, node=node, clock=lambda: now) for node, one in entered.items()]
    period_s = poll_s(len(watches))
    while now < 60.0:
        for number, watch in enumerate(watches):
            now += period_s / len(watches)
            if number == 0 or watch.missed == 0:
                watch.look()
    assert not any(watch.is_over for watch in watches)
    return Row(who="spotproof", nodes=len(watches), phase="60 s", meter=table.meter, seconds=60.0)


class OneItem:
    """torch's RendezvousBackend on one item, counted."""

    name = "one-item"

    def __init__(self, table: MeteredTable) -> None:
        self.table = table
        self.key = Key(pk="PEER#r", sk="STATE")

    def get_state(self) -> Any:
        item = self.table.get(self.key)
        return None if item is None else (item["state"], item["version"])

    def set_state(self, state: bytes, token: Any = None) -> Any:
        from spotproof.errors import Lost
        from spotproof.store.table import Absent, Eq, Put

        version = (token or 0) + 1
        when = Absent("pk") if token is None else Eq("version", token)
        try:
            self.table.write(Put(key=self.key, item={"state": state, "version": version}, when=when))
        except Lost:
            return (*self.get_state(), False)
        return state, version, True


def peer(nodes: int) -> list[Row]:
    """torch's handler: the first generation."""
    os.environ["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"
    from torch.distributed import HashStore  # type: ignore[attr-defined]
    from torch.distributed.elastic.rendezvous import RendezvousParameters
    from torch.distributed.elastic.rendezvous.dynamic_rendezvous import create_handler

    with LocalTable(IN_MEMORY) as memory, ThreadPoolExecutor(nodes) as pool:
        table = MeteredTable(memory, latency_s=LATENCY_S)
        store = HashStore()
        handlers = []
        for number in range(nodes):
            parameters = RendezvousParameters("dynamic", "", "r", nodes, nodes, local_addr=f"n{number}")
            handlers.append(create_handler(store, OneItem(table), parameters))  # type: ignore[arg-type]
        futures: list[Any] = []

        def enter() -> None:
            futures.extend(pool.submit(handler.next_rendezvous) for handler in handlers)
            for future in futures:
                future.result()

        rows = [measured("torch", nodes, "join", table, enter)]
        rows.append(measured("torch", nodes, "60 s", table, lambda: time.sleep(20.0)))
        rows[-1] = scaled(rows[-1], 3)
        for handler in handlers:
            handler._stop_heartbeats()  # noqa: SLF001 - else its timers outlive the table
    return rows


def scaled(row: Row, by: int) -> Row:
    """A shorter look at a steady rate as one of 60 s; the busiest second stays."""
    meter = row.meter
    for name in ("reads", "writes", "lost", "read_units", "write_units"):
        setattr(meter, name, by * getattr(meter, name))
    return Row(who=row.who, nodes=row.nodes, phase=row.phase, meter=meter, seconds=row.seconds * by)


def problems(row: Row) -> list[str]:
    """What breaks the budget."""
    meter, found = row.meter, []
    if meter.busiest_writes >= WRITES_LIMIT or meter.busiest_reads >= READS_LIMIT:
        found.append(f"{row.nodes} nodes, {row.phase}: a partition was over its limit")
    if row.phase in ("join", "replace") and meter.writes / row.nodes > WRITES_PER_NODE:
        found.append(f"{row.nodes} nodes, {row.phase}: {meter.writes / row.nodes:.1f} writes for each node")
    return found


def main() -> int:
    """Print a line for each generation; 1 if the budget is broken."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--nodes", type=int, nargs="+", default=[4, 64, 512, 1000])
    parser.add_argument("--no-peer", action="store_true", help="only ours")
    asked = parser.parse_args()
    threading.stack_size(256 * 1024)  # a thousand nodes are a thousand threads
    broken: list[str] = []
    for nodes in asked.nodes:
        rows = ours(nodes)
        broken += [problem for row in rows for problem in problems(row)]
        if nodes <= PEER_UP_TO and not asked.no_peer:
            rows += peer(nodes)
        for row in rows:
            print(row.text(), flush=True)
    print("within the budget" if not broken else f"OVER: {'; '.join(broken)}")
    return int(bool(broken))


if __name__ == "__main__":
    sys.exit(main())

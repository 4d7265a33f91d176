"""A process of its own that races for one thing: `racer.py local PATH | dynamo URL NAME`, then WHAT RUN NUMBER.

It says `ready`, waits for a line on its standard input, and prints what it won, so that all of them start together
and have paid for their imports before.
"""

from __future__ import annotations

import os
import sys

from spotproof.contract.items import NO_INSTANCE
from spotproof.contract.keys import Key
from spotproof.contract.states import Cause
from spotproof.errors import Lost, Superseded
from spotproof.store.clients import Clients
from spotproof.store.dynamo import DynamoTable
from spotproof.store.local import LocalTable
from spotproof.store.members import Memberships
from spotproof.store.pointer import Pointers
from spotproof.store.slots import Slots
from spotproof.store.table import Table, Update
from tests.conformance.makers import generation, pointer

SLOTS, STEPS, COUNTS = 20, 25, 60


def claim_every_slot(table: Table, run: str, number: int) -> list[int]:
    """Claim each slot with what everybody has seen at the start; return the slots that this process won."""
    won = []
    for seen in Slots(table).list(run):
        try:
            Slots(table).claim(seen, NO_INSTANCE, cause=Cause.SUBMIT, now=number)
        except Lost:
            continue
        won.append(seen.slot)
    return won


def raise_the_pointer(table: Table, run: str, number: int) -> list[int]:
    """Commit steps of generation 1 until it is over; return the steps that rose."""
    rose = []
    for step in range(number, STEPS * 4, 4):
        try:
            Pointers(table).rise(pointer(run, 1, step + 1), own_generation=1)
        except Lost:
            continue
        except Superseded:
            break
        rose.append(step + 1)
    return rose


def seal_the_next(table: Table, run: str, number: int) -> list[int]:
    """Seal generations as a member of this number; return those that this process sealed."""
    sealed = []
    for g in range(1, STEPS + 1):
        try:
            Memberships(table).seal(generation(run, g, f"0:{g}:i-{number}"), pointer=None)
        except Lost:
            continue
        sealed.append(g)
    return sealed


def count_together(table: Table, run: str, number: int) -> list[int]:
    """Raise one counter and one of one's own in transactions, many times; return how often."""
    shared, own = Key(pk=f"RUN#{run}", sk="SHARED"), Key(pk=f"RUN#{run}", sk=f"OWN#{number}")
    for _ in range(COUNTS):
        table.transact([Update(key=shared, increment={"n": 1}), Update(key=own, increment={"n": 1})])
    return [COUNTS]


CONTESTS = {"count": count_together, "claim": claim_every_slot, "rise": raise_the_pointer, "seal": seal_the_next}


def open_table(words: list[str]) -> Table:
    match words:
        case ["local", path]:
            return LocalTable(path)
        case ["dynamo", url, name]:
            os.environ["AWS_ENDPOINT_URL_DYNAMODB"] = url
            return DynamoTable(Clients(region="us-east-1").dynamodb, name)
        case _:
            raise SystemExit(f"no such table: {words}")


if __name__ == "__main__":
    *where, contest, run_id, mine = sys.argv[1:]
    contested = open_table(where)
    contested.query("warm")  # the connection, too, is paid for before the start
    print("ready", flush=True)
    sys.stdin.readline()
    print(*CONTESTS[contest](contested, run_id, int(mine)), flush=True)

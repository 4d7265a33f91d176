"""Races between threads and between processes: one winner, nothing lost, nothing goes back."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from spotproof.contract.items import NO_INSTANCE, pointer_rank
from spotproof.contract.keys import Key
from spotproof.contract.manifest import Part
from spotproof.contract.states import Cause, SaveKind
from spotproof.errors import Lost, Superseded
from spotproof.store.checkpoints import Checkpoints, is_complete
from spotproof.store.local import LocalTable
from spotproof.store.members import Memberships
from spotproof.store.pointer import Pointers
from spotproof.store.slots import Slots
from spotproof.store.table import Check, Eq, Exists, Put, Table, Update
from tests.conformance.conftest import DYNAMODB_LOCAL, EMULATED_TABLES, FILE, MOTO, TABLE_NAME
from tests.conformance.makers import generation, part, pointer
from tests.conformance.racer import COUNTS, SLOTS, STEPS

ROOT = Path(__file__).resolve().parents[2]
THREADS, PROCESSES = 6, 4


def at_once(work: Callable[[int], object]) -> list[object]:
    """Run `work(0..5)` in threads that start together; return the results, exceptions raised."""
    together = threading.Barrier(THREADS)

    def body(number: int) -> object:
        together.wait()
        return work(number)

    with ThreadPoolExecutor(THREADS) as threads:
        return list(threads.map(body, range(THREADS)))


def test_threads_that_claim_one_slot_have_one_winner(table: Table, run: str) -> None:
    slots = Slots(table)
    slots.create(run, 5)
    seen = slots.list(run)

    def claim(number: int) -> list[int]:
        won = []
        for slot in seen:
            try:
                slots.claim(slot, NO_INSTANCE, cause=Cause.SUBMIT, now=number)
            except Lost:
                continue
            won.append(slot.slot)
        return won

    won = Counter(slot for winner in at_once(claim) for slot in winner)  # type: ignore[attr-defined]
    assert won == dict.fromkeys(range(5), 1)
    assert {slot.incarnation for slot in slots.list(run)} == {1}


def test_counters_and_sets_lose_no_write_beside_failing_transactions(table: Table, run: str) -> None:
    """The load under which an emulator without a lock lost acknowledged writes."""
    counter, guard = Key(pk=f"RUN#{run}", sk="COUNTER"), Key(pk=f"RUN#{run}", sk="GUARD")

    def work(number: int) -> int:
        committed = 0
        for turn in range(10):
            table.write(Update(key=counter, increment={"n": 1}, include={"who": frozenset({f"{number}-{turn}"})}))
            try:
                table.transact(
                    [Update(key=counter, increment={"sometimes": 1}), Check(key=guard, when=Eq("open", turn % 5 == 4))]
                )
            except Lost:
                continue
            committed += 1
        return committed

    table.write(Put(key=guard, item={"open": True}))
    committed = sum(at_once(work))  # type: ignore[arg-type]
    found = table.get(counter)
    assert found is not None
    assert (committed, found["sometimes"]) == (THREADS * 2, THREADS * 2)
    assert found["n"] == THREADS * 10
    assert len(found["who"]) == THREADS * 10  # type: ignore[arg-type]


def test_of_the_ranks_that_finish_together_at_least_the_last_sees_the_whole_set(table: Table, run: str) -> None:
    checkpoints = Checkpoints(table)
    parts: list[Part] = [part(run, 1, 7, rank, THREADS) for rank in range(THREADS)]
    seen = at_once(lambda rank: checkpoints.add_part(parts[rank], kind=SaveKind.FLUSH, now=0))
    assert [is_complete(one) for one in seen].count(True) == 1  # type: ignore[arg-type]


def test_transactions_that_meet_are_tried_again_until_one_is_first(table: Table, run: str) -> None:
    """Every thread moves one unit from A to B five times; a conflict is no loss and no unit appears or vanishes."""
    here, there = Key(pk=f"RUN#{run}", sk="A"), Key(pk=f"RUN#{run}", sk="B")
    table.write(Put(key=here, item={"n": THREADS * 5}))

    def move(number: int) -> None:
        for _ in range(5):
            table.transact(
                [Update(key=here, increment={"n": -1}, when=Exists("pk")), Update(key=there, increment={"n": 1})]
            )

    at_once(move)
    assert [item["n"] for item in table.query(f"RUN#{run}")] == [0, THREADS * 5]


@pytest.fixture(params=[FILE, *EMULATED_TABLES])
def shared(
    request: pytest.FixtureRequest, tmp_path: Path, emulated_table: Callable[[str], Table]
) -> Iterator[tuple[Table, list[str]]]:
    """A table that several processes can open, and how they do it."""
    match request.param:
        case "file":
            with LocalTable(tmp_path / "table.sqlite") as table:
                yield table, ["local", str(tmp_path / "table.sqlite")]
        case name:
            url = request.getfixturevalue({MOTO: "moto_url", DYNAMODB_LOCAL: "dynamodb_local_url"}[name])
            yield emulated_table(name), ["dynamo", url, TABLE_NAME]


def race(where: list[str], contest: str, run: str) -> list[list[int]]:
    """Let processes race and return what each won."""
    racers = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.conformance.racer", *where, contest, run, str(number)],
            cwd=ROOT,
            env=dict(os.environ),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for number in range(PROCESSES)
    ]
    try:
        for racer in racers:
            assert racer.stdout is not None
            assert racer.stdout.readline() == "ready\n"
        for racer in racers:
            assert racer.stdin is not None
            racer.stdin.write("go\n")
            racer.stdin.flush()
        return [[int(word) for word in racer.communicate(timeout=60)[0].split()] for racer in racers]
    finally:
        for racer in racers:
            racer.kill()
            racer.communicate()


def test_processes_that_claim_the_same_slots_have_one_winner_each(shared: tuple[Table, list[str]], run: str) -> None:
    table, where = shared
    Slots(table).create(run, SLOTS)
    won = Counter(slot for winner in race(where, "claim", run) for slot in winner)
    assert won == dict.fromkeys(range(SLOTS), 1)
    assert {slot.incarnation for slot in Slots(table).list(run)} == {1}


def test_processes_that_write_the_same_item_all_get_through(shared: tuple[Table, list[str]], run: str) -> None:
    table, where = shared
    assert race(where, "count", run) == [[COUNTS]] * PROCESSES
    assert [item["n"] for item in table.query(f"RUN#{run}")] == [COUNTS] * PROCESSES + [COUNTS * PROCESSES]


def test_processes_that_seal_make_each_generation_once(shared: tuple[Table, list[str]], run: str) -> None:
    table, where = shared
    sealed = race(where, "seal", run)
    assert Counter(g for winner in sealed for g in winner) == dict.fromkeys(range(1, STEPS + 1), 1)
    for number, winner in enumerate(sealed):
        for g in winner:
            stands = Memberships(table).generation(run, g)
            assert stands is not None
            assert stands.members == (f"0:{g}:i-{number}",)


def test_the_pointer_never_goes_back_and_stands_still_after_a_seal(shared: tuple[Table, list[str]], run: str) -> None:
    """Four processes commit in generation 1; this one watches, then seals generation 2 under them."""
    table, where = shared
    memberships, pointers = Memberships(table), Pointers(table)
    memberships.seal(generation(run, 1), pointer=None)
    seen: list[int] = []
    over = threading.Event()

    def watch() -> None:
        while not over.is_set():
            found = pointers.read(run)
            seen.append(0 if found is None else found.rank)

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        rose = race(where, "rise", run)
    finally:
        over.set()
        watcher.join()
    assert seen == sorted(seen)
    assert all(steps == sorted(steps) for steps in rose)
    final = pointers.read(run)
    assert final is not None
    assert final.rank == pointer_rank(1, STEPS * 4)
    memberships.seal(generation(run, 2), pointer=final)
    assert race(where, "rise", run) == [[]] * PROCESSES
    assert pointers.read(run) == final


def test_a_seal_and_a_commit_that_meet_never_both_ignore_the_other(table: Table, run: str) -> None:
    """Whoever is first: either the seal saw the commit, or the commit found itself superseded."""
    memberships, pointers = Memberships(table), Pointers(table)
    memberships.seal(generation(run, 1), pointer=None)
    together = threading.Barrier(2)

    def first(work: Callable[[], object]) -> bool:
        together.wait()
        try:
            work()
        except (Lost, Superseded):
            return False
        return True

    with ThreadPoolExecutor(2) as threads:
        sealing = threads.submit(first, lambda: memberships.seal(generation(run, 2), pointer=None))
        committing = threads.submit(first, lambda: pointers.rise(pointer(run, 1, 5), own_generation=1))
        sealed, committed = sealing.result(), committing.result()
    assert sealed is not committed
    assert (pointers.read(run) is not None) is committed

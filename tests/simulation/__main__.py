"""`python -m tests.simulation --n 20000`: seeded histories of the control plane, on all cores.

Prints how many of each fault were injected. A seed that fails is made calmer for as long as it still fails, and what
is left of it is printed. `--mutations` puts faults into the protocol and says how many histories each one survived.
"""

from __future__ import annotations

import argparse
import gc
import itertools
import logging
import multiprocessing
import os
import random
import sys
import time
from collections import Counter
from collections.abc import Sequence
from typing import TypeAlias

from tests.simulation.history import History
from tests.simulation.mutations import CATCHING, MUTATIONS
from tests.simulation.weather import Weather, calmer

Found: TypeAlias = tuple[int, str]  # histories that a mutation survived, the last of them with it; what was violated
MUTATION_LIMIT = 2000
SHRINKING_S = 120
TOLD = 3  # of the seeds that fail


def prepare() -> None:
    """In each process: nobody reads the log, and a history's garbage can wait for a few more."""
    logging.disable(logging.CRITICAL)
    gc.set_threshold(100_000, 20, 50)


def played(seed: int) -> tuple[int, list[str], Counter[str]]:
    """One history: its seed, what went wrong, what was injected."""
    history = History(Weather.of(seed)).play()
    return seed, history.violations, history.faults


def shortest(weather: Weather) -> History:
    """The calmest history found that still fails, within the time that this may take."""
    give_up_at = time.monotonic() + SHRINKING_S
    history = History(weather).play()
    while time.monotonic() < give_up_at:
        found = next((tried for one in calmer(weather) if (tried := History(one).play()).violations), None)
        if found is None:
            break
        history, weather = found, found.weather
    return history


def told(history: History) -> str:
    """What is left of a history, and what it violates."""
    return "\n  ".join([f"shortest history found: {history.weather}", *history.violations, *history.story()])


def simulate(count: int, first: int) -> bool:
    """Play `count` histories; True if none violates anything."""
    begun, faults, failed = time.monotonic(), Counter[str](), list[int]()
    with multiprocessing.get_context("fork").Pool(os.cpu_count() or 1, prepare) as pool:
        for number, (seed, violations, injected) in enumerate(
            pool.imap_unordered(played, range(first, first + count), chunksize=4), start=1
        ):
            faults += injected
            if violations:
                failed.append(seed)
                print(f"seed {seed}: {violations[0]}", flush=True)
            if number % 1000 == 0:
                print(f"{number} histories, {len(failed)} failed, {time.monotonic() - begun:.0f} s", flush=True)
    for seed in failed[:TOLD]:
        print(f"seed {seed}, {told(shortest(Weather.of(seed)))}")
    print("injected:")
    for name, times in sorted(faults.items()):
        print(f"  {name}: {times}")
    took_s = time.monotonic() - begun
    each = f"{1000 * took_s / count:.0f} ms each"
    print(f"{count} histories from seed {first}: {len(failed)} violations, {took_s:.0f} s, {each}")
    return not failed


def caught(name: str, first: int, seen: Sequence[int] = ()) -> Found | None:
    """How many histories it took to catch the mutation, and by what; None if none of 2,000 did. `seen` come first."""
    fresh = (seed for seed in itertools.count(first) if CATCHING[name](Weather.of(seed)))
    suited = itertools.chain(seen, fresh)
    with MUTATIONS[name]():
        for number, seed in enumerate(itertools.islice(suited, MUTATION_LIMIT), start=1):
            violations = History(Weather.of(seed)).play().violations
            if violations:
                return number, violations[0]
    return None


def catch(asked: tuple[str, int, Sequence[int]]) -> tuple[str, Found | None]:
    """`caught` for a pool of processes: what it takes; the name comes back with what was found."""
    return asked[0], caught(*asked)


def mutate(first: int) -> bool:
    """Run every mutation; True if each is caught in time."""
    sound = True
    with multiprocessing.get_context("fork").Pool(os.cpu_count() or 1, prepare) as pool:
        for name, found in pool.imap_unordered(catch, [(name, first, ()) for name in MUTATIONS]):
            said = "NOT caught" if found is None else f"caught after {found[0]} histories: {found[1][:100]}"
            print(f"mutation '{name}': {said}", flush=True)
            sound = sound and found is not None
    return sound


def main() -> int:
    """Command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation")
    parser.add_argument("--n", type=int, default=200, help="how many histories")
    parser.add_argument("--seed", type=int, default=None, help="the first seed; a fresh one by default")
    parser.add_argument("--mutations", action="store_true", help="show that faults in the protocol are caught")
    options = parser.parse_args()
    prepare()
    first = random.SystemRandom().randrange(10**9) if options.seed is None else options.seed
    print(f"seeds from {first}", flush=True)
    mutants = mutate(first) if options.mutations else True
    return 0 if simulate(options.n, first) and mutants else 1


if __name__ == "__main__":
    sys.exit(main())

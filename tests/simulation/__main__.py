"""`python -m tests.simulation --n 20000`: seeded histories of the control plane, on all cores.

Prints how many of each fault were injected. A seed that fails is made calmer for as long as it still fails, and what
is left of it is printed.
"""

from __future__ import annotations

import argparse
import itertools
import logging
import multiprocessing
import os
import random
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import fields, replace

from tests.simulation.history import History, Weather
from tests.simulation.mutations import CATCHING, MUTATIONS

MUTATION_LIMIT = 2000


def played(seed: int) -> tuple[int, list[str], Counter[str]]:
    """One history: its seed, what went wrong, what was injected."""
    history = History(Weather.of(seed)).play()
    return seed, history.violations, history.faults


def calmer(weather: Weather) -> Iterator[Weather]:
    """The same weather with one fault less."""
    for one in fields(weather):
        value = getattr(weather, one.name)
        if one.name not in {"seed", "slots", "clean", "length_s", "losses", "notice_share"} and value:
            yield replace(weather, **{one.name: type(value)()})
    if weather.losses > 1:
        yield replace(weather, losses=weather.losses - 1)
    if weather.slots > 1:
        yield replace(weather, slots=weather.slots - 1)


def shortest(weather: Weather) -> History:
    """The calmest history found that still fails."""
    history = History(weather).play()
    for _ in range(40):
        found = next((tried for one in calmer(weather) if (tried := History(one).play()).violations), None)
        if found is None:
            return history
        history, weather = found, found.weather
    return history


def simulate(count: int, first: int) -> bool:
    """Play `count` histories; True if none violates anything."""
    begun, faults, failed = time.monotonic(), Counter[str](), list[int]()
    with multiprocessing.get_context("fork").Pool(os.cpu_count() or 1) as pool:
        for number, (seed, violations, injected) in enumerate(
            pool.imap_unordered(played, range(first, first + count), chunksize=4), start=1
        ):
            faults += injected
            if violations:
                failed.append(seed)
                print(f"seed {seed}: {violations[0]}")
            if number % 500 == 0:
                print(f"{number} histories, {len(failed)} failed, {time.monotonic() - begun:.0f} s", flush=True)
    for name, times in sorted(faults.items()):
        print(f"  {name}: {times}")
    print(f"{count} histories from seed {first}: {len(failed)} violations, {time.monotonic() - begun:.0f} s")
    for seed in failed[:1]:
        history = shortest(Weather.of(seed))
        print(f"shortest history found for seed {seed}: {history.weather}", *history.violations, sep="\n  ")
    return not failed


def caught(name: str, first: int) -> int | None:
    """How many histories it took to catch the mutation; None if none of 2,000 did."""
    suited = (seed for seed in itertools.count(first) if CATCHING[name](Weather.of(seed)))
    with MUTATIONS[name]():
        for number, seed in enumerate(itertools.islice(suited, MUTATION_LIMIT), start=1):
            if History(Weather.of(seed)).play().violations:
                return number
    return None


def main() -> int:
    """Command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation")
    parser.add_argument("--n", type=int, default=200, help="how many histories")
    parser.add_argument("--seed", type=int, default=None, help="the first seed; a fresh one by default")
    parser.add_argument("--mutations", action="store_true", help="show that faults in the protocol are caught")
    options = parser.parse_args()
    logging.disable(logging.CRITICAL)
    first = random.SystemRandom().randrange(10**9) if options.seed is None else options.seed
    sound = simulate(options.n, first)
    for name in MUTATIONS if options.mutations else ():
        number = caught(name, first)
        print(f"mutation '{name}': " + ("NOT caught" if number is None else f"caught by history {number}"))
        sound = sound and number is not None
    return 0 if sound else 1


if __name__ == "__main__":
    sys.exit(main())

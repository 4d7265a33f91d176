"""The control plane in seeded weather, small form; `make simulate N=20000` is the large one.

Which mutations must be caught, and by what, stands in `mutations`; `python -m tests.simulation --mutations` says how
many histories each one survives from a fresh seed.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import random
from collections.abc import Iterator, Mapping

import pytest

from tests.simulation.__main__ import Found, catch, prepare, shortest, told
from tests.simulation.history import History
from tests.simulation.mutations import CATCHING, MUTATIONS
from tests.simulation.seen import SEEN
from tests.simulation.weather import Weather, calmer

HISTORIES = 60


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


def test_no_history_leaves_a_slot_open_a_node_forgotten_or_two_where_one_belongs() -> None:
    first = random.SystemRandom().randrange(10**9)
    print(f"histories {first} to {first + HISTORIES - 1}")
    for seed in range(first, first + HISTORIES):
        if History(Weather.of(seed)).play().violations:
            pytest.fail(f"seed {seed}, {told(shortest(Weather.of(seed)))}")


def test_a_history_is_a_function_of_its_seed() -> None:
    weather = Weather.of(9)
    one, two = History(weather).play(), History(weather).play()
    assert one.faults == two.faults
    assert one.world.slots("sim") == two.world.slots("sim")
    assert one.ec2.calls == two.ec2.calls


def test_a_calmer_weather_has_one_fault_less() -> None:
    weather = Weather.of(3)
    assert all(one != weather for one in calmer(weather))
    assert list(calmer(Weather(seed=1, slots=1, clean=True, length_s=200.0))) == []


@pytest.fixture(scope="module")
def found() -> Mapping[str, Found | None]:
    """What caught each mutation, on all cores; the history that caught it before goes first.

    Spawned processes, because this one may have threads.
    """
    with multiprocessing.get_context("spawn").Pool(os.cpu_count() or 1, prepare) as pool:
        return dict(pool.imap_unordered(catch, [(name, 0, SEEN.get(name, ())) for name in MUTATIONS]))


@pytest.mark.parametrize("name", MUTATIONS)
def test_a_fault_in_the_protocol_is_caught(name: str, found: Mapping[str, Found | None]) -> None:
    assert found[name] is not None


def test_every_mutation_says_in_which_weather_it_can_be_seen() -> None:
    assert set(MUTATIONS) == set(CATCHING)

"""Faults put into the protocol on purpose: a simulation that does not catch them proves nothing.

Each mutation changes one thing in the real code for as long as its context is open.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Final

from lambdas import wiring
from lambdas.decisions import answers, ending, losses, repairing, silence
from lambdas.effects.fleet import Fleet
from spotproof.store.slots import Slots
from spotproof.store.table import Exists, Update
from tests.simulation.history import Weather


@contextmanager
def patched(target: Any, name: str, value: Any) -> Iterator[None]:
    """Replace an attribute for a while."""
    before = getattr(target, name)
    setattr(target, name, value)
    try:
        yield
    finally:
        setattr(target, name, before)


@contextmanager
def claim_condition_dropped() -> Iterator[None]:
    """Every claim wins."""

    def move(self: Slots, seen: Any, changed: Any, *, remove: Any, when: Any) -> Any:
        return original(self, seen, changed, remove=remove, when=Exists("pk") if "claimed_at" in changed else when)

    original = Slots._move
    with patched(Slots, "_move", move), patched(losses, "place_of", _anywhere):
        yield


def _anywhere(slot: Any, instance: str) -> Any:
    return losses.Place.HOLDER


@contextmanager
def look_again_dropped() -> Iterator[None]:
    """The launcher lets go and leaves."""
    with patched(wiring, "LOOKS", 1):
        yield


@contextmanager
def token_not_stored() -> Iterator[None]:
    """Each CreateFleet call makes its own token."""
    numbers = itertools.count()

    def create(self: Fleet, request: str, token: str, **rest: Any) -> Any:
        return original(self, request, f"fresh-{next(numbers)}", **rest)

    original = Fleet.create
    with patched(Fleet, "create", create):
        yield


@contextmanager
def bind_condition_dropped() -> Iterator[None]:
    """Binding overwrites what is bound."""

    def write(self: Slots, change: Update, *, done: Any) -> Any:
        return original(
            self, replace(change, when=Exists("pk")) if "successor_bound_at" in change.set else change, done=done
        )

    def pairs(facts: Any, launch: Any) -> Any:
        for want, instance in zip(launch.wants, launch.instances, strict=False):
            slot = facts.slot(int(want.split(":")[0]))
            yield replace(slot, successor_instance="none"), instance

    original = Slots._write
    with patched(Slots, "_write", write), patched(answers, "_pairs", pairs):
        yield


@contextmanager
def surplus_kept() -> Iterator[None]:
    """What nobody has a place for is left running."""
    with (
        patched(answers, "_surplus", lambda *_: []),
        patched(ending, "orphans", lambda *_: ()),
    ):
        yield


@contextmanager
def silence_breaker_off() -> Iterator[None]:
    """Mass silence is taken for mass death."""
    with patched(silence, "is_mass", lambda _: False):
        yield


@contextmanager
def promotion_dropped() -> Iterator[None]:
    """A sealed membership changes no slot."""
    with patched(repairing, "promotions", lambda _: ()), patched(losses, "promotions", lambda _: ()):
        yield


@contextmanager
def silent_deaths_unseen() -> Iterator[None]:
    """The sweep believes that every instance lives."""
    with patched(repairing, "_is_gone", lambda *_: False), patched(silence, "silent", lambda *_: frozenset()):
        yield


@contextmanager
def hand_tagged_ended() -> Iterator[None]:
    """Everything with the run's tag counts as ours."""
    with patched(ending, "_may_end", lambda facts, machine: not machine.has_ended):
        yield


MUTATIONS: Final[Mapping[str, Callable[[], Any]]] = {
    "claim condition dropped": claim_condition_dropped,
    "look again dropped": look_again_dropped,
    "token not stored": token_not_stored,
    "bind condition dropped": bind_condition_dropped,
    "surplus kept": surplus_kept,
    "silence breaker off": silence_breaker_off,
    "promotion dropped": promotion_dropped,
    "silent deaths unseen": silent_deaths_unseen,
    "hand-tagged ended": hand_tagged_ended,
}

# The weather in which each of them can be seen; any other history would only cost time.
CATCHING: Final[Mapping[str, Callable[[Weather], bool]]] = {
    "claim condition dropped": lambda weather: True,
    "look again dropped": lambda weather: weather.clean,
    "token not stored": lambda weather: weather.kills > 0 or weather.throttles > 0,
    "bind condition dropped": lambda weather: True,
    "surplus kept": lambda weather: weather.extra > 0,
    "silence breaker off": lambda weather: weather.beats_out_s > 0 and weather.slots >= 5,
    "promotion dropped": lambda weather: True,
    "silent deaths unseen": lambda weather: weather.notice_share < 1,
    "hand-tagged ended": lambda weather: not weather.clean,
}

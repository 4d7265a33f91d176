"""Faults put into the protocol on purpose: a simulation that does not catch them proves nothing.

Each mutation changes one thing in the real code, from outside, for as long as its context is open; what must catch it
stands in its docstring.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Final

from lambdas import wiring
from lambdas.decisions import (
    adoption,
    answers,
    elastic,
    ending,
    flush,
    launching,
    losses,
    moves,
    repairing,
    silence,
    sorting,
    standby,
)
from lambdas.decisions.facts import Facts
from lambdas.effects.fleet import Fleet
from spotproof.agent import membership
from spotproof.contract import keys
from spotproof.contract.items import Launch, Member, PointerItem, Slot, to_item
from spotproof.contract.states import LaunchState
from spotproof.store.head import Heads
from spotproof.store.launches import Launches
from spotproof.store.members import Members, Memberships
from spotproof.store.pointer import Pointers
from spotproof.store.replacements import Replacements
from spotproof.store.slots import Slots
from spotproof.store.storms import Storms
from spotproof.store.table import Exists, Put, Update
from tests.simulation import signs
from tests.simulation.weather import Weather


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
    """Every claim wins: a slot is claimed twice for one loss."""

    def claiming(self: Slots, seen: Any, instance: str, **how: Any) -> Update:
        return replace(original(self, seen, instance, **how), when=Exists("pk"))

    original = Slots.claiming
    with patched(Slots, "claiming", claiming), patched(losses, "place_of", _anywhere):
        yield


@contextmanager
def short_way_unconditional() -> Iterator[None]:
    """The one write of the short way has no condition: what is claimed, or launched for, is so again."""

    def begin(self: Replacements, seen: Any, claim: Update, launch: Put, **rest: Any) -> None:
        blind = replace(claim, when=Exists("pk"))
        original(self, replace(seen, counted_launch=0), blind, replace(launch, when=None), **{**rest, "order": None})

    original = Replacements.begin
    with patched(Replacements, "begin", begin):
        yield


@contextmanager
def short_way_overwrites_launches() -> Iterator[None]:
    """The short way does not look whether its launch's number is free: what that one launched is in no record."""

    def begin(self: Replacements, seen: Any, claim: Update, launch: Put, **rest: Any) -> None:
        original(self, replace(seen, counted_launch=0), claim, replace(launch, when=None), **rest)

    original = Replacements.begin
    with patched(Replacements, "begin", begin):
        yield


def _anywhere(slot: Any, instance: str) -> Any:
    return losses.Place.HOLDER


@contextmanager
def look_again_dropped() -> Iterator[None]:
    """The launcher lets go and leaves: a claim waits for the sweep although nothing failed."""
    with patched(wiring, "LOOKS", 1):
        yield


@contextmanager
def join_barrier_dropped() -> Iterator[None]:
    """A successor joins as soon as it is ready: sealed over a node that could still save."""

    def waiting_for(*, slot: Slot, **rest: Any) -> str:
        original(slot=slot, **rest)
        return ""

    original = membership.waiting_for
    with patched(membership, "waiting_for", waiting_for):
        yield


@contextmanager
def notice_not_waited_for() -> Iterator[None]:
    """A prewarmed successor joins beside a healthy holder: sealed over a node that is well."""

    def waiting_for(*, slot: Slot, **rest: Any) -> str:
        return original(slot=replace(slot, waits_for_notice=None, deadline_at=slot.claimed_at), **rest)

    original = membership.waiting_for
    with patched(membership, "waiting_for", waiting_for):
        yield


@contextmanager
def token_not_stored() -> Iterator[None]:
    """Each CreateFleet call makes its own token: a replay launches again."""
    numbers = itertools.count()

    def create(self: Fleet, request: str, token: str, **rest: Any) -> Any:
        return original(self, request, f"fresh-{next(numbers)}", **rest)

    original = Fleet.create
    with patched(Fleet, "create", create):
        yield


@contextmanager
def launch_overwritten() -> Iterator[None]:
    """A launch record replaces another of its number: what that one launched is in no record and in no slot."""

    def intending(self: Launches, launch: Launch) -> Put:
        return replace(original(self, launch), when=None)

    original = Launches.intending
    with patched(Launches, "intending", intending):
        yield


@contextmanager
def unfinished_launch_not_replayed() -> Iterator[None]:
    """A launch that was cut off is left as it is: its slots are never filled."""

    def next_step(facts: Facts) -> Any:
        mine = tuple(one for one in facts.launches if one.state is LaunchState.CLOSED or _is_young(facts, one))
        return original(replace(facts, launches=mine))

    original = launching.next_step
    with patched(launching, "next_step", next_step):
        yield


def _is_young(facts: Facts, launch: Launch) -> bool:
    return facts.now - launch.made_at < 45  # one handler's own


@contextmanager
def claims_launched_twice() -> Iterator[None]:
    """Claims that an unfinished launch lists count as open for the next one: two nodes for one loss."""

    def next_step(facts: Facts) -> Any:
        return original(
            replace(facts, launches=tuple(replace(one, state=LaunchState.CLOSED) for one in facts.launches))
        )

    original = launching.next_step
    with patched(launching, "next_step", next_step):
        yield


@contextmanager
def bind_condition_dropped() -> Iterator[None]:
    """Binding overwrites what is bound: one incarnation is given to two instances."""

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
    """What nobody has a place for is left running: there and in no slot."""
    with patched(answers, "_surplus", lambda *_: []), patched(ending, "orphans", lambda *_: ()):
        yield


@contextmanager
def orphans_kept() -> Iterator[None]:
    """Nobody hunts for instances that no slot knows: old nodes that woke up stay."""
    with patched(ending, "orphans", lambda *_: ()):
        yield


@contextmanager
def silence_breaker_off() -> Iterator[None]:
    """Mass silence is taken for mass death: more is launched than was lost."""
    with patched(silence, "is_mass", lambda _: False):
        yield


@contextmanager
def promotion_dropped() -> Iterator[None]:
    """A sealed membership changes no slot: claims replace the wrong node, slots are never filled."""
    with patched(repairing, "promotions", lambda _: ()), patched(losses, "promotions", lambda _: ()):
        yield


@contextmanager
def silent_deaths_unseen() -> Iterator[None]:
    """The sweep believes that every instance lives: a slot stays with a dead node."""
    with patched(repairing, "_is_gone", lambda *_: False), patched(silence, "silent", lambda *_: frozenset()):
        yield


@contextmanager
def leavers_unseen() -> Iterator[None]:
    """A node that has drained counts as working: a run that was paused and resumed stays idle."""
    with patched(repairing, "_has_left", lambda _: False):
        yield


@contextmanager
def foreign_ended() -> Iterator[None]:
    """Everything with the run's tag counts as ours: somebody else's instance is terminated."""
    with patched(ending, "_may_end", lambda facts, machine: not machine.has_ended):
        yield


@contextmanager
def generation_unchecked() -> Iterator[None]:
    """A commit looks at no generation: a superseded node commits."""

    def rise(self: Pointers, pointer: PointerItem, *, own_generation: int) -> PointerItem:
        newest = Memberships(self._table).newest(pointer.run)
        return original(self, pointer, own_generation=own_generation if newest is None else newest.generation)

    original = Pointers.rise
    with patched(Pointers, "rise", rise):
        yield


@contextmanager
def leavers_named_again() -> Iterator[None]:
    """Every order repeats the leavers of the one before: replacements are told to leave."""
    with patched(flush, "_unheard_leavers", flush.standing_leavers):
        yield


@contextmanager
def recoveries_uncounted() -> Iterator[None]:
    """No recovery is counted: the budget for recoveries without a commit does not hold."""

    def launched(self: Heads, run: str, launch: int, *, recovered: bool) -> Any:
        del recovered
        return original(self, run, launch, recovered=False)

    original = Heads.launched
    with patched(Heads, "launched", launched):
        yield


@contextmanager
def places_kept_by_the_lost() -> Iterator[None]:
    """A node that stood by took a lost one's place, and the lost one stays in its own: the books find it there."""
    with patched(standby, "displaced", lambda *_: ()):
        yield


@contextmanager
def successor_not_awaited() -> Iterator[None]:
    """A holder that is moved is told to leave at once: before its successor is ready."""
    with patched(moves, "_is_ready", lambda *_: True):
        yield


@contextmanager
def prewarmed_kept() -> Iterator[None]:
    """A node that was started for advice alone stays for ever."""
    with patched(moves, "_withdrawn", lambda *_: ()):
        yield


@contextmanager
def date_forgotten() -> Iterator[None]:
    """The date of a planned move comes, and nobody looks."""
    with patched(moves, "_due", lambda *_: ()):
        yield


@contextmanager
def storm_breaker_off() -> Iterator[None]:
    """Advice for many nodes starts as many successors."""
    with patched(Storms, "spend", lambda *_, **__: 1):
        yield


@contextmanager
def hand_tagged_entered_twice() -> Iterator[None]:
    """An instance that people offer is entered without a condition: two handlers give it two places."""

    def put(self: Members, member: Member) -> None:
        self._table.write(Put(key=keys.member(member.instance), item=to_item(member)))

    with patched(Members, "put", put):
        yield


@contextmanager
def untagging_unseen() -> Iterator[None]:
    """A person takes the tag off, and the run keeps the node."""
    with patched(sorting, "_of_tags", _only_opt_ins), patched(adoption, "untagged", lambda *_: []):
        yield


def _only_opt_ins(message: Any, known: Any) -> Iterator[Any]:
    machine = known.machines.get(message.instance)
    if machine is not None and message.instance not in known.members and sorting.is_by_hand(machine, known.stack):
        yield machine.run, sorting.OptedIn(machine=machine)


@contextmanager
def block_unheard() -> Iterator[None]:
    """The end of a capacity block concerns nobody."""
    with patched(sorting, "_of_block", lambda *_: iter(())):
        yield


@contextmanager
def reach_not_taken_back() -> Iterator[None]:
    """An elastic run shrinks, and its sealers never wait for all again: the books find the word."""
    right = elastic.decide
    with patched(elastic, "decide", lambda *words: tuple(one for one in right(*words) if getattr(one, "nodes", 0))):
        yield


MUTATIONS: Final[Mapping[str, Callable[[], Any]]] = {
    "claim condition dropped": claim_condition_dropped,
    "short way without conditions": short_way_unconditional,
    "short way overwrites launches": short_way_overwrites_launches,
    "look again dropped": look_again_dropped,
    "join barrier dropped": join_barrier_dropped,
    "prewarmed node does not wait": notice_not_waited_for,
    "token not stored": token_not_stored,
    "launch record overwritten": launch_overwritten,
    "unfinished launch not replayed": unfinished_launch_not_replayed,
    "claims launched twice": claims_launched_twice,
    "bind condition dropped": bind_condition_dropped,
    "surplus kept": surplus_kept,
    "orphans kept": orphans_kept,
    "silence breaker off": silence_breaker_off,
    "promotion dropped": promotion_dropped,
    "silent deaths unseen": silent_deaths_unseen,
    "drained nodes unseen": leavers_unseen,
    "foreign instance ended": foreign_ended,
    "generation unchecked": generation_unchecked,
    "leavers named again": leavers_named_again,
    "recoveries uncounted": recoveries_uncounted,
    "places kept by the lost": places_kept_by_the_lost,
    "reach not taken back": reach_not_taken_back,
    "successor of a move not awaited": successor_not_awaited,
    "prewarmed node kept": prewarmed_kept,
    "date of a move forgotten": date_forgotten,
    "storm breaker off": storm_breaker_off,
    "hand-tagged node entered twice": hand_tagged_entered_twice,
    "untagging unseen": untagging_unseen,
    "end of a block unheard": block_unheard,
}

# The weather in which each of them can be seen; any other history would only cost time.
CATCHING: Final[Mapping[str, Callable[[Weather], bool]]] = {
    "claim condition dropped": lambda weather: True,
    "short way without conditions": lambda weather: not (weather.gang or weather.clean),
    "short way overwrites launches": lambda weather: weather.slots > 1 and not (weather.gang or weather.clean),
    "look again dropped": lambda weather: weather.clean and weather.leases_out == 0,
    "join barrier dropped": lambda weather: weather.notice_share > 0,
    "prewarmed node does not wait": lambda weather: weather.prewarm and weather.rebalances > 0,
    "token not stored": lambda weather: weather.kills > 0 or weather.throttles > 0 or weather.lost_answers > 0,
    "launch record overwritten": lambda weather: weather.leases_out > 0,
    "unfinished launch not replayed": lambda weather: weather.kills > 0,
    "claims launched twice": lambda weather: True,
    "bind condition dropped": lambda weather: True,
    "surplus kept": lambda weather: weather.extra > 0,
    "orphans kept": lambda weather: not weather.clean,
    "silence breaker off": lambda weather: weather.beats_out_s > 0 and weather.slots >= 5,
    "promotion dropped": lambda weather: True,
    "silent deaths unseen": lambda weather: weather.notice_share < 1,
    "drained nodes unseen": lambda weather: weather.pauses > 0,
    "foreign instance ended": lambda weather: not weather.clean,
    "generation unchecked": lambda weather: weather.wakes,
    "leavers named again": lambda weather: weather.slots > 1 and not weather.clean,
    "recoveries uncounted": lambda weather: weather.small_budget,
    "places kept by the lost": lambda weather: weather.standby > 0,
    "reach not taken back": lambda weather: weather.least > 0 and weather.dry_phases > 0,
    "successor of a move not awaited": lambda weather: weather.maintenances > 0 and not weather.failback_s,
    "prewarmed node kept": lambda weather: weather.prewarm and weather.rebalances > 0,
    "date of a move forgotten": lambda weather: weather.maintenances > 0,
    "storm breaker off": signs.may_be_a_storm,
    "hand-tagged node entered twice": lambda weather: weather.by_hand > 1 and weather.slots > 2 and weather.stalls > 0,
    "untagging unseen": lambda weather: weather.by_hand > 0,
    "end of a block unheard": lambda weather: weather.blocks > 0 and signs.is_mild(weather),
}

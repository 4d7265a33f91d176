"""Table items as values. Attribute names are the field names; lists and sets of plain values only.

`to_item` drops fields that are None (an attribute is absent or has a value); `from_item` ignores attributes that it
does not know, so that a handler of this version can read what the next version wrote.
"""

from __future__ import annotations

import dataclasses
import functools
import typing
from collections.abc import Mapping
from dataclasses import field
from enum import StrEnum
from typing import Any, TypeVar

from spotproof.contract.frozen import dataclass
from spotproof.contract.plain import Reader, reader_of
from spotproof.contract.states import (
    Cause,
    FlushOutcome,
    LaunchState,
    Market,
    NodePhase,
    NoticeKind,
    RunStatus,
)
from spotproof.errors import ContractError

NO_INSTANCE = "none"  # a slot's place that waits for an instance: a value, so that conditions can compare it
NEVER = 2**40  # a deadline that does not come: the holder is well, and nobody has told it to leave


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """Status of a run and its flush order; under 1 KB because agents poll it. Times are Unix seconds."""

    run: str
    status: RunStatus
    cause: Cause | None = None
    reason: str = ""  # for people, at most 200 characters
    status_at: int = 0  # when it got this status
    slots: int = 1
    standby: int = 0  # places beside the slots; which of them all work is what the newest membership says
    least: int = 0  # of an elastic run: with how many it works at the least; 0: it is none
    reach: int = 0  # ... how many are there or may come, as far as EC2 answered; 0: as many as slots
    bad: int = 0  # of many nodes: the newest generation that has lost one; its survivors form the next
    order: str | None = None  # id of the newest flush order
    order_kind: NoticeKind | None = None
    order_deadline_at: int | None = None
    order_leavers: str | None = None  # slot bitmap in hex
    order_at: int = 0  # when it was given
    order_generation: int = 0  # the newest membership when its leavers were named; 0: unknown
    wake_at: int = 0  # when somebody comes for the claims that a burst leaves open; past: nobody is expected
    wake_s: int = 0  # how long that one waits: it grows while a burst goes on
    recoveries: int = 0  # since the last commit
    committed_step: int = 0  # newest commit that the sweep has seen; resets `recoveries`
    spot_attempts: int = 0  # failed in a row
    next_launch_at: int = 0
    submitted_at: int = 0
    budgets_at: int = 0  # since when dollars and wall clock are counted: submit, or the last resume
    counted_launch: int = 0  # the newest launch whose outcome is in the counters: each counts once
    refused: str = ""  # code with which EC2 refused the last whole request; `refusals` times in a row
    refusals: int = 0
    node_faults: frozenset[str] = frozenset()  # `slot:incarnation` of nodes that failed before they joined
    spent_usd: float = 0.0  # an estimate, up to `spent_at`
    spent_at: int = 0
    measured_at: int = 0  # recoveries whose first step was up to then have been measured


@dataclass(frozen=True, slots=True, kw_only=True)
class Slot:
    """A place in a run. `holder_instance` / `successor_instance` are NO_INSTANCE while nobody is there yet."""

    run: str
    slot: int
    incarnation: int  # the newest number given out: the successor's if there is one, else the holder's
    holder_instance: str | None = None
    holder_incarnation: int | None = None
    successor_instance: str | None = None
    successor_incarnation: int | None = None
    successor_launch: int | None = None
    successor_bound_at: int | None = None
    claimed_at: int | None = None
    cause: Cause | None = None
    deadline_at: int | None = None  # when the holder may be gone; a successor joins 10 s after it at the latest
    lost_pool: str | None = None  # type#az#market that was just reclaimed: asked last
    waits_for_notice: bool | None = None  # the holder is well: the successor parks until it leaves or its deadline
    lost_deadline_at: int | None = None  # of the last claimed successor: it may have joined before, and still flush
    move_instance: str | None = None  # a holder that has to be moved, from `move_at` on, before `move_before`
    move_at: int | None = None
    move_before: int | None = None
    move_cause: Cause | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """One CreateFleet call. `request` is its complete JSON text, `wants` are `slot:incarnation` pairs."""

    run: str
    launch: int
    state: LaunchState
    wants: tuple[str, ...]
    request: str
    token: str
    market: Market
    made_at: int
    instances: tuple[str, ...] = ()
    pools: tuple[str, ...] = ()  # `type#az#market` of each of the instances that the answer named
    errors: tuple[str, ...] = ()  # `type#az#market:code`; `*:code`: the whole request was refused
    answered_at: int | None = None
    minimum: int = 0  # of a gang: with fewer instances nobody can work, and none is kept
    released: bool = False  # a gang's answer was too small: its instances are ended, never bound


@dataclass(frozen=True, slots=True, kw_only=True)
class LauncherLease:
    """Who is looking for open claims now; it only saves work."""

    run: str
    owner: str
    until: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """What an instance is to us."""

    instance: str
    run: str
    slot: int
    incarnation: int
    launch: int | None = None  # None: hand-tagged
    instance_type: str = ""
    zone: str = ""
    market: Market = Market.SPOT
    launched_at: int = 0
    ended_at: int | None = None
    types: tuple[str, ...] = ()  # what the run may use, so that a notice reads its pools beside the run; (): unknown
    zones: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Live:
    """The sweep's index entry."""

    run: str
    due_at: int
    looked_at: int = 0  # the last look at which everything could be read: silence is counted between such looks
    rests: bool = False  # looked at seldom: it wants no nodes for now
    # How often somebody wanted it looked at: no look that began before may let it rest. It is no news by itself.
    hastened: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pool:
    """What we learned of a pool. `cooldown_s` doubles while `until` keeps being renewed."""

    region: str
    instance_type: str
    zone: str
    market: Market
    until: int = 0
    cooldown_s: int = 0
    verdict: str = ""
    losses: int = 0
    lost_at: int | None = None
    hours: str = ""  # losses by hour of the week (UTC, from Monday 0 h): 168 digits, each stops at 9
    counted: tuple[str, ...] = ()  # `run#launch` of the newest counts, so that none is counted twice
    price_usd: float | None = None  # Spot price of an hour, as EC2 told it at `priced_at`
    priced_at: int = 0
    score: int | None = None  # Spot placement score of the zone, 1 (poor) to 10, as EC2 told it at `scored_at`
    scored_at: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """One entry of the timeline. `what` is one of contract.history.HistoryKind."""

    run: str
    at_ms: int
    what: str
    slot: int | None = None
    incarnation: int | None = None
    instance: str | None = None
    cause: Cause | None = None
    step: int | None = None
    detail: str = ""
    ttl: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A node's heartbeat, at most 200 bytes; what it says is a hint to the control plane."""

    run: str
    slot: int
    incarnation: int
    instance: str
    phase: NodePhase
    beat_at: int = 0
    beats: int = 0  # rises with each beat: others watch the change, not the clock
    generation: int = 0
    step: int = 0
    loss: float | None = None
    flush: FlushOutcome | None = None
    flush_step: int | None = None
    flush_why: str | None = None
    exit_code: int | None = None
    times: str | None = None  # contract.times: when it was ready, joined, restored, and made its first step


@dataclass(frozen=True, slots=True, kw_only=True)
class Generation:
    """One sealed membership. `members` are `slot:incarnation:instance`; the position in the list is the logical rank.
    The starting checkpoint is (start_generation, start_step), absent for the first start from nothing."""

    run: str
    generation: int
    members: tuple[str, ...]
    sealed_at: int
    start_generation: int | None = None
    start_step: int | None = None
    start_manifest: str | None = None
    start_digest: str | None = None
    endpoint: str = ""  # host:port of the store that rank 0 opened for this generation; empty: one member alone


@dataclass(frozen=True, slots=True, kw_only=True)
class Newest:
    """The newest sealed generation; `bad` is the newest one that somebody marked as broken."""

    run: str
    generation: int
    bad: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Join:
    """A node's launcher in the rendezvous: parked for generation `ready_for`, or training in it once it is sealed.

    `slot` -1: nobody has given it a place, the sealer does. `endpoint` is the store that it offers, in case it becomes
    rank 0.
    """

    run: str
    node: str
    slot: int = -1
    incarnation: int = 0
    ready_for: int = 0
    endpoint: str = ""
    beats: int = 0  # rises with each beat: others watch the change, not the clock
    left: bool = False  # gone on purpose; a launcher that is started again may come back
    gone: bool = False  # its node goes away: it never comes back
    staged: tuple[str, ...] = ()  # `generation:step:rank:world` of parts that are whole on this node's disk


@dataclass(frozen=True, slots=True, kw_only=True)
class Sealer:
    """Who gathers the members of generation `number`; it only saves the others the reading, it excludes nobody."""

    run: str
    number: int
    node: str
    beats: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointItem:
    """Which ranks' parts of a checkpoint are in S3 (`done` holds `rank` as text)."""

    run: str
    generation: int
    step: int
    world: int
    done: frozenset[str] = frozenset()
    kind: str = ""
    manifest_key: str | None = None
    bytes: int = 0
    begun_at: int = 0
    committed_at: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PointerItem:
    """The run's newest committed checkpoint. `rank` is generation * 10**12 + step: one number that only rises."""

    run: str
    generation: int
    step: int
    rank: int
    manifest_key: str
    manifest_digest: str
    committed_at: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Quarantine:
    """A checkpoint that was found damaged, and why."""

    run: str
    generation: int
    step: int
    reason: str
    found_at: int = 0


POINTER_BASE = 10**12


def pointer_rank(generation: int, step: int) -> int:
    """(generation, step) as one number in the same order; steps stay below 10**12."""
    return generation * POINTER_BASE + step


T = TypeVar("T")


def to_item(value: Any) -> dict[str, Any]:  # Any: every dataclass above, and every plain attribute value
    """`value` as attributes: enums as text, tuples as lists, frozensets as sets; None and empty sets are left out."""
    item: dict[str, Any] = {}
    for name in _names(typing.cast("Any", type(value))):
        content = getattr(value, name)
        if content is None or content == frozenset():
            continue
        item[name] = _plain(content)
    return item


def _plain(content: Any) -> Any:
    if isinstance(content, StrEnum):
        return content.value
    if isinstance(content, tuple):
        return list(content)
    if isinstance(content, frozenset):
        return set(content)
    return content


@functools.cache  # evaluating the annotations costs more than reading a hundred items
def _readers(kind: type[Any]) -> tuple[tuple[str, Reader], ...]:
    hints = typing.get_type_hints(kind)
    return tuple((field.name, reader_of(hints[field.name])) for field in dataclasses.fields(kind))


@functools.cache
def _names(kind: type[Any]) -> tuple[str, ...]:
    return tuple(field.name for field in dataclasses.fields(kind))


def from_item(kind: type[T], item: Mapping[str, Any]) -> T:
    """`item` as a `kind`. Raises ContractError, naming the attribute that is missing or has a wrong type."""
    values: dict[str, Any] = {}
    for name, reader in _readers(typing.cast("Any", kind)):  # to mypy a class is not hashable
        if name in item:
            content = item[name]
            try:
                values[name] = content if type(content) in reader.passes else reader.read(content)
            except ValueError as error:
                raise ContractError(f"{kind.__name__}.{name}: {error}") from error
    try:
        return kind(**values)
    except TypeError as error:
        raise ContractError(f"item lacks an attribute: {error}") from error
